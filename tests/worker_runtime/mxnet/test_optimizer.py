"""The distributed optimizer is the user's own, but for the gradients.

How it trains, test_trainer.py shows together with the distributed trainer.
"""

import pickle
import threading
from copy import deepcopy
from typing import Any

import mxnet as mx
import numpy as np
import pytest

import worker_runtime.mxnet as hvd
from tests.worker_runtime.mxnet.networks import make_spoilt
from tests.worker_runtime.mxnet.training import (
    check,
    learn,
    make_net,
    make_optimizer,
    make_parameters,
    make_values,
    make_wrapped,
    read,
    subtract,
)
from tests.worker_runtime.ranks import RankPool
from worker_runtime.mxnet.optimizer import unwrap

ROUNDS = 20


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


def test_an_optimizer_of_the_users_updates_in_its_own_way(ranks: RankPool) -> None:
    def body() -> object:
        params = make_parameters((2,), (3,))
        plain = Noting(learning_rate=0.5)
        trainer = make_wrapped(params, plain)
        params["p1"].lr_mult = 0.5
        return subtract(trainer, params, 1, 1, 1), plain.calls

    assert ranks.run(body) == [([[-3.5], [-1.25]], [0, 1] * 3)] * 2


def test_weights_of_several_dtypes_are_updated_in_their_order(ranks: RankPool) -> None:
    """Nadam, for example, has a value that all its updates change."""

    def body() -> object:
        params = make_parameters((2,), (3,), (1,), dtypes=["float32", "float64", "float32"])
        plain = Noting(learning_rate=0.5)
        return subtract(make_wrapped(params, plain), params, 1), plain.calls

    assert ranks.run(body) == [([[-0.5]] * 3, [0, 1, 2])] * 2


def test_weights_that_are_updated_one_by_one_find_each_other_by_their_index(ranks: RankPool) -> None:
    """Each rank has both updates in flight together, begun in an order of its own."""

    def body() -> object:
        optimizer = hvd.DistributedOptimizer(mx.optimizer.create("sgd", learning_rate=1.0))
        weights = [mx.nd.ones((2,)), mx.nd.ones((3,), dtype="float64")]

        def update(index: int) -> None:
            gradient = mx.nd.full(weights[index].shape, hvd.rank() + 1.0, dtype=weights[index].dtype)
            call = optimizer.update if index else optimizer.update_multi_precision
            call(index, weights[index], gradient, None)

        for _ in range(ROUNDS):
            threads = [threading.Thread(target=update, args=(index,)) for index in (hvd.rank(), 1 - hvd.rank())]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        return [weight.asnumpy().tolist() for weight in weights]

    assert ranks.run(body) == [[[1 - 1.5 * ROUNDS] * 2, [1 - 1.5 * ROUNDS] * 3]] * 2


def test_one_gradient_that_cannot_be_computed_on_one_rank_fails_on_all(ranks: RankPool) -> None:
    def body() -> object:
        optimizer = hvd.DistributedOptimizer(mx.optimizer.create("sgd", learning_rate=1.0))
        weight, gradient = mx.nd.zeros((2, 2)), mx.nd.ones((2, 2)) * hvd.rank()
        spoilt = make_spoilt(2) if hvd.rank() else gradient
        with pytest.raises(RuntimeError) as caught:  # MXNet's own, or HorovodInternalError
            optimizer.update(0, weight, spoilt, None)
        optimizer.update(0, weight, gradient, None)
        return str(caught.value), weight.asnumpy()[0, 0]

    (text, value), (cause, same) = ranks.run(body)
    assert f"failed on rank 1 before anything was sent: MXNetError: {cause}" in text
    assert value == same == -0.5


def test_other_attributes_reach_the_wrapped_optimizer(ranks: RankPool) -> None:
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
            learn(net, batch)
            trainer.step(len(batch))
        return read(net)

    check(ranks.run(lambda: train(hvd.rank(), hvd.size())), train(0, 1))


def test_an_optimizer_is_pickled_and_copied_with_its_settings(ranks: RankPool) -> None:
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


def test_the_error_for_several_contexts_says_what_to_do(ranks: RankPool) -> None:
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


@pytest.mark.parametrize("contexts", [1, 2])
def test_a_key_value_store_is_refused_before_it_updates_weights(ranks: RankPool, contexts: int) -> None:
    """A store ignores the errors of a step: a worker would train on with other weights than the others."""

    def body() -> None:
        net = make_net([mx.cpu(number) for number in range(contexts)])
        optimizer = hvd.DistributedOptimizer(make_optimizer("sgd"))
        store = "device" if contexts > 1 else mx.kv.create("local")
        trainer = mx.gluon.Trainer(net.collect_params(), optimizer, kvstore=store)
        with pytest.raises(ValueError, match=r"ignores errors.*pass kvstore=None"):
            trainer.step(1)
        plain = mx.kv.create("local")
        plain.set_optimizer(make_optimizer("sgd"))

    ranks.run(body, size=1)


def test_wrapping_again_replaces_the_first_wrapping() -> None:
    plain = mx.optimizer.create("sgd")
    again = hvd.DistributedOptimizer(hvd.DistributedOptimizer(plain))
    assert again._optimizer is plain
    assert unwrap(again) is plain
    assert unwrap(plain) is plain


def test_an_object_that_is_no_optimizer_is_refused() -> None:
    with pytest.raises(TypeError, match=r"needs an optimizer.*not str"):
        hvd.DistributedOptimizer("sgd")


def test_an_optimizer_updates_only_after_init() -> None:
    hvd.shutdown()
    optimizer = hvd.DistributedOptimizer(mx.optimizer.create("sgd"))
    with pytest.raises(ValueError, match="has not been initialized"):
        optimizer.update(0, mx.nd.ones(1), mx.nd.ones(1), None)
