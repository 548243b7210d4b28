"""Handles of operations on arrays: begun, asked for, awaited; and what goes wrong."""

from collections.abc import Callable

import mxnet as mx
import numpy as np
import pytest

import worker_runtime.mxnet as hvd
from tests.worker_runtime.ranks import RankPool


def test_handles_are_numbered_from_one_and_give_arrays_in_any_order(ranks: RankPool) -> None:
    def body() -> object:
        x = mx.nd.ones((2, 2)) * (hvd.rank() + 1)
        handles = [
            hvd.allreduce_async(x, op=hvd.Sum),
            hvd.allgather_async(x),
            hvd.broadcast_async(x, 1),
            hvd.alltoall_async(x),
            hvd.reducescatter_async(x, hvd.Sum),
            hvd.grouped_allreduce_async([x, x], op=hvd.Max),
            hvd.grouped_allgather_async([x]),
            hvd.grouped_reducescatter_async([x]),
        ]
        results = [hvd.synchronize(handle) for handle in reversed(handles)]
        arrays = [each if isinstance(each, list | tuple) else [each] for each in reversed(results)]
        assert all(isinstance(array, mx.nd.NDArray) for group in arrays for array in group)
        return handles, [[array.asnumpy().ravel()[0] for array in group] for group in arrays]

    values = [[3], [1], [2], [1, 1], [3], [2, 2], [1], [1.5]]
    assert ranks.run(body) == [([*range(1, 9)], values)] * 2


def test_operations_find_each_other_by_name_in_whatever_order(ranks: RankPool) -> None:
    def body() -> object:
        names = ["a", "b", "c"] if hvd.rank() else ["c", "b", "a"]
        handles = {name: hvd.allreduce_async(mx.nd.ones(1) * ord(name), name=name) for name in names}
        return [hvd.synchronize(handles[name]).asscalar() for name in "abc"]

    assert ranks.run(body) == [[97, 98, 99]] * 2


def test_a_handle_is_not_done_before_the_others_have_come(ranks: RankPool) -> None:
    def body() -> object:
        early = None
        if hvd.rank() == 0:
            handle = hvd.allreduce_async(mx.nd.ones(1), name="x")
            early = hvd.poll(handle)
        hvd.barrier()
        if hvd.rank() == 1:
            handle = hvd.allreduce_async(mx.nd.ones(1), name="x")
        hvd.synchronize(handle)
        with pytest.raises(ValueError, match="was not created or has been cleared"):
            hvd.poll(handle)
        return early

    assert ranks.run(body) == [False, None]


def test_ranks_that_differ_are_told_so_as_a_python_error_and_go_on(ranks: RankPool) -> None:
    def body() -> object:
        x = mx.nd.ones(2 + hvd.rank())
        y = x * 2  # the engine goes on too
        with pytest.raises(hvd.HorovodInternalError, match=r"(?i)mismatched allreduce tensor shapes"):
            hvd.allreduce(x, name="x")
        handle = hvd.allreduce_async_(x, name="x")
        with pytest.raises(hvd.HorovodInternalError, match=r"(?i)mismatched"):
            hvd.synchronize(handle)
        x += y
        return x.asnumpy()[0], hvd.allreduce(mx.nd.ones(1), name="x").asscalar()

    assert ranks.run(body) == [(3, 1)] * 2


def test_what_has_failed_in_the_engine_is_raised_and_nothing_is_sent(ranks: RankPool) -> None:
    def body() -> object:
        with pytest.raises(mx.base.MXNetError):
            hvd.allreduce(mx.nd.random.normal(0, -1, (2, 2)), name="x")
        return hvd.allreduce(mx.nd.ones((2, 2)), name="x").asnumpy().tolist()

    assert ranks.run(body) == [[[1, 1], [1, 1]]] * 2


def test_a_name_in_flight_is_refused(ranks: RankPool) -> None:
    def body() -> object:
        if hvd.rank() == 1:
            hvd.barrier()
            return hvd.allreduce(mx.nd.ones(1), name="x").asscalar()
        handle = hvd.allreduce_async(mx.nd.ones(1), name="x")
        with pytest.raises(ValueError, match="same name"):
            hvd.allreduce_async(mx.nd.ones(1), name="x")
        hvd.barrier()
        return hvd.synchronize(handle).asscalar()

    assert ranks.run(body) == [1, 1]


