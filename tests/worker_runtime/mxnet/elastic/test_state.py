"""The state of a training with Gluon: committed, restored, synchronised, saved in checkpoints."""

from pathlib import Path
from typing import Any

import mxnet as mx
import numpy as np
import pytest
from mxnet.contrib import amp

import worker_runtime.mxnet as hvd
from tests.worker_runtime.mxnet.networks import INPUT, make_network, make_spoilt
from tests.worker_runtime.mxnet.training import MakeTrainer, in_both_ways, make_plain
from tests.worker_runtime.ranks import RankPool
from worker_runtime.errors import CheckpointError


def make_training(
    seed: int, inputs: int = 6, make: MakeTrainer = hvd.DistributedTrainer, **settings: object
) -> tuple[mx.gluon.Block, mx.gluon.Trainer]:
    net = make_network(seed, inputs)
    optimizer = mx.optimizer.create("sgd", **{"learning_rate": 0.1, "momentum": 0.9, **settings})
    return net, make(net.collect_params(), optimizer)


def take_step(net: mx.gluon.Block, trainer: mx.gluon.Trainer, factor: float = 1.0) -> None:
    values = np.arange(np.prod(INPUT)).reshape(INPUT) / 7 * factor
    with mx.autograd.record():
        loss = net(mx.nd.array(values)).square()
    loss.backward()
    trainer.step(len(values))


def describe(net: mx.gluon.Block, trainer: mx.gluon.Trainer) -> dict[str, Any]:
    """All of it, to the last bit."""
    found: dict[str, Any] = {}
    for name, parameter in net.collect_params().items():
        found[name] = parameter.data().asnumpy().tolist() if parameter._data else parameter.shape
    for index, state in trainer._updaters[0].states.items():
        found[f"momentum {index}"] = None if state is None else state.asnumpy().tolist()
    optimizer = trainer.optimizer
    found["counts"] = optimizer.num_update, dict(optimizer._index_update_count), trainer.learning_rate
    return found


@in_both_ways
def test_commit_and_restore_bring_net_trainer_and_values_back(ranks: RankPool, make: MakeTrainer) -> None:
    def body() -> None:
        net, trainer = make_training(0, make=make)
        optimizer = trainer.optimizer
        take_step(net, trainer)
        state = hvd.elastic.GluonState(net, trainer, epoch=1, history=[])
        before = describe(net, trainer)
        for _ in range(2):
            take_step(net, trainer)
            assert describe(net, trainer) != before
            trainer.set_learning_rate(7.0)
            state.epoch = 7
            state.history.append(1)
            state.restore()
            assert (describe(net, trainer), state.epoch, state.history) == (before, 1, [])
        take_step(net, trainer)
        state.epoch = 2
        state.commit()
        after = describe(net, trainer)
        take_step(net, trainer)
        state.restore()
        assert describe(net, trainer) == after
        assert (trainer.optimizer is optimizer, state.net is net, state.epoch) == (True, True, 2)
        assert set(optimizer.param_dict) == set(range(len(trainer._params)))

    ranks.run(body, size=1)


def test_training_continues_after_a_restore_as_before(ranks: RankPool) -> None:
    def body() -> None:
        net, trainer = make_training(0)
        state = hvd.elastic.GluonState(net=net, trainer=trainer)
        seen = []
        for _ in range(2):
            for _ in range(3):
                take_step(net, trainer)
            seen.append(describe(net, trainer))
            state.restore()
        assert seen[0] == seen[1]

    ranks.run(body)


@in_both_ways
def test_sync_gives_all_ranks_the_state_of_rank_0_which_counts_as_committed(ranks: RankPool, make: MakeTrainer) -> None:
    def body() -> object:
        net, trainer = make_training(hvd.rank(), learning_rate=0.1 * (hvd.rank() + 1), make=make)
        if hvd.rank() == 0:  # the other has no momenta yet
            plain = make_plain(net.collect_params(), mx.optimizer.create("sgd", learning_rate=0.1, momentum=0.9))
            take_step(net, plain)
            trainer._updaters[0].states = plain._updaters[0].states
            trainer._updaters[0].states_synced = plain._updaters[0].states_synced
        sampler = hvd.elastic.ElasticSampler(range(10), shuffle=False)
        sampler.record_batch(0, hvd.rank() + 1)
        state = hvd.elastic.GluonState(net=net, trainer=trainer, sampler=sampler, epoch=hvd.rank() + 5)
        state.sync()
        synced = describe(net, trainer), state.epoch, sampler.state_dict()
        take_step(net, trainer)
        state.epoch = 99
        sampler.record_batch(1, 1)
        state.restore()
        assert (describe(net, trainer), state.epoch, sampler.state_dict()) == synced
        take_step(net, trainer)
        return synced, describe(net, trainer), list(sampler)

    first, second = ranks.run(body)
    assert first[:2] == second[:2]
    assert first[0][1] == 5
    assert sorted(first[2] + second[2]) == list(range(2, 10))


