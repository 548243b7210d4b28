"""Saved states: a trainer or optimizer of any kind loads what one of any other kind has saved, and averages once."""

import pickle
from pathlib import Path

import mxnet as mx
import numpy as np
import pytest

import worker_runtime.mxnet as hvd
from tests.worker_runtime.mxnet.training import (
    MAKERS,
    check,
    differentiate,
    learn,
    make_net,
    make_optimizer,
    make_parameters,
    make_plain,
    make_values,
    read,
)
from tests.worker_runtime.ranks import RankPool
from worker_runtime.mxnet.optimizer import keep_wrappers

KINDS_OF_OPTIMIZERS = {"plain": make_plain, **MAKERS}


def train(net: mx.gluon.Block, trainer: mx.gluon.Trainer, seed: int, *, is_alone: bool) -> None:
    """Two steps; a plain trainer has the whole batch to itself."""
    rank, size = (0, 1) if is_alone else (hvd.rank(), hvd.size())
    for step in range(2):
        batch = mx.nd.array(make_values(12, 6, seed=seed + step)[rank::size], dtype="float64")
        learn(net, batch)
        trainer.step(len(batch))


def train_twice(makers: list[str], name: str, path: str) -> list[np.ndarray]:
    """Train with the trainer of the first maker, save its states, and continue with the trainer of the second maker."""
    net = make_net()
    for turn, maker in enumerate(makers):
        own = make_optimizer(name)
        trainer = KINDS_OF_OPTIMIZERS[maker](net.collect_params(), own)
        given = trainer._optimizer
        if turn:
            trainer.load_states(path)
            trainer.set_learning_rate(trainer.learning_rate / 2)
            assert type(trainer._optimizer) is type(given)
            assert all(updater.optimizer is trainer._optimizer for updater in trainer._updaters)
            assert dict(enumerate(trainer._params)) == trainer._optimizer.param_dict
        train(net, trainer, 10 * turn, is_alone=maker == "plain")
        trainer.save_states(path)
    return read(net)


@pytest.mark.parametrize("name", ["momentum", "adam"])
@pytest.mark.parametrize("second", KINDS_OF_OPTIMIZERS)
@pytest.mark.parametrize("first", KINDS_OF_OPTIMIZERS)
def test_states_of_any_trainer_are_loaded_by_any_other(
    ranks: RankPool, tmp_path: Path, first: str, second: str, name: str
) -> None:
    folder = str(tmp_path)
    replicas = ranks.run(lambda: train_twice([first, second], name, f"{folder}/{hvd.rank()}.states"))
    check(replicas, train_twice(["plain", "plain"], name, f"{folder}/alone.states"))


def test_a_trainer_that_loads_states_keeps_its_distributed_optimizer_and_the_settings(
    ranks: RankPool, tmp_path: Path
) -> None:
    folder = str(tmp_path)

    def body() -> object:
        path = f"{folder}/{hvd.rank()}.states"
        params = make_parameters((1,))
        make_plain(params, mx.optimizer.create("sgd", learning_rate=1.0)).save_states(path)
        wrapped = hvd.DistributedOptimizer(mx.optimizer.create("adam"), 2.0, 3)
        trainer = mx.gluon.Trainer(params, wrapped, kvstore=None)
        trainer.load_states(path)
        wrapped.set_learning_rate(2.0)
        differentiate(params, hvd.rank() + 1)
        trainer.step(1)
        kept = trainer._optimizer is wrapped, wrapped._gradient_predivide_factor, wrapped._num_groups
        return kept, params["p0"].data().asscalar()

    assert ranks.run(body) == [((True, 2.0, 3), -2.0)] * 2


def test_an_updater_of_the_users_keeps_the_wrapper_too(ranks: RankPool) -> None:
    def body() -> object:
        plain = mx.optimizer.get_updater(mx.optimizer.create("sgd", learning_rate=1.0))
        updater = mx.optimizer.get_updater(hvd.DistributedOptimizer(mx.optimizer.create("adam")))
        for dump in (True, False, True):
            updater.set_states(plain.get_states(dump_optimizer=dump))
        weight = mx.nd.zeros(1)
        updater(0, mx.nd.full(1, hvd.rank() + 1.0), weight)
        return weight.asscalar()

    assert ranks.run(body) == [-1.5] * 2


