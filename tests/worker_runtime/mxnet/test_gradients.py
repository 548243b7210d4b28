"""Averaging begins while MXNet still computes, and knows what it averages."""

from collections.abc import Sequence
from types import SimpleNamespace

import mxnet as mx
import numpy as np
import pytest

import worker_runtime.mxnet as hvd
from tests.worker_runtime.mxnet.gate import WIDTH, Gate, GatedNet
from tests.worker_runtime.mxnet.networks import make_spoilt
from tests.worker_runtime.mxnet.training import MakeTrainer, in_both_ways, learn, make_net, make_sgd, make_wrapped
from tests.worker_runtime.ranks import RankPool
from tests.worker_runtime.threads import World
from worker_runtime.collectives.allreduce import Allreduce
from worker_runtime.collectives.combination import Combination
from worker_runtime.coordination.ordering.requests import Reduction, Release
from worker_runtime.groups.torch_groups import TorchGroup, Work
from worker_runtime.membership.runtime import RUNTIME
from worker_runtime.mxnet.gradients import ArrayReducer, Gradient, is_alone, make_settings


@pytest.mark.parametrize("hybrid", [False, True], ids=["imperative", "hybrid"])
@pytest.mark.parametrize(
    ("make_trainer", "first"),
    # By their names the layers' order may be another one, as it is with more than ten of a kind: MXNet's own trainer
    # goes by these, ours by that in which they are used.
    [(hvd.DistributedTrainer, "a"), (hvd.DistributedTrainer, "z"), (make_wrapped, "a")],
    ids=["trainer", "trainer, other names", "optimizer"],
)
def test_the_first_allreduce_begins_before_the_last_gradient_is_ready(
    ranks: RankPool, make_trainer: MakeTrainer, first: str, *, hybrid: bool
) -> None:
    def body() -> object:
        net = GatedNet(first)
        net.initialize()
        if hybrid:
            net.hybridize()
        trainer = make_trainer(net.collect_params(), mx.optimizer.create("sgd"))
        was_open: list[bool] = []
        start = Allreduce.start

        def start_and_open(operation: Allreduce, group: TorchGroup, release: Release) -> Sequence[Work]:
            was_open.append(Gate.is_open.is_set())
            Gate.is_open.set()
            return start(operation, group, release)

        Gate.timed_out.clear()
        Gate.is_open.set()
        Allreduce.start = start_and_open
        try:
            for step in range(5):
                if step == 4:  # the buckets have been planned
                    Gate.is_open.clear()
                    was_open.clear()
                with mx.autograd.record():
                    loss = net(mx.nd.ones((2, WIDTH))).sum()
                loss.backward()
                trainer.step(2)
        finally:
            Allreduce.start = start
        return was_open[0], len(was_open) > 1, any(Gate.timed_out)

    assert ranks.run(body) == [(False, True, False)] * 2


def make_reducer(group_count: int = 0) -> ArrayReducer:
    """One of all ranks."""
    return ArrayReducer(make_settings(1.0), hvd.global_process_set, group_count)


def reduce(reducer: ArrayReducer, gradients: list[Gradient]) -> None:
    """One step."""
    with reducer.preparing():
        reducer.reduce(gradients)


def test_arrays_that_are_replaced_are_found_anew(ranks: RankPool) -> None:
    def body() -> object:
        reducer = make_reducer()
        found = []
        for shape in [(2,), (2,), (2,), (3,), (3,), (3,)]:
            arrays = [mx.nd.full(shape, hvd.rank() + 1.0), mx.nd.full((700, 700), hvd.rank() + 1.0)]
            reduce(reducer, [Gradient(str(index), array) for index, array in enumerate(arrays)])
            found.append([np.unique(array.asnumpy()).tolist() for array in arrays])
        return found

    assert ranks.run(body) == [[[[1.5], [1.5]]] * 6] * 2


def test_integers_have_no_gradients(ranks: RankPool) -> None:
    def body() -> object:
        arrays = [mx.nd.full((2,), hvd.rank(), dtype=dtype) for dtype in ("int32", "float32")]
        reduce(make_reducer(), [Gradient(str(index), array) for index, array in enumerate(arrays)])
        return [array.asnumpy().tolist() for array in arrays]

    assert ranks.run(body) == [[[0, 0], [0.5, 0.5]], [[1, 1], [0.5, 0.5]]]


