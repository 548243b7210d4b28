"""The distributed optimizer: the user's own to everybody, but for the gradients."""

import pickle
from copy import deepcopy
from typing import Any

import mxnet as mx
import numpy as np
import pytest

import worker_runtime.mxnet as hvd
from tests.worker_runtime.mxnet.training import (
    check,
    differentiate,
    make_net,
    make_optimizer,
    make_parameters,
    make_values,
    make_wrapped,
    read,
)
from tests.worker_runtime.ranks import RankPool
from worker_runtime.mxnet.states import unwrap


class Noting(mx.optimizer.Optimizer):
    """Subtracts the gradient, and notes how it is called; wants one weight at a time."""

    def __init__(self, **settings: object) -> None:
        super().__init__(**settings)
        self.calls: list[Any] = []

    def create_state(self, _index: int, weight: mx.nd.NDArray) -> mx.nd.NDArray:
        """Ones of its own."""
        return mx.nd.ones_like(weight)

    def update(self, index: int, weight: mx.nd.NDArray, grad: mx.nd.NDArray, state: mx.nd.NDArray) -> None:
        """Update one weight."""
        self.calls.append(index)
        weight -= self._get_lr(index) * (grad * self.rescale_grad) * state

    def _get_lr(self, index: int) -> float:
        return 2 * super()._get_lr(index)


def test_the_batch_size_counts(ranks: RankPool) -> None:
    def body() -> object:
        params = make_parameters((2,))
        trainer = make_wrapped(params, mx.optimizer.create("sgd", learning_rate=1.0))
        values = []
        for batch_size in (10, 5, 1):
            differentiate(params, hvd.rank() + 1)
            trainer.step(batch_size)
            values.append(params["p0"].data().asnumpy()[0])
        return values

    for values in ranks.run(body):
        assert values == pytest.approx([1 - 0.15, 1 - 0.45, 1 - 1.95])


@pytest.mark.parametrize("settings", [{}, {"num_groups": 2}, {"gradient_predivide_factor": 4.0}], ids=str)
def test_gradients_of_several_dtypes_are_averaged(ranks: RankPool, settings: dict[str, Any]) -> None:
    def body() -> object:
        dtypes = ("float32", "float16", "float64", "float32", "float16")
        params = make_parameters((4,), (3, 2), (600, 600), (2,), (1,), dtypes=dtypes)
        plain = mx.optimizer.create("sgd", learning_rate=1.0, multi_precision=True)
        trainer = mx.gluon.Trainer(params, hvd.DistributedOptimizer(plain, **settings), kvstore=None)
        for _ in range(3):
            differentiate(params, hvd.rank() + 1)
            trainer.step(2)
        return [np.unique(parameter.data().asnumpy().astype("float64")).tolist() for parameter in params.values()]

    assert ranks.run(body) == [[[1 - 3 * 0.75]] * 5] * 2


def test_an_optimizer_of_the_users_updates_in_its_own_way(ranks: RankPool) -> None:
    def body() -> object:
        params = make_parameters((2,), (3,))
        plain = Noting(learning_rate=0.5)
        trainer = make_wrapped(params, plain)
        params["p1"].lr_mult = 0.5
        for _ in range(3):
            differentiate(params, hvd.rank() + 1)
            trainer.step(1)
        return plain.calls, [parameter.data().asnumpy()[0] for parameter in params.values()]

    assert ranks.run(body) == [([0, 1] * 3, [-3.5, -1.25])] * 2


def test_weights_are_updated_one_by_one_as_well(ranks: RankPool) -> None:
    def body() -> object:
        optimizer = hvd.DistributedOptimizer(mx.optimizer.create("sgd", learning_rate=1.0, momentum=0.5))
        weights = [mx.nd.ones((2,)), mx.nd.ones((3,), dtype="float64")]
        states = [optimizer.create_state_multi_precision(index, weight) for index, weight in enumerate(weights)]
        # Each rank in an order of its own: they find each other by the index.
        for _ in range(2):
            for index in (0, 1):
                gradient = mx.nd.full(weights[index].shape, hvd.rank() + 1.0, dtype=weights[index].dtype)
                update = optimizer.update if index else optimizer.update_multi_precision
                update(index, weights[index], gradient, states[index])
        return [weight.asnumpy().tolist() for weight in weights]

    assert ranks.run(body) == [[[1 - 1.5 - 2.25] * 2, [1 - 1.5 - 2.25] * 3]] * 2