@pytest.mark.parametrize("hybridize", [False, True])
def test_a_newcomer_whose_parameters_have_no_shape_gets_them_with_the_state(ranks: RankPool, hybridize: bool) -> None:
    def body() -> object:
        net, trainer = make_training(hvd.rank(), inputs=6 if hvd.rank() == 0 else 0)
        if hybridize:
            net.hybridize()
        state = hvd.elastic.GluonState(net=net, trainer=trainer)
        state.sync()
        synced = describe(net, trainer)
        state.restore()  # the newcomer has it all, before its first forward
        assert describe(net, trainer) == synced
        take_step(net, trainer)
        return synced, describe(net, trainer)

    first, second, third = ranks.run(body, size=3)
    assert first == second == third


@pytest.mark.parametrize("hybridize", [False, True])
def test_changes_since_a_commit_before_the_first_forward_are_gone(
    ranks: RankPool,
    hybridize: bool,
) -> None:
    def body() -> object:
        net, trainer = make_training(hvd.rank(), inputs=0)
        if hybridize:
            net.hybridize()
        state = hvd.elastic.GluonState(net=net, trainer=trainer)
        state.sync()
        seen = []
        for _ in range(2):
            for _ in range(2):
                take_step(net, trainer)
            seen.append(describe(net, trainer))
            state.restore()
            assert (trainer.optimizer.num_update, dict(trainer._updaters[0].states)) == (0, {})
            state.sync()
        assert seen[0] != seen[1]  # of other initial values
        return seen, describe(net, trainer)

    first, second = ranks.run(body)
    assert first == second
    assert set(np.ravel(first[1]["net_batchnorm0_running_var"])) == {1.0}


@pytest.mark.parametrize("is_numpy", [False, True])
@pytest.mark.parametrize("after", ["restore", "reset"])  # workers join, too, in the middle of an accumulation
def test_gradients_that_accumulate_begin_anew_with_the_function(ranks: RankPool, after: str, *, is_numpy: bool) -> None:
    @mx.util.use_np if is_numpy else lambda function: function
    def body() -> None:
        net, trainer = make_training(0)
        net.collect_params().setattr("grad_req", "add")
        state = hvd.elastic.GluonState(net=net, trainer=trainer)
        values = np.arange(np.prod(INPUT)).reshape(INPUT)
        with mx.autograd.record():
            loss = net((mx.np if is_numpy else mx.nd).array(values, dtype="float32")) ** 2
        loss.backward()

        def measure() -> float:
            return sum(np.abs(each.grad().asnumpy()).sum() for each in trainer._params if each._grad)

        assert measure() > 0
        getattr(state, after)()
        assert measure() == 0

    ranks.run(body, size=1)


def test_a_gradient_from_before_a_restore_is_used_in_no_step(ranks: RankPool) -> None:
    def body() -> None:
        net, trainer = make_training(0)
        state = hvd.elastic.GluonState(net=net, trainer=trainer)
        before = describe(net, trainer)
        with mx.autograd.record():
            loss = net(mx.nd.arange(np.prod(INPUT)).reshape(INPUT)).square()
        loss.backward()
        state.restore()
        trainer.step(1, ignore_stale_grad=True)
        assert describe(net, trainer) == before

    ranks.run(body, size=1)


def test_a_newcomer_and_a_restore_get_the_multipliers_of_parameters(ranks: RankPool) -> None:
    def body() -> object:
        net, trainer = make_training(0)
        weights = net.collect_params(".*weight")
        if hvd.rank() == 0:
            weights.setattr("lr_mult", 0.0)
            weights.setattr("wd_mult", 0.5)
        state = hvd.elastic.GluonState(net=net, trainer=trainer)
        state.sync()
        weights.setattr("lr_mult", 3.0)
        state.restore()
        take_step(net, trainer)
        return describe(net, trainer), [(each.lr_mult, each.wd_mult) for each in weights.values()]

    first, second = ranks.run(body)
    assert first == second
    assert set(first[1]) == {(0.0, 0.5)}


