"""The distributed trainer.

Long because each promise of the trainer has its test here.
"""

import itertools
import os

import mxnet as mx
import numpy as np
import pytest

import worker_runtime.mxnet as hvd
from tests.worker_runtime.mxnet.training import (
    OPTIMIZERS,
    WAYS,
    check,
    differentiate,
    make_net,
    make_optimizer,
    make_parameters,
    make_values,
    read,
    train,
)
from tests.worker_runtime.ranks import RankPool, Ranks
from worker_runtime.mxnet.trainer import DistributedTrainer

SOAK_SIZE = int(os.environ.get("HVDRUN_SOAK_WORKERS", "0"))


@pytest.mark.parametrize("hybrid", [False, True], ids=["imperative", "hybrid"])
@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("way", [way for way in WAYS if way != "module"])
def test_workers_train_as_one_process_with_the_whole_batch(
    ranks: RankPool, way: str, name: str, *, hybrid: bool
) -> None:
    replicas = ranks.run(lambda: train(way, name, hvd.rank(), hvd.size(), hybrid=hybrid))
    check(replicas, train(way, name, hybrid=hybrid))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_module_api_trains_as_one_process_with_the_whole_batch(ranks: RankPool, name: str) -> None:
    replicas = ranks.run(lambda: train("module", name, hvd.rank(), hvd.size()))
    check(replicas, train("module", name), tolerance=1e-4)


@pytest.mark.parametrize("way", WAYS)
def test_three_workers_train_as_one_process(ranks: RankPool, way: str) -> None:
    replicas = ranks.run(lambda: train(way, "momentum", hvd.rank(), hvd.size(), hybrid=True), size=3)
    check(replicas, train(way, "momentum", hybrid=True), tolerance=1e-4 if way == "module" else 1e-6)


@pytest.mark.skipif(SOAK_SIZE == 0, reason="only in make soak: HVDRUN_SOAK_WORKERS=4")
def test_more_workers_train_as_one_process() -> None:
    with Ranks(SOAK_SIZE) as many:
        for way, name, hybrid in itertools.product(WAYS, OPTIMIZERS, (False, True)):
            replicas = many.run(
                lambda: train(way, name, hvd.rank(), hvd.size(), hybrid=hybrid),  # noqa: B023 - called at once
                size=SOAK_SIZE,
            )
            check(replicas, train(way, name, hybrid=hybrid), tolerance=1e-4 if way == "module" else 1e-6)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"num_groups": 2},
        {"num_groups": 9},
        {"gradient_predivide_factor": 4.0},
        {"num_groups": 2, "gradient_predivide_factor": 4.0},
        {"compression": hvd.Compression.fp16},
        {"compression": hvd.Compression.fp16, "num_groups": 1},
        {"prefix": "generator"},
    ],
    ids=str,
)
def test_a_step_subtracts_the_mean_over_workers_of_the_gradient_by_the_batch_size(
    ranks: RankPool, settings: dict[str, object]
) -> None:
    def body() -> object:
        params = make_parameters((4,), (3, 2), (5,), (2,), dtypes=("float32", "float64", "float16", "float64"))
        options = {"learning_rate": 1.0, "multi_precision": True}
        trainer = hvd.DistributedTrainer(params, "sgd", options, **settings)
        for _ in range(3):
            differentiate(params, hvd.rank() + 1)
            trainer.step(10)
        return [np.unique(parameter.data().asnumpy().astype("float64")).tolist() for parameter in params.values()]

    for found in ranks.run(body):
        for value in found:
            assert value == pytest.approx([1 - 3 * 0.15], abs=2e-3)


def test_large_gradients_and_those_of_several_dtypes_are_averaged(ranks: RankPool) -> None:
    def body() -> object:
        dtypes = ("float32", "float64", "float16", "float32")
        params = make_parameters((600, 600), (700, 500), (900, 900), (3,), dtypes=dtypes)
        trainer = hvd.DistributedTrainer(params, "sgd")
        for _ in range(4):
            differentiate(params, hvd.rank() + 1)
            trainer.allreduce_grads()
        return [np.unique(parameter.grad().asnumpy()).tolist() for parameter in params.values()]

    assert ranks.run(body) == [[[1.5]] * 4] * 2