@pytest.mark.parametrize("group_count", [0, 2])
@pytest.mark.parametrize("place", [0, 1])  # 1: before anything was asked for; 0: after, where there are several buckets
@pytest.mark.parametrize("steps", [0, 3], ids=["warm-up", "overlap"])
def test_a_gradient_that_could_not_be_computed_ends_the_step_on_all_ranks_and_no_other(
    ranks: RankPool, steps: int, place: int, group_count: int
) -> None:
    def body() -> object:
        reducer = make_reducer(group_count)
        good = [Gradient(str(index), mx.nd.ones((600, 600))) for index in range(2)]
        for _ in range(steps):
            reduce(reducer, good)
        mine = [*good]
        if hvd.rank() == 0:
            mine[place] = Gradient(str(place), make_spoilt())
        with pytest.raises(RuntimeError) as caught:  # MXNet's own, or HorovodInternalError
            reduce(reducer, mine)
        for gradient in good:
            gradient.array[:] = hvd.rank()
        for _ in range(4):
            reduce(reducer, good)
        values = [np.unique(gradient.array.asnumpy()).tolist() for gradient in good]
        return type(caught.value).__name__, str(caught.value), values

    (mine, cause, values), (theirs, text, same) = ranks.run(body)
    assert (mine, theirs) == ("MXNetError", "OperationRefusedError")
    assert "not positive definite" in cause
    assert "failed on rank 0" in text
    assert cause in text
    assert "zero_grad" not in text
    assert values == same == [[0.5], [0.5]]


def test_settings_say_how_gradients_travel() -> None:
    plain = make_settings(4.0)
    assert (plain.how, plain.in_place) == (Combination(Reduction.AVERAGE, 0.25, 4.0), True)
    assert (plain.wire_dtype, plain.compressor) == (None, None)
    half = make_settings(1.0, hvd.Compression.fp16)
    assert (str(half.wire_dtype), half.compressor) == ("torch.float16", None)
    assert make_settings(1.0, hvd.Compression.fp16()).compressor is not None


def test_a_rank_without_others_averages_alone(ranks: RankPool) -> None:
    def body() -> object:
        sets = hvd.global_process_set, hvd.add_process_set([0, 1]), hvd.add_process_set([1])
        return [is_alone(each) for each in sets]

    assert ranks.run(body, size=3) == [[False, False, True], [False, False, True], [False, True, True]]
    assert ranks.run(lambda: is_alone(hvd.global_process_set), size=1) == [True]


def test_a_plan_of_an_earlier_job_ends_with_the_generation_that_has_loaded_it(ranks: RankPool) -> None:
    """A worker that comes before the first step does not know it."""

    def body() -> list[float]:
        reducer = ArrayReducer(make_settings(1.0), hvd.global_process_set)
        if hvd.rank() == 0:
            reducer.resume((5, (0, 1)))
        hvd.shutdown()
        hvd.init()
        arrays = [mx.nd.array([value + hvd.rank()]) for value in (10, 20)]
        with reducer.preparing():
            reducer.reduce([Gradient(name, array) for name, array in zip("ab", arrays, strict=True)])
        return [array.asscalar() for array in arrays]

    assert ranks.run(body, size=2) == [[10.5, 20.5]] * 2


@in_both_ways
@pytest.mark.parametrize("checks_nan", [False, True])
def test_the_steps_of_the_only_rank_left_are_committed(
    monkeypatch: pytest.MonkeyPatch, make: MakeTrainer, *, checks_nan: bool
) -> None:
    """Else its sampler deals the samples of these steps again."""
    if checks_nan:
        monkeypatch.setenv("HVD_CHECK_NAN", "1")
    engine = World(1, is_elastic=True).engines[0]
    monkeypatch.setattr(RUNTIME, "world", SimpleNamespace(engine=engine))
    net = make_net()
    trainer = make_sgd(net.collect_params(), make)
    for _ in range(2):
        learn(net, mx.nd.ones((2, 6), dtype="float64"))
        trainer.step(2)
    assert engine.asked == ["commit"] * 2
