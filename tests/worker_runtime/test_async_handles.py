"""What becomes of operations that were begun asynchronously."""

import pytest
import torch

import worker_runtime.torch as hvd
from tests.worker_runtime.ranks import RankPool
from worker_runtime.torch import ops as mpi_ops


def test_handles_of_all_kinds_are_numbered_from_one_and_synchronised_in_any_order(ranks: RankPool) -> None:
    def body() -> object:
        x = torch.full((2, 2), float(hvd.rank() + 1))
        handles = [
            hvd.allreduce_async(x, op=hvd.Sum),
            hvd.allgather_async(x),
            hvd.broadcast_async(x, 1),
            hvd.alltoall_async(x),
            hvd.reducescatter_async(x, op=hvd.Sum),
            hvd.grouped_allreduce_async([x, x], op=hvd.Max),
            hvd.grouped_allgather_async([x]),
            hvd.grouped_reducescatter_async([x], op=hvd.Sum),
        ]
        results = [hvd.synchronize(handle) for handle in reversed(handles)][::-1]
        single = [results[index].tolist() for index in (0, 1, 2, 4)]
        pair = [each.tolist() for each in results[3]]
        groups = [(type(result) is tuple, [each.tolist() for each in result]) for result in results[5:]]
        return handles, single, pair, groups

    for outcome in ranks.run(body):
        handles, single, pair, groups = outcome
        assert handles == [1, 2, 3, 4, 5, 6, 7, 8]
        assert single == [[[3.0] * 2] * 2, [[1.0] * 2] * 2 + [[2.0] * 2] * 2, [[2.0] * 2] * 2, [[3.0] * 2]]
        assert pair == [[[1.0] * 2, [2.0] * 2], [1, 1]]
        assert groups == [
            (True, [[[2.0] * 2] * 2] * 2),
            (True, [[[1.0] * 2] * 2 + [[2.0] * 2] * 2]),
            (True, [[[3.0] * 2]]),
        ]


def test_in_place_operations_give_the_tensors_that_were_given(ranks: RankPool) -> None:
    def body() -> object:
        x, y, z = (torch.full((2,), float(hvd.rank() + 1)) for _ in range(3))
        handles = hvd.allreduce_async_(x), hvd.broadcast_async_(y, 1), hvd.grouped_allreduce_async_([z])
        first, second, (third,) = [hvd.synchronize(handle) for handle in handles]
        return (first is x, second is y, third is z), (x.tolist(), y.tolist(), z.tolist())

    assert ranks.run(body) == [((True, True, True), ([1.5] * 2, [2.0] * 2, [1.5] * 2))] * 2


def test_an_operation_is_not_done_before_all_ranks_have_begun_it(ranks: RankPool) -> None:
    def body() -> object:
        if hvd.rank() == 0:
            handle = hvd.allreduce_async(torch.ones(1), name="early")
            before = hvd.poll(handle)
            hvd.barrier()  # rank 1 begins only now
            hvd.barrier()
            result = hvd.synchronize(handle)
            return before, result.item()
        hvd.barrier()
        handle = hvd.allreduce_async(torch.ones(1), name="early")
        hvd.barrier()
        return hvd.synchronize(handle).item()

    assert ranks.run(body) == [(False, 1.0), 1.0]


def test_ranks_may_begin_named_operations_in_different_orders(ranks: RankPool) -> None:
    def body() -> object:
        names = [f"{index}" for index in range(20)]
        order = names if hvd.rank() == 0 else names[::-1]
        handles = {name: hvd.allreduce_async(torch.tensor([int(name)]), name=name, op=hvd.Sum) for name in order}
        return [hvd.synchronize(handles[name]).item() for name in names]

    assert ranks.run(body) == [[2 * index for index in range(20)]] * 2