@pytest.mark.parametrize("kind", ["dict", "ParameterDict", "list", "tuple", "generator"])
def test_parameters_may_come_in_any_form(ranks: RankPool, kind: str) -> None:
    forms = {"dict": dict, "ParameterDict": lambda params: params, "list": lambda params: list(params.values())}
    forms |= {"tuple": lambda params: tuple(params.values()), "generator": lambda params: iter(params.values())}

    def body() -> object:
        params = make_parameters((4,), (3,))
        trainer = hvd.DistributedTrainer(forms[kind](params), "sgd", {"learning_rate": 1.0})
        for _ in range(3):
            differentiate(params, hvd.rank() + 1)
            trainer.step(1)
        return [parameter.data().asnumpy().tolist() for parameter in params.values()]

    assert ranks.run(body) == [[[-3.5] * 4, [-3.5] * 3]] * 2


def test_gradients_may_be_changed_between_averaging_and_updating(ranks: RankPool) -> None:
    def body() -> object:
        params = make_parameters((4,))
        trainer = hvd.DistributedTrainer(params, "sgd", {"learning_rate": 1.0})
        norms = []
        for _ in range(3):
            differentiate(params, 3.0 * (2 * hvd.rank()))
            trainer.allreduce_grads()
            norms.append(mx.gluon.utils.clip_global_norm([params["p0"].grad()], 2.0))
            trainer.update(1)
        return norms, params["p0"].data().asnumpy().tolist()

    for norms, values in ranks.run(body):
        assert norms == pytest.approx([6.0] * 3)
        assert values == pytest.approx([-2.0] * 4, abs=1e-5)


def test_a_gradient_that_is_read_in_the_background_is_not_overwritten(ranks: RankPool) -> None:
    def body() -> object:
        params = make_parameters((700, 700))
        trainer = hvd.DistributedTrainer(params, "sgd")
        read_late = []
        for _ in range(4):
            differentiate(params, hvd.rank() + 1)
            matrix = mx.nd.ones((500, 500))
            for _ in range(6):
                matrix = mx.nd.dot(matrix, matrix) * 0
            read_late.append((params["p0"].grad() + matrix[0, 0]).mean())
            trainer.allreduce_grads()
        return [mean.asscalar() for mean in read_late]

    assert ranks.run(body) == [[1.0] * 4, [2.0] * 4]


def test_a_parameter_without_gradients_is_left_alone(ranks: RankPool) -> None:
    def body() -> object:
        params = make_parameters((2,), (2,))
        trainer = hvd.DistributedTrainer(params, "sgd", {"learning_rate": 1.0})
        values = []
        for step in range(6):
            params["p1"].grad_req = "null" if step in {1, 2} else "write"
            with mx.autograd.record():
                losses = [
                    (parameter.data() * (hvd.rank() + 1)).sum()
                    for parameter in params.values()
                    if parameter.grad_req != "null"
                ]
            mx.autograd.backward(losses)
            trainer.step(1)
            values.append([parameter.data().asnumpy()[0] for parameter in params.values()])
        return values

    expected = [[1 - 1.5 * (step + 1), 1 - 1.5 * max(1, step - 1)] for step in range(6)]
    assert ranks.run(body) == [expected] * 2


def test_gradients_of_several_backward_passes_are_added(ranks: RankPool) -> None:
    def body() -> object:
        params = make_parameters((2,))
        params["p0"].grad_req = "add"
        trainer = hvd.DistributedTrainer(params, "sgd", {"learning_rate": 1.0})
        for _ in range(3):
            for _ in range(2):
                differentiate(params, hvd.rank() + 1)
            trainer.step(2)
            params["p0"].zero_grad()
        return params["p0"].data().asnumpy().tolist()

    assert ranks.run(body) == [[1 - 3 * 1.5] * 2] * 2