def test_arrays_among_the_plain_values_are_copied(ranks: RankPool) -> None:
    def body() -> None:
        state = hvd.elastic.GluonState(mean=mx.nd.zeros(2), means={"np": [mx.np.zeros(1)]})
        state.mean[:] = 5
        state.means["np"][0][:] = 5
        state.restore()
        assert (state.mean.asnumpy().tolist(), state.means["np"][0].asnumpy().tolist()) == ([0, 0], [0])

    ranks.run(body, size=1)


def test_arrays_that_are_trained_and_containers_of_blocks_are_refused_by_name(ranks: RankPool) -> None:
    def body() -> None:
        array, parameter = mx.nd.ones(1), mx.gluon.Parameter("p", shape=(1,))
        array.attach_grad()
        for value in (array, [array], parameter, {"a": parameter}):
            with pytest.raises(ValueError, match="the state's weight is or has an array with a gradient"):
                hvd.elastic.GluonState(weight=value)
        with pytest.raises(ValueError, match="the state's nets is a list with an object of the class Dense inside"):
            hvd.elastic.GluonState(nets=[mx.gluon.nn.Dense(1, prefix="only_")])

    ranks.run(body, size=1)


def test_an_operation_that_fails_before_a_restore_does_not_outlive_it(ranks: RankPool) -> None:
    def body() -> None:
        net, trainer = make_training(0)
        state = hvd.elastic.GluonState(net=net, trainer=trainer)
        before = describe(net, trainer)
        parameter = next(iter(net.collect_params().values()))
        parameter.set_data(mx.nd.broadcast_add(parameter.data() * 0, make_spoilt()[0, 0]))
        state.restore()
        assert describe(net, trainer) == before

    ranks.run(body, size=1)


def test_schedulers_continue_where_the_state_is(ranks: RankPool) -> None:
    def body() -> object:
        scheduler = mx.lr_scheduler.FactorScheduler(step=1, factor=0.5, base_lr=0.8)
        net, trainer = make_training(0, lr_scheduler=scheduler)
        state = hvd.elastic.GluonState(net=net, trainer=trainer)
        for _ in range(hvd.rank() * 2):
            trainer.optimizer.num_update += 1
            _ = trainer.learning_rate
        state.sync()
        rates = []
        for _ in range(3):
            take_step(net, trainer)
            rates.append(trainer.learning_rate)
            if len(rates) == 2:
                state.restore()
        return rates, scheduler is trainer.optimizer.lr_scheduler, scheduler.base_lr

    first, second = ranks.run(body)
    assert first == second
    assert first[0][2] == first[0][0]
    assert first[1]


def test_the_scaler_of_amp_is_kept(ranks: RankPool) -> None:
    def body() -> object:
        net, trainer = make_training(0)
        amp._amp_initialized = True
        amp.amp._amp_initialized = True
        trainer._amp_loss_scaler = amp.loss_scaler.LossScaler()
        trainer._amp_original_scale = trainer._scale
        trainer._amp_loss_scaler._next_loss_scale = 4.0 + hvd.rank()
        trainer._amp_loss_scaler._unskipped = 5 + hvd.rank()
        state = hvd.elastic.GluonState(net=net, trainer=trainer)
        state.sync()
        trainer._amp_loss_scaler._unskipped = 99
        state.restore()
        scaler = trainer._amp_loss_scaler
        return scaler._next_loss_scale, scaler._unskipped

    assert ranks.run(body) == [(4.0, 5)] * 2


def test_states_of_several_contexts_are_restored_on_each(ranks: RankPool) -> None:
    def body() -> None:
        contexts = [mx.cpu(0), mx.cpu(1)]
        net = make_network(0, 6, contexts=contexts)
        trainer = hvd.DistributedTrainer(net.collect_params(), "sgd", {"learning_rate": 0.1, "momentum": 0.9})

        def step() -> None:
            with mx.autograd.record():
                losses = [net(mx.nd.ones(INPUT, ctx=context)).square() for context in contexts]
            mx.autograd.backward(losses)
            trainer.step(4)

        step()
        state = hvd.elastic.GluonState(net=net, trainer=trainer)
        seen = []
        for _ in range(2):
            step()
            step()
            parameters = [each for each in net.collect_params().values() if each.grad_req != "null"]
            seen.append([[data.asnumpy().tolist() for data in each.list_data()] for each in parameters])
            assert all(one == other for one, other in seen[-1])
            state.restore()
        assert seen[0] == seen[1]

    ranks.run(body, size=1)


