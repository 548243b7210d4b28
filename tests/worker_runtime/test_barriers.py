"""Barrier and join."""

import pytest
import torch

import worker_runtime.torch as hvd
from tests.worker_runtime.operations import KINDS, NEEDED, call
from tests.worker_runtime.ranks import RankPool
from worker_runtime.barriers import barrier, join


def test_a_barrier_holds_the_ranks_of_its_set_alone(ranks: RankPool) -> None:
    def body() -> None:
        some = hvd.add_process_set([0, 1])
        if some.included():
            barrier(some)  # while rank 2 is elsewhere
            barrier(process_set=some)
        barrier()

    ranks.run(body, size=3)


def test_a_barrier_needs_nothing_of_what_is_pending(ranks: RankPool) -> None:
    def body() -> object:
        handle = hvd.allreduce_async(torch.ones(1), name="later") if hvd.rank() == 0 else None
        barrier()
        barrier()
        if handle is None:
            handle = hvd.allreduce_async(torch.ones(1), name="later")
        return hvd.synchronize(handle).item()

    assert ranks.run(body) == [1.0, 1.0]


@pytest.mark.parametrize("last", [0, 1, 2])
def test_all_ranks_learn_which_joined_last(ranks: RankPool, last: int) -> None:
    def body() -> object:
        if hvd.rank() == last:
            for _ in range(3):
                hvd.allreduce(torch.ones(1), name="again")  # the others have joined, or will
            hvd.allreduce(torch.ones(1), name="once")
        return join()

    assert ranks.run(body, size=3) == [last] * 3


def test_a_joined_rank_changes_no_result_but_counts_in_the_average(ranks: RankPool) -> None:
    """Horovod contributes zeros to minimum, maximum and product too."""

    def body() -> object:
        results = []
        if hvd.rank() == 0:
            for dtype in (torch.float32, torch.int32):
                for op in (hvd.Average, hvd.Sum, hvd.Min, hvd.Max, hvd.Product):
                    x = torch.tensor([2, -4], dtype=dtype)
                    results.append(hvd.allreduce(x, op=op, name=f"{op}.{dtype}").tolist())
        join(device=0)
        return results, hvd.allreduce(torch.ones(1), op=hvd.Sum).item()

    assert ranks.run(body) == [([[1, -2], *[[2, -4]] * 4] * 2, 2.0), ([], 2.0)]


def test_unnamed_operations_find_each_other_after_a_join_of_ranks_that_had_called_fewer(ranks: RankPool) -> None:
    """In Horovod their counters have drifted apart for good."""

    def body() -> object:
        for calls in (3 * hvd.rank(), hvd.rank()):
            for _ in range(calls):
                hvd.allreduce(torch.ones(1))
            join()
        barrier()
        return hvd.allreduce(torch.ones(1), op=hvd.Sum).item(), hvd.allgather(torch.ones(1)).tolist()

    assert ranks.run(body) == [(2.0, [1.0, 1.0])] * 2


@pytest.mark.parametrize("form", ["allgather", "broadcast", "alltoall", "reducescatter", "barrier"])
def test_operations_other_than_allreduce_raise_while_a_rank_has_joined(ranks: RankPool, form: str) -> None:
    def call_it() -> None:
        if form == "barrier":
            barrier()
        else:
            call(hvd, form, torch.ones(2), name="x", **NEEDED.get(KINDS[form], {}))

    def body() -> None:
        if hvd.rank() == 0:
            with pytest.raises(hvd.HorovodInternalError, match=r"(?i)not supported with join at this time"):
                call_it()
        join()
        call_it()

    ranks.run(body)


def test_a_joined_rank_takes_part_in_small_operations_of_a_set_that_was_never_used(ranks: RankPool) -> None:
    def body() -> object:
        some = hvd.add_process_set([0, 1])
        total = 0.0
        if hvd.rank() == 0:
            total = hvd.allreduce(torch.ones(1), op=hvd.Sum, name="small", process_set=some).item()
        join()
        return total

    assert ranks.run(body, size=3) == [1.0, 0.0, 0.0]


def test_unnamed_operations_of_a_set_find_each_other_when_it_takes_the_number_of_another(ranks: RankPool) -> None:
    """Its members have counted differently in the former one."""

    def body() -> None:
        former = hvd.add_process_set([0, 1])
        number = former.process_set_id
        if former.included():
            barrier(former)
        hvd.remove_process_set(former)
        later = hvd.add_process_set([1, 2])
        assert later.process_set_id == number
        if later.included():
            barrier(later)

    ranks.run(body, size=3)


def test_alone_join_and_barrier_return(ranks: RankPool) -> None:
    assert ranks.run(lambda: (barrier(), join()), size=1) == [(None, 0)]