@pytest.mark.parametrize("size", [1, 2])
def test_contexts_of_a_worker_are_summed_before_workers_are_averaged(ranks: RankPool, size: int) -> None:
    def body() -> object:
        contexts = [mx.cpu(0), mx.cpu(1)]
        net = make_net(contexts)
        trainer = hvd.DistributedTrainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
        whole = make_values(12, 6)
        parts = mx.gluon.utils.split_and_load(mx.nd.array(whole[hvd.rank() :: hvd.size()], dtype="float64"), contexts)
        for _ in range(4):
            with mx.autograd.record():
                losses = [net(part).square() for part in parts]
            mx.autograd.backward(losses)
            trainer.step(12 // hvd.size())
        return [
            [parameter.data(context).asnumpy() for parameter in net.collect_params().values()] for context in contexts
        ]

    net = make_net()
    trainer = mx.gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1}, kvstore=None)
    for _ in range(4):
        with mx.autograd.record():
            loss = net(mx.nd.array(make_values(12, 6), dtype="float64")).square()
        loss.backward()
        trainer.step(12)
    check([replica for worker in ranks.run(body, size=size) for replica in worker], read(net))


@pytest.mark.parametrize("contexts", [1, 2])
@pytest.mark.parametrize("is_split", [False, True], ids=["step", "split"])
def test_a_parameter_that_only_some_workers_use_is_updated_on_all(
    ranks: RankPool, *, is_split: bool, contexts: int
) -> None:
    def body() -> object:
        params = make_parameters((2,), (2,), (2,))
        params.reset_ctx([mx.cpu(place) for place in range(contexts)])
        trainer = hvd.DistributedTrainer(params, "sgd", {"learning_rate": 1.0})
        for step in range(4):
            used = [params["p0"]] if step % 2 == hvd.rank() else [params["p0"], params["p1"]]
            with mx.autograd.record():
                losses = [(parameter.list_data()[-1] * 2).sum() for parameter in used]
            mx.autograd.backward(losses)
            if is_split:
                trainer.allreduce_grads()
                trainer.update(1, ignore_stale_grad=True)
            else:
                trainer.step(1, ignore_stale_grad=True)
        return [[data.asnumpy().tolist() for data in parameter.list_data()] for parameter in params.values()]

    assert ranks.run(body) == [[[[-7.0] * 2] * contexts, [[-3.0] * 2] * contexts, [[1.0] * 2] * contexts]] * 2


def test_what_one_worker_did_not_use_counts_as_zeros_also_when_it_has_a_gradient_from_before(ranks: RankPool) -> None:
    def body() -> object:
        params = make_parameters((1,), (1,))
        trainer = hvd.DistributedTrainer(params, "sgd", {"learning_rate": 1.0})
        found = []
        for used in (["p0", "p1"], ["p0", "p1"][hvd.rank() :], ["p0"]):
            with mx.autograd.record():
                losses = [(params[name].data() * 4).sum() for name in used]
            mx.autograd.backward(losses)
            trainer.allreduce_grads()
            trainer.update(1, ignore_stale_grad=True)
            found.append([params[name].data().asscalar() for name in ("p0", "p1")])
        return found

    assert ranks.run(body) == [[[-3.0, -3.0], [-5.0, -7.0], [-9.0, -7.0]]] * 2


@pytest.mark.parametrize("is_split", [False, True], ids=["step", "split"])
def test_gradients_that_no_backward_has_made_are_averaged_and_left_to_the_program(
    ranks: RankPool, *, is_split: bool
) -> None:
    def body() -> object:
        params = make_parameters((1,))
        trainer = hvd.DistributedTrainer(params, "sgd", {"learning_rate": 1.0})
        for _ in range(2):
            params["p0"].grad()[:] = hvd.rank() + 1
            if is_split:
                trainer.allreduce_grads()
            else:
                trainer._allreduce_grads()
        with pytest.raises(UserWarning, match=r"`p0`.*has not been updated"):
            trainer.update(1)
        return params["p0"].grad().asscalar()

    assert ranks.run(body) == [1.5] * 2


@pytest.mark.parametrize("is_split", [False, True], ids=["step", "split"])
def test_without_that_wish_a_stale_gradient_is_told_as_gluon_does(ranks: RankPool, *, is_split: bool) -> None:
    def body() -> None:
        params = make_parameters((2,), (2,))
        trainer = hvd.DistributedTrainer(params, "sgd")
        used = ["p0"] if hvd.rank() == 0 else ["p0", "p1"]
        with mx.autograd.record():
            losses = [params[name].data().sum() for name in used]
        mx.autograd.backward(losses)
        if is_split:
            trainer.allreduce_grads()
        update = trainer.update if is_split else trainer.step
        if hvd.rank() == 0:
            with pytest.raises(UserWarning, match=r"`p1`.*has not been updated"):
                update(1)
        else:
            update(1)

    ranks.run(body)


