"""Gradient averaging below the optimizer: buckets, order, missing gradients."""

import gc
import weakref
from collections.abc import Callable

import pytest
import torch

import worker_runtime.torch as hvd
from tests.worker_runtime.ranks import RankPool
from worker_runtime.collectives import Combination, Reduction
from worker_runtime.errors import ExcessBackwardError
from worker_runtime.executor import Executor, Handle, Operation
from worker_runtime.reducer import GradientReducer


class Recorder(Executor):
    """An executor of the present world that notes what is submitted."""

    def __init__(self, inner: Executor) -> None:
        self.inner = inner
        self.rank, self.size = inner.rank, inner.size
        self.titles: list[str] = []

    def submit(self, operation: Operation[torch.Tensor]) -> Handle[torch.Tensor]:
        """Note and pass on."""
        self.titles.append(operation.title)
        return self.inner.submit(operation)


def make_recorder() -> Recorder:
    from worker_runtime.runtime import RUNTIME  # noqa: PLC0415 - the one of the process that plays the rank

    return Recorder(RUNTIME.executor)


def make_parameters(count: int = 3) -> list[torch.Tensor]:
    return [torch.full((4,), float(index + 1), requires_grad=True) for index in range(count)]


def make_reducer(
    parameters: list[torch.Tensor], recorder: Executor, **settings: object
) -> tuple[GradientReducer, Callable[[], None]]:
    reducer = GradientReducer(
        [(f"p{index}", parameter) for index, parameter in enumerate(parameters)],
        lambda: recorder,
        bounds=(16, 16),
        **settings,
    )
    return reducer, reducer.synchronize


def test_buckets_start_during_backward_in_the_planned_order_whatever_the_order_of_readiness(ranks: RankPool) -> None:
    def body() -> object:
        parameters, recorder = make_parameters(), make_recorder()
        reducer, synchronize = make_reducer(parameters, recorder)
        order = [2, 1, 0] if hvd.rank() == 0 else [0, 2, 1]
        started = []
        for index in order:
            (parameters[index] * (hvd.rank() + 1)).sum().backward()
            started.append(len(recorder.titles))
        synchronize()
        assert not reducer.is_pending
        return started, recorder.titles, [parameter.grad.tolist() for parameter in parameters]

    results = ranks.run(body)
    titles = [f"allreduce 'gradients.{index}'" for index in range(3)]
    assert [started for started, _, _ in results] == [[1, 2, 3], [0, 1, 3]]
    assert all(seen == titles for _, seen, _ in results)
    assert all(gradients == [[1.5] * 4] * 3 for _, _, gradients in results)


def test_a_parameter_without_gradient_counts_as_zeros_and_gets_the_others(ranks: RankPool) -> None:
    def body() -> object:
        parameters, recorder = make_parameters(2), make_recorder()
        _reducer, synchronize = make_reducer(parameters, recorder)
        used = parameters if hvd.rank() == 0 else parameters[:1]
        sum((parameter * 2).sum() for parameter in used).backward()
        synchronize()
        return [parameter.grad.tolist() for parameter in parameters]

    assert ranks.run(body) == [[[2.0] * 4, [1.0] * 4]] * 2


def test_gradients_of_several_dtypes_and_layouts_are_reduced_apart(ranks: RankPool) -> None:
    def body() -> object:
        wide = torch.zeros(2, 3, dtype=torch.float64, requires_grad=True)
        narrow = torch.zeros(3, dtype=torch.bfloat16, requires_grad=True)
        weights = torch.arange(6.0, dtype=torch.float64).reshape(3, 2).t() * (hvd.rank() + 1)
        reducer, synchronize = make_reducer([wide, narrow], make_recorder(), how=Combination(Reduction.SUM))
        ((wide * weights).sum() + narrow.sum()).backward()
        synchronize()
        return reducer.is_pending, wide.grad.tolist(), narrow.grad.tolist()

    for pending, wide, narrow in ranks.run(body):
        assert not pending
        assert wide == [[0.0, 6.0, 12.0], [3.0, 9.0, 15.0]]
        assert narrow == [2.0, 2.0, 2.0]


def test_several_passes_are_summed_locally_before_one_reduction(ranks: RankPool) -> None:
    def body() -> object:
        (parameter,), recorder = make_parameters(1), make_recorder()
        _reducer, synchronize = make_reducer([parameter], recorder, passes=3)
        counts = []
        for _ in range(3):
            (parameter * (hvd.rank() + 1)).sum().backward()
            counts.append(len(recorder.titles))
        synchronize()
        return counts, parameter.grad.tolist()

    assert ranks.run(body) == [([0, 0, 1], [4.5] * 4)] * 2


def test_fewer_passes_than_announced_are_reduced_when_synchronized(ranks: RankPool) -> None:
    def body() -> object:
        (parameter,), recorder = make_parameters(1), make_recorder()
        _reducer, synchronize = make_reducer([parameter], recorder, passes=3)
        (parameter * (hvd.rank() + 1)).sum().backward()
        synchronize()
        return parameter.grad.tolist()

    assert ranks.run(body) == [[1.5] * 4] * 2


def test_one_pass_too_many_raises_out_of_backward(ranks: RankPool) -> None:
    def body() -> object:
        (parameter,), recorder = make_parameters(1), make_recorder()
        reducer, _synchronize = make_reducer([parameter], recorder)
        parameter.sum().backward()
        with pytest.raises(
            ExcessBackwardError, match=r"Gradients were computed more than backward_passes_per_step .*p0"
        ):
            parameter.sum().backward()
        reducer.discard()

    ranks.run(body)


def test_a_sparse_gradient_is_refused(ranks: RankPool) -> None:
    def body() -> object:
        table = torch.nn.Embedding(3, 2, sparse=True)
        _reducer, _synchronize = make_reducer([table.weight], make_recorder())
        with pytest.raises(ValueError, match="the gradient of p0 is sparse"):
            table(torch.tensor([1])).sum().backward()

    ranks.run(body)


def test_a_discarded_step_leaves_no_trace(ranks: RankPool) -> None:
    def body() -> object:
        parameters, recorder = make_parameters(2), make_recorder()
        reducer, synchronize = make_reducer(parameters, recorder)
        reducer.discard()
        assert recorder.titles == []
        used = parameters if hvd.rank() == 0 else parameters[:1]  # other buckets have started on each rank
        sum(parameter.sum() for parameter in used).backward()
        reducer.discard()
        discarded = len(recorder.titles)
        for parameter in parameters:
            parameter.grad = None
        sum((parameter * (hvd.rank() + 1)).sum() for parameter in parameters).backward()
        synchronize()
        return discarded, [parameter.grad.tolist() for parameter in parameters]

    assert ranks.run(body) == [(2, [[1.5] * 4] * 2)] * 2


def test_a_world_of_one_reduces_nothing(ranks: RankPool) -> None:
    def body() -> object:
        (parameter,), recorder = make_parameters(1), make_recorder()
        _reducer, synchronize = make_reducer([parameter], recorder)
        for _ in range(2):
            parameter.sum().backward()
        synchronize()
        return recorder.titles, parameter.grad.tolist()

    assert ranks.run(body, size=1) == [([], [2.0] * 4)]


def test_a_dropped_reducer_no_longer_averages(ranks: RankPool) -> None:
    def body() -> object:
        (parameter,), recorder = make_parameters(1), make_recorder()
        reducer, _ = make_reducer([parameter], recorder)
        gone = weakref.ref(reducer)
        del reducer, _
        gc.collect()
        parameter.sum().backward()
        return gone() is None, recorder.titles

    assert ranks.run(body) == [(True, [])] * 2
