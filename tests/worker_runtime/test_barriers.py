"""Barrier and join."""

import pytest
import torch

import worker_runtime.torch as hvd
from tests.worker_runtime.ranks import RankPool


def test_a_barrier_holds_the_ranks_of_its_set_alone(ranks: RankPool) -> None:
    def body() -> object:
        some = hvd.add_process_set([0, 1])
        if some.included():
            hvd.barrier(some)  # while rank 2 is elsewhere
            hvd.barrier(process_set=some)
        hvd.barrier()
        return True

    assert ranks.run(body, size=3) == [True] * 3


def test_a_barrier_needs_nothing_of_what_is_pending(ranks: RankPool) -> None:
    def body() -> object:
        if hvd.rank() == 0:
            handle = hvd.allreduce_async(torch.ones(1), name="later")
            hvd.barrier()
            hvd.barrier()
            return hvd.synchronize(handle).item()
        hvd.barrier()
        hvd.barrier()
        return hvd.allreduce(torch.ones(1), name="later").item()

    assert ranks.run(body) == [1.0, 1.0]


@pytest.mark.parametrize("last", [0, 1, 2])
def test_all_learn_who_joined_last(ranks: RankPool, last: int) -> None:
    def body() -> object:
        if hvd.rank() == last:
            for _ in range(3):
                hvd.allreduce(torch.ones(1), name="again")  # the others have joined, or will
            hvd.allreduce(torch.ones(1), name="once")
        return hvd.join()

    others_join = ranks.run(body, size=3)
    assert len(set(others_join)) == 1
    assert others_join[0] == last


def test_who_has_joined_changes_nothing_but_counts_in_the_average(ranks: RankPool) -> None:
    """Horovod contributes zeros to minimum, maximum and product too."""

    def body() -> object:
        results = {}
        if hvd.rank() == 0:
            for dtype in (torch.float32, torch.int32):
                x = torch.tensor([2, -4], dtype=dtype)
                for name, op in {"Average": 0, "Sum": 1, "Min": 3, "Max": 4, "Product": 5}.items():
                    results[name, str(dtype)] = hvd.allreduce(x, op=op, name=f"{name}.{dtype}").tolist()
        hvd.join(device=0)
        return results, hvd.allreduce(torch.ones(1), op=hvd.Sum).item()

    (results, first), (_, second) = ranks.run(body)
    assert (first, second) == (2.0, 2.0)
    for (name, _), values in results.items():
        assert values == ([1, -2] if name == "Average" else [2, -4])


def test_unnamed_operations_find_each_other_after_a_join_of_ranks_that_had_called_fewer(ranks: RankPool) -> None:
    """In Horovod their counters have drifted apart for good."""

    def body() -> object:
        for _ in range(3 * hvd.rank()):
            hvd.allreduce(torch.ones(1))
        hvd.join()
        for _ in range(hvd.rank()):
            hvd.allreduce(torch.ones(1))
        hvd.join()
        hvd.barrier()
        return hvd.allreduce(torch.ones(1), op=hvd.Sum).item(), hvd.allgather(torch.ones(1)).tolist()

    assert ranks.run(body) == [(2.0, [1.0, 1.0])] * 2


@pytest.mark.parametrize("kind", ["allgather", "broadcast", "alltoall", "reducescatter", "barrier"])
def test_other_operations_are_an_error_while_somebody_has_joined(ranks: RankPool, kind: str) -> None:
    calls = {
        "allgather": lambda: hvd.allgather(torch.ones(2), name="x"),
        "broadcast": lambda: hvd.broadcast(torch.ones(2), 0, name="x"),
        "alltoall": lambda: hvd.alltoall(torch.ones(2), name="x"),
        "reducescatter": lambda: hvd.reducescatter(torch.ones(2), name="x"),
        "barrier": hvd.barrier,
    }
    call = calls[kind]

    def body() -> object:
        if hvd.rank() == 0:
            with pytest.raises(hvd.HorovodInternalError, match=r"(?i)not supported with join at this time"):
                call()
        hvd.join()
        call()

    ranks.run(body)


def test_alone_join_and_barrier_return_at_once(ranks: RankPool) -> None:
    def body() -> object:
        hvd.barrier()
        return hvd.join()

    assert ranks.run(body, size=1) == [0]


@pytest.mark.parametrize("call", [hvd.barrier, hvd.join])
def test_before_init_it_is_an_error(call: object) -> None:
    assert callable(call)
    with pytest.raises(hvd.HorovodInternalError, match="has not been initialized"):
        call()


def test_unnamed_operations_of_a_set_find_each_other_when_it_takes_the_number_of_another(ranks: RankPool) -> None:
    """Its members have counted differently in the former one."""

    def body() -> object:
        former = hvd.add_process_set([0, 1])
        number = former.process_set_id
        if former.included():
            hvd.barrier(former)
        hvd.remove_process_set(former)
        later = hvd.add_process_set([1, 2])
        assert later.process_set_id == number
        if later.included():
            hvd.barrier(later)
        return True

    assert ranks.run(body, size=3) == [True] * 3


def test_a_joined_rank_takes_part_in_small_operations_of_a_set_that_was_never_used(ranks: RankPool) -> None:
    def body() -> object:
        some = hvd.add_process_set([0, 1])
        total = 0.0
        if hvd.rank() == 0:
            total = hvd.allreduce(torch.ones(1), op=hvd.Sum, name="small", process_set=some).item()
        hvd.join()
        return total

    assert ranks.run(body, size=3) == [1.0, 0.0, 0.0]