def test_sparse_gradients_are_averaged(ranks: RankPool) -> None:
    def train_table(rank: int, size: int) -> np.ndarray:
        table = mx.gluon.nn.Embedding(6, 2, sparse_grad=True, prefix="table_")
        table.initialize(init="ones")
        make = hvd.DistributedTrainer if size > 1 else mx.gluon.Trainer
        trainer = make(table.collect_params(), "sgd", {"learning_rate": 0.5}, **({} if size > 1 else {"kvstore": None}))
        for step in range(4):
            words = (np.array([step, step + 1, 5, 2]) % 6)[rank::size]
            with mx.autograd.record():
                loss = table(mx.nd.array(words)).square()
            loss.backward()
            trainer.step(len(words))
        return table.weight.data().asnumpy()

    replicas = ranks.run(lambda: train_table(hvd.rank(), hvd.size()))
    check([[replica] for replica in replicas], [train_table(0, 1)], tolerance=1e-5)


class Doubled:
    """A compressor that sends twice the values in float64, and notes that it was asked."""

    def __init__(self) -> None:
        self.calls = 0

    def compress(self, tensor: mx.nd.NDArray) -> tuple[mx.nd.NDArray, object]:
        """Twice the values."""
        self.calls += 1
        return tensor.astype("float64") * 2, tensor.dtype

    def decompress(self, tensor: mx.nd.NDArray, context: object) -> mx.nd.NDArray:
        """Half of them."""
        return (tensor / 2).astype(context)


def test_a_compressor_of_the_users_handles_each_gradient(ranks: RankPool) -> None:
    def body() -> object:
        params = make_parameters((3,), (2, 2))
        compressor = Doubled()
        trainer = hvd.DistributedTrainer(params, "sgd", {"learning_rate": 1.0}, compressor)
        for _ in range(3):
            differentiate(params, hvd.rank() + 1)
            trainer.step(1)
        return compressor.calls, [np.unique(parameter.data().asnumpy()).tolist() for parameter in params.values()]

    assert ranks.run(body) == [(6, [[-3.5], [-3.5]])] * 2


def test_ranks_outside_the_process_set_step_by_themselves(ranks: RankPool) -> None:
    def body() -> object:
        pair = hvd.add_process_set([0, 2])
        params = make_parameters((1,))
        trainer = hvd.DistributedTrainer(params, "sgd", {"learning_rate": 1.0}, process_set=pair)
        for _ in range(4):
            differentiate(params, hvd.rank() + 1)
            trainer.step(1)
        return params["p0"].data().asscalar()

    assert ranks.run(body, size=3) == [-7.0, -7.0, -7.0]


def test_two_trainers_take_turns(ranks: RankPool) -> None:
    def body() -> object:
        first, second = make_parameters((2,)), make_parameters((3,))
        trainers = [
            hvd.DistributedTrainer(params, "sgd", {"learning_rate": 1.0}, prefix=prefix)
            for params, prefix in ((first, "g"), (second, "d"))
        ]
        for _ in range(3):
            differentiate(first, hvd.rank() + 1)
            differentiate(second, 2 * (hvd.rank() + 1))
            trainers[1].step(1)
            trainers[0].step(1)
        return first["p0"].data().asnumpy()[0], second["p0"].data().asnumpy()[0]

    assert ranks.run(body) == [(-3.5, -8.0)] * 2


@pytest.mark.parametrize("extra", [False, True], ids=["other order", "one more on a rank"])
def test_trainers_with_prefixes_find_each_other_whenever_they_are_made(ranks: RankPool, *, extra: bool) -> None:
    def body() -> object:
        models = {"a_": make_parameters((2,)), "b_": make_parameters((2,))}
        if extra and hvd.rank() == 0:
            hvd.DistributedTrainer(make_parameters((2,)), "sgd")
        prefixes = sorted(models, reverse=not extra and hvd.rank() == 1)
        trainers = {
            prefix: hvd.DistributedTrainer(models[prefix], "sgd", {"learning_rate": 1.0}, prefix=prefix)
            for prefix in prefixes
        }
        for _ in range(3):
            for factor, (prefix, params) in enumerate(models.items(), 1):
                differentiate(params, 2.0 * factor * hvd.rank())
                trainers[prefix].step(1)
        return [params["p0"].data().asnumpy()[0] for params in models.values()]

    assert ranks.run(body) == [[-2.0, -5.0]] * 2


