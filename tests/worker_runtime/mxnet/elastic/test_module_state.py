"""The state of a training with a Module: fit begins where it is, and its callbacks commit."""

import warnings
from pathlib import Path
from typing import Any

import mxnet as mx
import numpy as np
import pytest

import worker_runtime.mxnet as hvd
from tests.worker_runtime.ranks import RankPool
from worker_runtime.errors import CheckpointError, HostsUpdatedInterrupt
from worker_runtime.mxnet.functions import list_updaters

BATCH, COUNT = 2, 16
VALUES = np.random.RandomState(1).normal(size=(COUNT, 3)).astype("float32")


def make_symbol(width: int = 4) -> mx.sym.Symbol:
    net = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=width, name="first")
    net = mx.sym.BatchNorm(net, name="norm")
    net = mx.sym.FullyConnected(net, num_hidden=1, name="second")
    return mx.sym.LinearRegressionOutput(net, name="softmax")


def prepare(module: mx.mod.BaseModule, seed: int, **settings: str) -> mx.mod.BaseModule:
    mx.random.seed(seed)
    module.bind([("data", (BATCH, 3))], [("softmax_label", (BATCH, 1))], **settings)
    module.init_params(mx.init.Normal(1.0))
    optimizer = mx.optimizer.create("sgd", learning_rate=0.1, momentum=0.9, rescale_grad=1 / BATCH)
    module.init_optimizer(kvstore=None, optimizer=hvd.DistributedOptimizer(optimizer))
    return module


def make_module(seed: int, **more: object) -> mx.mod.Module:
    return prepare(mx.mod.Module(make_symbol(**more), label_names=["softmax_label"]), seed)


def make_bucketing(seed: int) -> mx.mod.BucketingModule:
    def make(_: object) -> tuple[mx.sym.Symbol, list[str], list[str]]:
        return make_symbol(), ["data"], ["softmax_label"]

    return prepare(mx.mod.BucketingModule(make, default_bucket_key=1), seed)


def take_step(module: mx.mod.BaseModule, factor: float = 1.0) -> None:
    batch = mx.io.DataBatch(
        [mx.nd.array(VALUES[:BATCH] * factor)],
        [mx.nd.ones((BATCH, 1))],
        bucket_key=1,
        provide_data=[("data", (BATCH, 3))],
        provide_label=[("softmax_label", (BATCH, 1))],
    )
    module.forward_backward(batch)
    module.update()


def describe(module: mx.mod.BaseModule) -> dict[str, Any]:
    arguments, auxiliary = module.get_params()
    found: dict[str, Any] = {name: array.asnumpy().tolist() for name, array in {**arguments, **auxiliary}.items()}
    (updater,) = list_updaters("", module)
    found["momenta"] = {index: state.asnumpy().tolist() for index, state in updater.states.items()}
    found["counts"] = updater.optimizer.num_update, updater.optimizer.lr
    return found


@pytest.mark.parametrize("make", [make_module, make_bucketing])
def test_a_module_is_committed_restored_and_synchronised(ranks: RankPool, make: Any) -> None:
    def body() -> object:
        module = make(hvd.rank())
        take_step(module)
        state = hvd.elastic.ModuleState(module=module, epoch=0)
        before = describe(module)
        take_step(module)
        assert describe(module) != before
        state.restore()
        assert describe(module) == before
        state.sync()
        synced = describe(module)
        assert (synced == before) == (hvd.rank() == 0)
        take_step(module)
        state.restore()
        assert describe(module) == synced
        take_step(module)
        return synced, describe(module)

    first, second = ranks.run(body)
    assert first == second


@pytest.mark.parametrize("after", ["restore", "reset"])
def test_gradients_that_accumulate_begin_anew_with_the_function(ranks: RankPool, after: str) -> None:
    def body() -> None:
        module = prepare(mx.mod.Module(make_symbol(), label_names=["softmax_label"]), 0, grad_req="add")
        state = hvd.elastic.ModuleState(module=module)
        take_step(module)

        def measure() -> float:
            return sum(each.abs().sum().asscalar() for (each,) in module._exec_group.grad_arrays)

        assert measure() > 0
        getattr(state, after)()
        assert measure() == 0

    ranks.run(body, size=1)


def test_a_module_continues_from_a_checkpoint_to_the_last_bit(ranks: RankPool, tmp_path: Path) -> None:
    def body() -> object:
        module = make_module(hvd.rank())
        state = hvd.elastic.ModuleState(module=module, step=0)
        state.sync()
        for state.step in range(1, 6):
            take_step(module, hvd.rank() + state.step / 3)
            if state.step == 3:
                state.save(tmp_path)
        other = make_module(hvd.rank() + 5)
        resumed = hvd.elastic.ModuleState(module=other, step=0)
        assert resumed.load(tmp_path)
        while resumed.step < 5:
            resumed.step += 1
            take_step(other, hvd.rank() + resumed.step / 3)
        with pytest.raises(CheckpointError, match=r"module: it has first_weight of shape \(4, 3\), not \(5, 3\)"):
            hvd.elastic.ModuleState(module=make_module(0, width=5), step=0).load(tmp_path)
        return describe(module) == describe(other)

    assert ranks.run(body)[0]