def test_one_gradient_that_cannot_be_computed_on_one_rank_fails_on_all(ranks: RankPool) -> None:
    def body() -> object:
        optimizer = hvd.DistributedOptimizer(mx.optimizer.create("sgd", learning_rate=1.0))
        weight, gradient = mx.nd.zeros((2, 2)), mx.nd.ones((2, 2)) * hvd.rank()
        spoilt = mx.nd.linalg.potrf(-mx.nd.eye(2)) if hvd.rank() else gradient  # the engine finds no root
        with pytest.raises(RuntimeError) as caught:  # MXNet's own, or HorovodInternalError
            optimizer.update(0, weight, spoilt, None)
        optimizer.update(0, weight, gradient, None)
        return str(caught.value), weight.asnumpy()[0, 0]

    (text, value), (cause, same) = ranks.run(body)
    assert f"given up on rank 1, before anything was sent: MXNetError: {cause}" in text
    assert value == same == -0.5


def test_a_local_key_value_store_updates_through_it(ranks: RankPool) -> None:
    def body() -> object:
        store = mx.kv.create("local")
        store.set_optimizer(hvd.DistributedOptimizer(mx.optimizer.create("sgd", learning_rate=1.0)))
        store.init(3, mx.nd.ones(2))
        found = mx.nd.zeros(2)
        store.push(3, mx.nd.full(2, hvd.rank() + 1.0))
        store.pull(3, out=found)
        return found.asnumpy().tolist()

    assert ranks.run(body) == [[-0.5, -0.5]] * 2


def test_everything_else_reaches_the_wrapped_optimizer(ranks: RankPool) -> None:
    def body() -> None:
        plain = mx.optimizer.create("sgd", learning_rate=0.5, momentum=0.9, param_idx2name={0: "a_weight", 1: "b_bias"})
        wrapped = hvd.DistributedOptimizer(plain)
        assert isinstance(wrapped, mx.optimizer.Optimizer)
        wrapped.rescale_grad = 0.125
        wrapped.set_learning_rate(0.25)
        wrapped.set_lr_mult({0: 2.0})
        wrapped.set_wd_mult({0: 3.0})
        wrapped.note = "kept"
        wrapped.aggregate_num = 7
        assert (plain.rescale_grad, plain.lr, plain.lr_mult, plain.note) == (0.125, 0.25, {0: 2.0}, "kept")
        assert plain.wd_mult == {0: 3.0, "b_bias": 0.0}
        assert plain.aggregate_num == 7
        assert (wrapped.momentum, wrapped.learning_rate, wrapped._get_lr(0)) == (0.9, 0.25, 0.5)
        del wrapped.note
        assert not hasattr(plain, "note")
        with pytest.raises(AttributeError, match="'SGD' object has no attribute 'nothing'"):
            _ = wrapped.nothing
        plain.momentum = 0.8
        assert wrapped.momentum == 0.8

    ranks.run(body, size=1)


def test_schedulers_and_changes_of_the_scale_count(ranks: RankPool) -> None:
    def train(rank: int, size: int) -> list[np.ndarray]:
        net = make_net()
        schedule = mx.lr_scheduler.FactorScheduler(step=2, factor=0.5, base_lr=0.2)
        plain = mx.optimizer.create("sgd", lr_scheduler=schedule, clip_gradient=0.3, wd=0.1)
        optimizer = hvd.DistributedOptimizer(plain) if size > 1 else plain
        trainer = mx.gluon.Trainer(net.collect_params(), optimizer, kvstore=None)
        for step in range(6):
            if step == 3:
                trainer._scale = 0.5
            batch = mx.nd.array(make_values(8, 6, seed=step)[rank::size], dtype="float64")
            with mx.autograd.record():
                loss = net(batch).square()
            loss.backward()
            trainer.step(len(batch))
        return read(net)

    check(ranks.run(lambda: train(hvd.rank(), hvd.size())), train(0, 1))


def test_saved_states_are_those_of_the_wrapped_optimizer(ranks: RankPool, tmp_path: object) -> None:
    def body(folder: str) -> object:
        path = f"{folder}/{hvd.rank()}.states"
        nets = [make_net(), make_net()]
        trainers = [make_wrapped(net.collect_params(), make_optimizer("momentum")) for net in nets]

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
        assert isinstance(trainers[1]._optimizer, hvd.DistributedOptimizer)
        for which in (0, 1):
            step(which)
        return [read(net) for net in nets]

    replicas = ranks.run(body, str(tmp_path))
    check([second for _, second in replicas], replicas[0][0])