@pytest.mark.parametrize("is_split", [False, True], ids=["step", "split"])
def test_ranks_with_more_parameters_than_others_are_told_how_many(ranks: RankPool, *, is_split: bool) -> None:
    def body() -> str:
        params = make_parameters(*[(2,)] * (2 + hvd.rank()))
        trainer = hvd.DistributedTrainer(params, "sgd", prefix="net")
        differentiate(params, 1.0)
        with pytest.raises(hvd.HorovodInternalError) as caught:
            trainer.allreduce_grads() if is_split else trainer.step(1)
        return str(caught.value)

    first, second = ranks.run(body)
    assert first == second
    assert "allreduce 'optimizer.net.1." in first
    assert "2 gradients from 'net0'" in first
    assert "3 gradients from 'net0'" in first
    assert "allgather" not in first


def test_ranks_with_other_parameters_are_told_which(ranks: RankPool) -> None:
    def body() -> str:
        params = make_parameters((2 + hvd.rank(),), (2,))
        trainer = hvd.DistributedTrainer(params, "sgd", prefix="net")
        differentiate(params, 1.0)
        with pytest.raises(hvd.HorovodInternalError) as caught:
            trainer.step(1)
        return str(caught.value)

    first, second = ranks.run(body)
    assert first == second
    assert "2 gradients from 'net0' [2] to 'net1' [2] with 4 elements" in first


def test_what_a_trainer_has_saved_another_goes_on_with(ranks: RankPool, tmp_path: object) -> None:
    def body(folder: str) -> object:
        path = f"{folder}/{hvd.rank()}.states"
        nets = [make_net(), make_net()]
        trainers = [hvd.DistributedTrainer(net.collect_params(), make_optimizer("momentum")) for net in nets]

        def step(which: int) -> None:
            with mx.autograd.record():
                loss = nets[which](mx.nd.array(make_values(4, 6, seed=hvd.rank()), dtype="float64")).square()
            loss.backward()
            trainers[which].step(4)

        for _ in range(3):
            step(0)
        trainers[0].save_states(path)
        for other, own in zip(nets[1].collect_params().values(), nets[0].collect_params().values(), strict=True):
            other.set_data(own.data())
        trainers[1].load_states(path)
        for which in (0, 1):
            step(which)
        return [read(net) for net in nets]

    for first, second in ranks.run(body, str(tmp_path)):
        check([second], first)


def test_the_arguments_of_older_releases_are_understood(ranks: RankPool) -> None:
    def body() -> object:
        found = []
        for positional, named in (
            ((2.0,), {}),
            ((2.0, "old"), {}),
            ((2.0, "old", 3), {}),
            ((2.0, None, 3), {}),
            ((2.0,), {"prefix": "old", "num_groups": 3}),
            ((2,), {"num_groups": 3}),
        ):
            params = make_parameters((1,))
            with pytest.warns(DeprecationWarning, match="taken as gradient_predivide_factor"):
                trainer = hvd.DistributedTrainer(params, "sgd", {"learning_rate": 1.0}, *positional, **named)
            for _ in range(3):
                differentiate(params, hvd.rank() + 1)
                trainer.step(1)
            assert params["p0"].data().asscalar() == -3.5
            found.append((trainer._gradient_predivide_factor, trainer._prefix, trainer._num_groups))
        return found

    expected = [(2.0, "", 0), (2.0, "old", 0), (2.0, "old", 3), (2.0, "", 3), (2.0, "old", 3), (2.0, "", 3)]
    assert ranks.run(body) == [expected] * 2