class Rows(mx.io.DataIter):  # type: ignore[misc]  # mxnet has no types
    """The batches of a sampler, and what was asked for."""

    def __init__(self, sampler: hvd.elastic.ElasticSampler) -> None:
        super().__init__(BATCH)
        self.provide_data, self.provide_label = [("data", (BATCH, 3))], [("softmax_label", (BATCH, 1))]
        self.sampler = sampler
        self.reset()

    def reset(self) -> None:
        """Begin anew."""
        self.left = list(self.sampler)

    def iter_next(self) -> bool:
        """Go to the next batch."""
        self.rows, self.left = self.left[:BATCH], self.left[BATCH:]
        return len(self.rows) == BATCH

    def getdata(self) -> list[mx.nd.NDArray]:
        """The rows of the batch."""
        return [mx.nd.array(VALUES[self.rows])]

    def getlabel(self) -> list[mx.nd.NDArray]:
        """The sums of the batch's rows."""
        return [mx.nd.array(VALUES[self.rows].sum(axis=1, keepdims=True))]

    def getpad(self) -> int:
        """None."""
        return 0


def test_fit_begins_where_the_state_is_and_uses_each_sample_once(ranks: RankPool) -> None:
    def body(breaks: int) -> object:
        module = make_module(hvd.rank())
        sampler = hvd.elastic.ElasticSampler(range(COUNT), seed=3)
        state = hvd.elastic.ModuleState(module=module, sampler=sampler, epoch=0)
        data = Rows(sampler)
        steps = []

        @hvd.elastic.run
        def train(state: hvd.elastic.ModuleState) -> None:
            def note(parameters: Any) -> None:
                rows = (parameters.locals["data_batch"].data[0].asnumpy()[:, None] == VALUES).all(-1).argmax(-1)
                steps.append((parameters.epoch, *rows.tolist()))

            def interrupt(_: object) -> None:
                if len(steps) == breaks:
                    raise HostsUpdatedInterrupt(skip_sync=False)

            module.fit(
                data,
                kvstore=None,
                begin_epoch=state.begin(data),
                num_epoch=3,
                eval_metric="mse",
                batch_end_callback=[note, state.commit_every(1), interrupt],
                epoch_end_callback=state.end_epoch,
            )

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # fit warns that the module is bound and initialised
            train(state)
        return steps, state.epoch, describe(module)

    for breaks in (0, 1, 3, 4, 12):  # none, in an epoch, after its last batch, after the last of all
        (first, epoch, module), (second, _, other) = ranks.run(body, breaks)
        for each in range(3):
            used = [row for step in first + second if step[0] == each for row in step[1:]]
            assert sorted(used) == list(range(COUNT)), (breaks, each)
        assert epoch == 3
        assert {**module, **dict.fromkeys(["norm_moving_mean", "norm_moving_var"])} == {
            **other,
            **dict.fromkeys(["norm_moving_mean", "norm_moving_var"]),
        }


def test_without_a_sampler_each_epoch_ends_with_a_commit(ranks: RankPool) -> None:
    def body() -> object:
        module = make_module(0)
        state = hvd.elastic.ModuleState(module=module, epoch=0)
        data = mx.io.NDArrayIter(VALUES, VALUES.sum(axis=1, keepdims=True), BATCH)
        assert state.begin(data) == 0
        for _ in range(2):
            state.end_epoch(0, None, None, None)
        state.epoch = 9
        state.restore()
        return state.begin(data)

    assert ranks.run(body) == [2, 2]


def test_a_module_without_an_optimizer_and_what_is_no_module_are_refused() -> None:
    module = mx.mod.Module(make_symbol(), label_names=["softmax_label"])
    with pytest.raises(ValueError, match=r"no optimizer yet; call its bind\(\), init_params\(\) and init_optimizer"):
        hvd.elastic.ModuleState(module=module)
    with pytest.raises(ValueError, match="ModuleState takes a Module or a BucketingModule, not Dense"):
        hvd.elastic.ModuleState(module=mx.gluon.nn.Dense(1))


def test_a_state_without_an_epoch_and_commits_every_no_batch_are_refused(ranks: RankPool) -> None:
    def body() -> None:
        state = hvd.elastic.ModuleState(module=make_module(0))
        data = mx.io.NDArrayIter(VALUES, VALUES.sum(axis=1, keepdims=True), BATCH)
        for method, call in (("begin", lambda: state.begin(data)), ("end_epoch", state.end_epoch)):
            with pytest.raises(ValueError, match=rf"{method}\(\) needs the state's epoch; create it with ModuleState"):
                call()
        with pytest.raises(ValueError, match="takes a number of batches, at least 1, not 0"):
            state.commit_every(0)

    ranks.run(body, size=1)