def test_a_rank_that_has_joined_changes_no_result(ranks: RankPool) -> None:
    def body() -> object:
        results = []
        if hvd.rank() == 1:
            results = [
                hvd.allreduce(mx.nd.ones(2) * 6, name=f"{op}", op=op).asnumpy().tolist()
                for op in (hvd.Sum, hvd.Average, hvd.Min, hvd.Product)
            ]
        return results, hvd.join()

    assert ranks.run(body) == [([], 1), ([[6, 6], [3, 3], [6, 6], [6, 6]], 1)]


def test_before_init_everything_is_an_error() -> None:
    for begin in (hvd.allreduce, hvd.allgather, hvd.alltoall, hvd.reducescatter, hvd.allreduce_async):
        with pytest.raises(hvd.HorovodInternalError, match="has not been initialized"):
            begin(mx.nd.ones(1))


def make_spoilt() -> mx.nd.NDArray:
    """One that the engine cannot compute: it finds out that there is no root."""
    return mx.nd.linalg.potrf(-mx.nd.eye(2))


MISTAKES: dict[str, Callable[[Callable[..., object], str | None], object]] = {
    "op": lambda call, name: call(mx.nd.ones((2, 2)), name=name, op=99),
    "too many": lambda call, name: call(mx.nd.ones((2, 2)), name=name, extra=1),
    "numpy": lambda call, name: call(np.ones((2, 2)), name=name),
    "sparse": lambda call, name: call(mx.nd.ones((2, 2)).tostype("row_sparse"), name=name),
    "bool": lambda call, name: call(mx.nd.ones((2, 2)).astype("bool"), name=name),
    "spoilt": lambda call, name: call(make_spoilt(), name=name),
}
OPERATIONS: dict[str, tuple[Callable[..., object], Callable[[str | None], object]]] = {  # any call, and the right one
    "allreduce": (hvd.allreduce, lambda name: hvd.allreduce(mx.nd.ones((2, 2)), name=name)),
    "in place": (hvd.allreduce_, lambda name: hvd.allreduce(mx.nd.ones((2, 2)), name=name)),
    "asynchronous": (hvd.allreduce_async, lambda name: hvd.allreduce(mx.nd.ones((2, 2)), name=name)),
    "group": (
        lambda x, **more: hvd.grouped_allreduce([mx.nd.ones(1), x], **more),
        lambda name: hvd.grouped_allreduce([mx.nd.ones(1), mx.nd.ones((2, 2))], name=name),
    ),
    "allgather": (hvd.allgather, lambda name: hvd.allgather(mx.nd.ones((2, 2)), name=name)),
    "broadcast": (
        lambda x, **more: hvd.broadcast(x, 1, **more),
        lambda name: hvd.broadcast(mx.nd.ones((2, 2)), 1, name=name),
    ),
    "alltoall": (
        lambda x, **more: hvd.alltoall(mx.nd.ones((2, 1)), x, **more),  # all these are wrong splits
        lambda name: hvd.alltoall(mx.nd.ones((2, 1)), name=name),
    ),
    "reducescatter": (hvd.reducescatter, lambda name: hvd.reducescatter(mx.nd.ones((2, 2)), name=name)),
}


@pytest.mark.parametrize("name", ["a", None])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_call_that_fails_on_one_rank_is_refused_to_the_others_and_counts_everywhere(
    ranks: RankPool, operation: str, name: str | None
) -> None:
    def body() -> object:
        call, right = OPERATIONS[operation]
        told = {}
        for mistake, make in MISTAKES.items():
            try:
                if hvd.rank() == 1:
                    make(call, name)
                else:
                    right(name)
            except (ValueError, TypeError, RuntimeError) as error:  # also MXNet's own
                told[mistake] = f"{type(error).__name__}: {error}"
            right(name)
            hvd.allreduce(mx.nd.ones(1), name="loss")
        return told

    theirs, mine = ranks.run(body)
    assert theirs.keys() == mine.keys() == MISTAKES.keys()
    for mistake, cause in mine.items():
        assert f"was given up on rank 1, before anything was sent: {cause}" in theirs[mistake]