def test_a_distributed_optimizer_is_taken_out(ranks: RankPool) -> None:
    def body() -> object:
        params = make_parameters((1,))
        plain = mx.optimizer.create("sgd", learning_rate=1.0)
        with pytest.warns(UserWarning, match="averages by itself"):
            trainer = hvd.DistributedTrainer(params, hvd.DistributedOptimizer(plain))
        differentiate(params, hvd.rank() + 1)
        trainer.step(1)
        return trainer._optimizer is plain, params["p0"].data().asscalar()

    assert ranks.run(body) == [(True, -0.5)] * 2


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"prefix": 3}, AssertionError, "prefix is 3"),
        ({"params": 3}, ValueError, "list or dict of Parameters"),
        ({"optimizer": "none"}, ValueError, "Cannot find optimizer"),
    ],
)
def test_wrong_arguments_are_named(
    ranks: RankPool, arguments: dict[str, object], error: type[Exception], message: str
) -> None:
    def body() -> None:
        given = {"params": make_parameters((1,)), "optimizer": "sgd", **arguments}
        with pytest.raises(error, match=message):
            hvd.DistributedTrainer(**given)

    ranks.run(body, size=1)


def test_a_trainer_or_parameters_alone_are_not_enough(ranks: RankPool) -> None:
    def body() -> None:
        params = make_parameters((1,))
        trainer = mx.gluon.Trainer(params, "sgd", kvstore=None)
        for more in ((), ("sgd",)):
            with pytest.raises(TypeError, match=r"takes the parameters and the optimizer, not a Trainer"):
                hvd.DistributedTrainer(trainer, *more)
        for more in ((), (None,)):
            with pytest.raises(TypeError, match=r"needs an optimizer: .*'sgd'"):
                hvd.DistributedTrainer(params, *more)

    ranks.run(body, size=1)


def test_a_subclass_may_average_in_its_own_way(ranks: RankPool) -> None:
    class Summing(DistributedTrainer):
        def _allreduce_grads(self) -> None:
            super()._allreduce_grads()
            for parameter in self._params:
                parameter.grad()[:] *= hvd.size()

    def body() -> object:
        params = make_parameters((1,))
        trainer = Summing(params, "sgd", {"learning_rate": 1.0})
        differentiate(params, hvd.rank() + 1)
        trainer.step(1)
        return params["p0"].data().asscalar()

    assert ranks.run(body) == [-2.0] * 2


@pytest.mark.parametrize("batch_size", [0, 1])
def test_a_step_that_cannot_begin_on_one_rank_fails_on_all_and_the_next_is_as_ever(
    ranks: RankPool, batch_size: int
) -> None:
    def body() -> object:
        params = make_parameters((2,))
        shape = (0,) if hvd.rank() and batch_size else (2,)
        late = mx.gluon.Parameter("late", shape=shape, init="ones", allow_deferred_init=True)
        late.initialize()
        params.update({"late": late})
        trainer = hvd.DistributedTrainer(params, "sgd", {"learning_rate": 1.0})
        if not hvd.rank():
            differentiate(params, 1.0)
        with pytest.raises((RuntimeError, ArithmeticError)) as caught:  # Gluon's own, or HorovodInternalError
            trainer.step(batch_size if hvd.rank() else 1)
        if hvd.rank() and batch_size:
            late.shape = (2,)
            late._finish_deferred_init()
        for _ in range(3):
            differentiate(params, hvd.rank() + 1.0)
            trainer.step(1)
        values = [parameter.data().asnumpy().tolist() for parameter in params.values()]
        return type(caught.value).__name__, str(caught.value), values

    (_, text, values), (name, cause, same) = ranks.run(body)
    assert f"given up on rank 1, before anything was sent: {name}: {cause}" in text
    assert name == ("DeferredInitializationError" if batch_size else "ZeroDivisionError")
    assert values == same == [[-3.5, -3.5]] * 2


def test_whether_stale_gradients_are_ignored_must_be_the_same_on_all_ranks(ranks: RankPool) -> None:
    def body() -> object:
        params = make_parameters((2,))
        trainer = hvd.DistributedTrainer(params, "sgd", {"learning_rate": 1.0})
        differentiate(params, hvd.rank() + 1.0)
        with pytest.raises(hvd.HorovodInternalError, match=r"rank 0 waits for allreduce '.*ignore_stale_grad=True'"):
            trainer.step(1, ignore_stale_grad=hvd.rank() == 0)
        for ignores in (True, False, True):
            differentiate(params, hvd.rank() + 1.0)
            trainer.step(1, ignore_stale_grad=ignores)
        return params["p0"].data().asnumpy().tolist()

    assert ranks.run(body) == [[-3.5, -3.5]] * 2
