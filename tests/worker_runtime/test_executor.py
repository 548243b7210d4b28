"""Order, failures and endings of submitted operations."""

import os
import signal
import time
from pathlib import Path

import pytest
import torch

import worker_runtime.torch as hvd
from tests.worker_runtime.ranks import RankPool, Ranks
from worker_runtime.collectives import AVERAGE, Allgather, Allreduce, allreduce_async
from worker_runtime.executor import Executor, Handle


def start_allreduce(name: str, value: float = 1.0) -> Handle[torch.Tensor]:
    from worker_runtime.runtime import RUNTIME  # noqa: PLC0415 - the one of the process that plays the rank

    return allreduce_async(RUNTIME.executor, torch.full((2,), float(value)), AVERAGE, name)


def test_operations_may_be_awaited_in_any_order_and_again(ranks: RankPool) -> None:
    def body() -> object:
        handles = [start_allreduce(str(index), index + hvd.rank()) for index in range(5)]
        gathered = hvd.allgather(torch.tensor([hvd.rank()])).tolist()  # while others are pending
        results = [handle.wait()[0].item() for handle in reversed(handles)]
        assert all(handle.is_done() for handle in handles)
        return results, handles[0].wait().tolist(), gathered

    assert ranks.run(body) == [([4.5, 3.5, 2.5, 1.5, 0.5], [0.5, 0.5], [0, 1])] * 2


def test_an_operation_is_not_done_before_all_ranks_take_part(ranks: RankPool) -> None:
    def body() -> object:
        hvd.barrier()
        if hvd.rank() == 0:
            handle = start_allreduce("early")
            before = handle.is_done()
            hvd.broadcast_object(None)
            handle.wait()
            return before, handle.is_done()
        time.sleep(0.2)  # what rank 0 looks at
        handle = start_allreduce("early")
        hvd.broadcast_object(None)
        handle.wait()
        return None

    assert ranks.run(body)[0] == (False, True)


def test_a_rank_that_waits_in_vain_can_leave_and_the_others_learn_it(ranks: RankPool, tmp_path: Path) -> None:
    """An operation is pending that the other rank, alive and busy, has not joined; leaving must not wait for it."""
    gone = tmp_path / "rank-0-has-gone"
    os.mkfifo(gone)

    def body() -> object:
        hvd.barrier()
        if hvd.rank() == 1:
            gone.read_text()  # busy until then
            with pytest.raises(hvd.HorovodInternalError, match="allreduce 'late' failed on rank 1"):
                start_allreduce("late").wait()
            return None
        handle = start_allreduce("unanswered")
        started = time.monotonic()
        hvd.shutdown()
        seconds = time.monotonic() - started
        gone.write_text("")
        with pytest.raises(hvd.HorovodInternalError, match=r"allreduce 'unanswered' .* Horovod has been shut down"):
            handle.wait()
        return seconds

    assert ranks.run(body)[0] < 5


def test_one_ranks_shutdown_fails_what_is_pending_on_the_other(ranks: RankPool) -> None:
    def body() -> object:
        hvd.barrier()
        if hvd.rank() == 1:
            hvd.shutdown()
            return None
        with pytest.raises(hvd.HorovodInternalError, match="allreduce 'late' failed on rank 0"):
            start_allreduce("late").wait()
        return None

    ranks.run(body)


def test_a_closed_executor_takes_nothing() -> None:
    executor = Executor(None)
    executor.submit(Allreduce(torch.ones(1), AVERAGE)).wait()
    executor.close()
    with pytest.raises(hvd.HorovodInternalError, match="has not been initialized"):
        executor.submit(Allgather(torch.ones(1)))


def test_a_lost_worker_becomes_an_error_that_names_operation_rank_and_cause(own_ranks: Ranks) -> None:
    def body() -> object:
        hvd.barrier()
        if hvd.rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        started = time.monotonic()
        with pytest.raises(
            hvd.HorovodInternalError, match=r"allreduce 'loss' failed on rank 0: .*[Cc]onnection"
        ) as error:
            hvd.allreduce(torch.ones(1), name="loss")
        assert "\n" not in str(error.value)
        return time.monotonic() - started

    connection = own_ranks
    with pytest.raises(AssertionError, match=f"rank 1: ended with {-signal.SIGKILL}") as error:
        connection.run(body)
    assert "rank 0" not in str(error.value)


def test_a_signal_handler_runs_while_a_collective_waits(ranks: RankPool) -> None:
    def body() -> object:
        hvd.barrier()
        if hvd.rank() == 1:
            time.sleep(0.3)  # what rank 0 waits for; the alarm comes earlier
            hvd.barrier()
            return None
        heard = []
        signal.signal(signal.SIGALRM, lambda *_: heard.append(time.monotonic()))
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        hvd.barrier()
        return time.monotonic() - heard[0]

    assert ranks.run(body)[0] > 0.1