def test_a_commit_uses_its_memory_again(ranks: RankPool) -> None:
    def body() -> None:
        net, trainer = make_training(0)
        take_step(net, trainer)
        state = hvd.elastic.GluonState(net=net, trainer=trainer)
        kept = state._handlers["net"].saved, state._handlers["trainer"]._states
        state.commit()
        again = state._handlers["net"].saved, state._handlers["trainer"]._states
        assert all(again[number][key] is kept[number][key] for number in (0, 1) for key in kept[number])

    ranks.run(body, size=1)


def test_objects_of_any_number_stand_under_any_name(ranks: RankPool) -> None:
    def body() -> object:
        first, second = make_network(hvd.rank()), make_network(hvd.rank() + 10)  # of the same names, without shapes
        state = hvd.elastic.GluonState(second, generator=first.collect_params())
        state.sync()
        assert (state.net is second, state.trainer) == (True, None)
        for net in (first, second):
            net(mx.nd.ones(INPUT))
        hvd.barrier()  # until then rank 0 is needed: the others may make their first forward later
        return [each.collect_params()["net_dense0_weight"].data().asnumpy().tolist() for each in (first, second)]

    one, other = ranks.run(body)
    assert one == other
    assert one[0] != one[1]


def test_a_trainer_whose_states_are_in_a_store_is_refused(ranks: RankPool) -> None:
    def body() -> None:
        net = make_network(0, 6, contexts=[mx.cpu(0), mx.cpu(1)])
        trainer = mx.gluon.Trainer(net.collect_params(), "sgd", update_on_kvstore=True)
        trainer._init_kvstore()
        with pytest.raises(ValueError, match=r"there are no states outside a key-value store.*kvstore=None"):
            hvd.elastic.GluonState(net=net, trainer=trainer)

    ranks.run(body, size=1)


def test_the_samples_of_lost_workers_begin_the_function_again(ranks: RankPool) -> None:
    def body() -> object:
        from worker_runtime.elastic import sampler as samplers  # noqa: PLC0415 - of the rank

        sampler = hvd.elastic.ElasticSampler(range(6), shuffle=False)
        state = hvd.elastic.GluonState(sampler=sampler)
        dealt = []

        @hvd.elastic.run
        def train(state: hvd.elastic.GluonState) -> None:
            dealt.append((len(state.sampler), state.sampler.num_replicas))
            state.commit()
            samplers.RUNTIME.engine.steps.completed = 1, (0, 1)
            state.sampler._members = (0, 1, 2) if len(dealt) == 1 else (0, 1)  # as if one more had been there
            state.commit()

        train(state)
        return dealt

    assert ranks.run(body) == [[(3, 2), (3, 2)]] * 2


@in_both_ways
@pytest.mark.parametrize("inputs", [0, 6])
def test_a_training_continues_from_a_checkpoint_to_the_last_bit(
    ranks: RankPool, tmp_path: Path, make: MakeTrainer, inputs: int
) -> None:
    def body() -> tuple[object, object]:
        net, trainer = make_training(hvd.rank(), make=make)
        state = hvd.elastic.GluonState(net=net, trainer=trainer, step=0)
        state.sync()
        for state.step in range(1, 6):
            take_step(net, trainer, hvd.rank() + state.step / 3)
            if state.step == 3:
                state.save(tmp_path)
                extra = state.get_extra_state()
        other, another = make_training(hvd.rank() + 3, inputs, make=make)
        resumed = hvd.elastic.GluonState(net=other, trainer=another, step=0)
        assert resumed.load(tmp_path)
        assert resumed.get_extra_state() == extra != {}
        while resumed.step < 5:
            resumed.step += 1
            take_step(other, another, hvd.rank() + resumed.step / 3)
        return describe(net, trainer), describe(other, another)

    (whole, resumed), others = ranks.run(body)
    assert whole == resumed
    for name in whole:
        if "running" not in name:  # of which those of rank 0 are saved
            assert others[0][name] == others[1][name] == whole[name]


def test_a_checkpoint_of_another_net_is_refused(ranks: RankPool, tmp_path: Path) -> None:
    def body() -> None:
        hvd.elastic.GluonState(net=make_network(0, 6)).save(tmp_path)
        with pytest.raises(CheckpointError, match=r"net: .*shape incompatible expected \(5, 4\) vs saved \(3, 4\)"):
            hvd.elastic.GluonState(net=make_network(0, 6, outputs=5)).load(tmp_path)
        with pytest.raises(CheckpointError, match=r"net: it has .*net_dense0_bias.*and the state has own_bias, own_w"):
            hvd.elastic.GluonState(net=mx.gluon.nn.Dense(1, prefix="own_")).load(tmp_path)

    ranks.run(body, size=1)
