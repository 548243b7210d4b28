"""Handles of operations on arrays: begun, asked for, awaited; and what goes wrong."""

import mxnet as mx
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