@pytest.mark.parametrize("ask", [hvd.poll, hvd.synchronize])
def test_unknown_and_synchronised_handles_are_an_error(ranks: RankPool, ask: object) -> None:
    """Horovod's synchronize returns None for them, which hides that the caller waits for nothing."""

    def body() -> object:
        handle = hvd.allreduce_async(torch.ones(1))
        hvd.synchronize(handle)
        for wrong in (handle, handle + 1, 0):
            with pytest.raises(ValueError, match=f"Handle {wrong} was not created or has been cleared"):
                ask(wrong)

    ranks.run(body, size=1)


def test_a_failed_operation_raises_once_and_the_runtime_stays_usable(ranks: RankPool) -> None:
    def body() -> object:
        handle = hvd.allreduce_async(torch.ones(hvd.rank() + 1), name="x")
        with pytest.raises(hvd.HorovodInternalError, match=r"(?i)mismatched allreduce tensor shapes"):
            hvd.synchronize(handle)
        with pytest.raises(ValueError, match="has been cleared"):
            hvd.synchronize(handle)
        return hvd.synchronize(hvd.allreduce_async(torch.ones(1), name="x")).item()

    assert ranks.run(body) == [1.0, 1.0]


def test_a_name_in_flight_is_an_error_at_once_but_not_for_another_kind_or_set(ranks: RankPool) -> None:
    def body() -> object:
        some = hvd.add_process_set([0])
        x = torch.ones(2)
        begun = [hvd.allreduce_async(x, name="x"), hvd.allgather_async(x, name="x")]
        if hvd.rank() == 0:
            begun.append(hvd.allreduce_async(x, name="x", process_set=some))
            with pytest.raises(ValueError, match="a tensor with the same name is currently being processed"):
                hvd.allreduce_async(x, name="x")
        hvd.barrier()
        for handle in begun:
            hvd.synchronize(handle)
        if hvd.rank() == 1:
            with pytest.raises(hvd.HorovodInternalError, match="given up on rank 0"):
                hvd.allreduce(x, name="x")
        return hvd.allreduce(x, name="x").tolist()

    assert ranks.run(body) == [[1.0, 1.0]] * 2


def test_shutdown_and_init_begin_a_new_table(ranks: RankPool) -> None:
    def body() -> object:
        first = hvd.allreduce_async(torch.ones(1)), hvd.allreduce_async(torch.ones(1))
        kept = len(mpi_ops._handle_map), 2 in mpi_ops._handle_map, list(mpi_ops._handle_map)
        hvd.shutdown()
        with pytest.raises(ValueError, match="has not been initialized"):
            hvd.synchronize(first[0])
        gone = len(mpi_ops._handle_map), 2 in mpi_ops._handle_map, list(mpi_ops._handle_map)
        hvd.init()
        with pytest.raises(ValueError, match="Handle 2 was not created or has been cleared"):
            hvd.poll(2)
        return first, kept, gone, hvd.allreduce_async(torch.ones(1))

    assert ranks.run(body, size=1) == [((1, 2), (2, True, [1, 2]), (0, False, []), 1)]


def test_a_handle_that_is_pending_elsewhere_fails_when_a_rank_shuts_down(ranks: RankPool) -> None:
    def body() -> object:
        if hvd.rank() == 0:
            handle = hvd.allreduce_async(torch.ones(1), name="never")
            hvd.barrier()
            with pytest.raises(hvd.HorovodInternalError):
                hvd.synchronize(handle)
        else:
            hvd.barrier()
            hvd.shutdown()

    ranks.run(body)


def test_unnamed_operations_in_a_set_of_some_ranks_do_not_shift_the_others(ranks: RankPool) -> None:
    """Horovod numbers all by one counter of the process, so that ranks in several sets drift apart."""

    def body() -> object:
        some = hvd.add_process_set([0])
        if hvd.rank() == 0:
            for _ in range(3):
                hvd.allreduce(torch.ones(1), process_set=some)
            hvd.barrier(some)
        return hvd.allreduce(torch.ones(1), op=hvd.Sum).item(), hvd.allgather(torch.ones(1)).tolist()

    assert ranks.run(body) == [(2.0, [1.0, 1.0])] * 2