@pytest.mark.parametrize("maker", MAKERS)
@pytest.mark.parametrize("name", ["momentum", "adam"])
def test_states_that_one_rank_has_loaded_are_broadcast(ranks: RankPool, tmp_path: Path, maker: str, name: str) -> None:
    path, saved = f"{tmp_path}/saved.states", f"{tmp_path}/saved.params"
    plain = make_net()
    trainer = make_plain(plain.collect_params(), make_optimizer(name))
    train(plain, trainer, 0, is_alone=True)
    trainer.save_states(path)
    plain.save_parameters(saved)
    train(plain, trainer, 10, is_alone=True)

    def body() -> list[np.ndarray]:
        is_root = hvd.rank() == 1
        net = mx.gluon.nn.HybridSequential(
            prefix="net_"
        )  # on ranks other than the root its parameters are initialised in the first step
        with net.name_scope():
            net.add(mx.gluon.nn.Dense(8, activation="tanh"), mx.gluon.nn.Dense(1))
        net.cast("float64")
        net.initialize()
        own = KINDS_OF_OPTIMIZERS[maker](net.collect_params(), make_optimizer(name))
        if is_root:
            net.load_parameters(saved)
            own.load_states(path)
        hvd.broadcast_parameters(net.collect_params(), 1)
        hvd.broadcast_optimizer_state(own, 1)
        assert isinstance(own._optimizer, hvd.DistributedOptimizer) == (maker == "optimizer")
        assert all(updater.optimizer is own._optimizer for updater in own._updaters)
        assert dict(enumerate(own._params)) == own._optimizer.param_dict
        train(net, own, 10, is_alone=False)
        return read(net)

    check(ranks.run(body), read(plain))


@pytest.mark.parametrize("has_buckets", [False, True])
def test_states_of_a_module_are_broadcast_for_all_its_buckets(ranks: RankPool, *, has_buckets: bool) -> None:
    def body() -> object:
        output = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=1, no_bias=True, name="f")
        output = mx.sym.LinearRegressionOutput(output, mx.sym.Variable("label"))
        shapes, one = ([("data", (1, 1))], [("label", (1, 1))]), [mx.nd.ones((1, 1))]
        if has_buckets:
            module = mx.mod.BucketingModule(lambda _: (output, ("data",), ("label",)), default_bucket_key=1)
        else:
            module = mx.mod.Module(output, label_names=["label"])
        with pytest.raises(ValueError, match=r"broadcast_optimizer_state: .*init_optimizer\(kvstore=None"):
            hvd.broadcast_optimizer_state(module)
        module.bind(*shapes)
        module.init_params(mx.init.One())
        with pytest.raises(ValueError, match=r"broadcast_optimizer_state: .*init_optimizer\(kvstore=None"):
            hvd.broadcast_optimizer_state(module)
        optimizer = hvd.DistributedOptimizer(mx.optimizer.create("sgd", learning_rate=0.5, momentum=0.5))
        module.init_optimizer(kvstore=None, optimizer=optimizer)
        inner = module._curr_module if has_buckets else module
        if hvd.rank() == 0:
            inner._updater.set_states(pickle.dumps({0: mx.nd.full((1, 1), 4.0)}))
            optimizer.momentum = 1.0
        hvd.broadcast_optimizer_state(module)
        module.forward_backward(  # the prediction equals the label, so the gradient is zero
            mx.io.DataBatch(one, one, bucket_key=2, provide_data=shapes[0], provide_label=shapes[1])
        )
        module.update()
        return module.get_params()[0]["f_weight"].asscalar(), inner._optimizer is optimizer

    assert ranks.run(body) == [(5.0, True)] * 2


def test_states_of_something_else_are_not_broadcast(ranks: RankPool) -> None:
    def body() -> None:
        params = make_parameters((1,))
        for other in (mx.optimizer.create("sgd"), params):
            with pytest.raises(ValueError, match=r"broadcast_optimizer_state takes a Trainer or a Module, not "):
                hvd.broadcast_optimizer_state(other)

    ranks.run(body, size=1)


def test_a_distributed_optimizer_pickled_with_its_wrapper_is_loaded_without_the_wrapper(ranks: RankPool) -> None:
    def body() -> object:
        wrapped = hvd.DistributedOptimizer(mx.optimizer.create("sgd", learning_rate=1.0))
        updater = mx.optimizer.get_updater(mx.optimizer.create("adam"))
        updater.set_states(pickle.dumps(({}, wrapped)))
        return type(updater.optimizer) is mx.optimizer.SGD

    assert ranks.run(body) == [True] * 2


def test_hooks_of_others_on_saved_states_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another library replaces the method that saves states, before the first wrapper is made and again afterwards."""
    keep_wrappers()  # the hooks of this package are in place, as in all other tests
    calls = []

    def count(name: str) -> None:
        inner = mx.optimizer.Updater.get_states

        def get_states(updater: mx.optimizer.Updater, dump_optimizer: bool = False) -> bytes:  # noqa: FBT002 - MXNet's signature
            calls.append(name)
            return inner(updater, dump_optimizer)

        monkeypatch.setattr(mx.optimizer.Updater, "get_states", get_states)

    monkeypatch.setattr(mx.optimizer.Updater, "set_states", mx.optimizer.Updater.set_states)
    count("before")
    keep_wrappers.cache_clear()
    wrapped = hvd.DistributedOptimizer(mx.optimizer.create("sgd"))
    count("after")
    hvd.DistributedOptimizer(mx.optimizer.create("sgd"))
    assert b"worker_runtime" not in mx.optimizer.get_updater(wrapped).get_states(dump_optimizer=True)
    assert calls == ["after", "before"]