def test_it_is_pickled_and_copied_with_its_settings(ranks: RankPool) -> None:
    def body() -> object:
        pair = hvd.add_process_set([0, 1])
        wrapped = hvd.DistributedOptimizer(mx.optimizer.create("sgd", learning_rate=1.0, momentum=0.5), 2.0, 3, pair)
        found = []
        for again in (pickle.loads(pickle.dumps(wrapped)), deepcopy(wrapped)):  # noqa: S301 - made here
            assert type(again) is hvd.DistributedOptimizer
            assert (again.momentum, again._gradient_predivide_factor, again._num_groups) == (0.5, 2.0, 3)
            weight = mx.nd.zeros(1)
            again.update(0, weight, mx.nd.full(1, hvd.rank() + 1.0), again.create_state(0, weight))
            found.append(weight.asscalar())
        return found

    assert ranks.run(body, size=3) == [[-1.5, -1.5], [-1.5, -1.5], [-3.0, -3.0]]


def test_sparse_gradients_are_averaged(ranks: RankPool) -> None:
    def train_table(rank: int, size: int) -> np.ndarray:
        table = mx.gluon.nn.Embedding(6, 2, sparse_grad=True, prefix="table_")
        table.initialize(init="ones")
        plain = mx.optimizer.create("adagrad", learning_rate=0.5)
        optimizer = hvd.DistributedOptimizer(plain) if size > 1 else plain
        trainer = mx.gluon.Trainer(table.collect_params(), optimizer, kvstore=None)
        for step in range(4):
            words = (np.array([step, step + 1, 5, 2]) % 6)[rank::size]
            with mx.autograd.record():
                loss = table(mx.nd.array(words)).square()
            loss.backward()
            trainer.step(len(words))
        return table.weight.data().asnumpy()

    replicas = ranks.run(lambda: train_table(hvd.rank(), hvd.size()))
    check([[replica] for replica in replicas], [train_table(0, 1)], tolerance=1e-5)


def test_a_worker_with_several_contexts_is_told_what_to_do(ranks: RankPool) -> None:
    def body() -> None:
        contexts = [mx.cpu(0), mx.cpu(1)]
        net = make_net(contexts)
        trainer = make_wrapped(net.collect_params(), make_optimizer("sgd"))
        with mx.autograd.record():
            losses = [net(mx.nd.ones((1, 6), dtype="float64", ctx=context)) for context in contexts]
        mx.autograd.backward(losses)
        with pytest.raises(ValueError, match=r"on cpu\(0\) and on cpu\(1\).*use hvd.DistributedTrainer"):
            trainer.step(1)

    ranks.run(body)


def test_ranks_outside_the_process_set_update_by_themselves(ranks: RankPool) -> None:
    def body() -> object:
        pair = hvd.add_process_set([0, 2])
        params = make_parameters((1,))
        optimizer = hvd.DistributedOptimizer(mx.optimizer.create("sgd", learning_rate=1.0), process_set=pair)
        trainer = mx.gluon.Trainer(params, optimizer, kvstore=None)
        for _ in range(4):
            differentiate(params, hvd.rank() + 1)
            trainer.step(1)
        return params["p0"].data().asscalar()

    assert ranks.run(body, size=3) == [-7.0, -7.0, -7.0]


def test_wrapping_again_replaces_the_first_wrapping() -> None:
    plain = mx.optimizer.create("sgd")
    again = hvd.DistributedOptimizer(hvd.DistributedOptimizer(plain))
    assert again._optimizer is plain
    assert unwrap(again) is plain
    assert unwrap(plain) is plain


def test_what_is_no_optimizer_is_refused() -> None:
    with pytest.raises(TypeError, match=r"needs an optimizer.*not str"):
        hvd.DistributedOptimizer("sgd")


def test_it_updates_only_after_init() -> None:
    hvd.shutdown()
    optimizer = hvd.DistributedOptimizer(mx.optimizer.create("sgd"))
    with pytest.raises(ValueError, match="has not been initialized"):
        optimizer.update(0, mx.nd.ones(1), mx.nd.ones(1), None)
