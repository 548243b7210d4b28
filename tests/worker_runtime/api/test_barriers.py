"""Barrier and join."""

import pytest
import torch

import worker_runtime.torch as hvd
from tests.worker_runtime.ranks import RankPool
from worker_runtime.api.functions import barrier, join


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


def test_alone_join_and_barrier_return(ranks: RankPool) -> None:
    assert ranks.run(lambda: (barrier(), join()), size=1) == [(None, 0)]
