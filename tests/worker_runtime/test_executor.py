"""Order, failures and endings of submitted operations."""

import os
import random
import signal
import time
from pathlib import Path

import pytest
import torch

import worker_runtime.torch as hvd
from tests.worker_runtime.ranks import RankPool, Ranks
from worker_runtime.collectives import AVERAGE, SUM, Allreduce, Barrier
from worker_runtime.core.questions import GLOBAL_SET
from worker_runtime.errors import DuplicateNameError
from worker_runtime.executor import Executor
from worker_runtime.handles import Handle

LARGE = 100_000  # elements: more than travel inside a question


def start_allreduce(name: str, value: float = 1.0, count: int = 2) -> Handle[list[torch.Tensor]]:
    from worker_runtime.runtime import RUNTIME  # noqa: PLC0415 - the one of the process that plays the rank

    executor = RUNTIME.executor
    members = executor.find_members(GLOBAL_SET, name)
    return executor.submit(Allreduce([torch.full((count,), float(value))], AVERAGE, members, f"allreduce.{name}"))


def test_operations_may_be_awaited_in_any_order_and_again(ranks: RankPool) -> None:
    def body() -> object:
        handles = [start_allreduce(str(index), index + hvd.rank()) for index in range(5)]
        gathered = hvd.allgather(torch.tensor([hvd.rank()])).tolist()  # while others are pending
        results = [handle.wait()[0][0].item() for handle in reversed(handles)]
        assert all(handle.is_done() for handle in handles)
        return results, handles[0].wait()[0].tolist(), gathered

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


def test_ranks_may_submit_in_different_orders_and_wait_in_others(ranks: RankPool) -> None:
    def body() -> object:
        names = [str(index) for index in range(30)]
        random.Random(hvd.rank()).shuffle(names)  # noqa: S311 - a seed, no secret
        handles = {name: start_allreduce(name, int(name), LARGE if int(name) % 3 == 0 else 3) for name in names}
        hvd.barrier()  # while others are pending
        random.Random(hvd.rank() + 10).shuffle(names)  # noqa: S311 - the same
        return all(handles[name].wait()[0][0].item() == int(name) for name in names)

    assert ranks.run(body, size=3) == [True] * 3


def test_a_name_in_flight_is_refused_and_free_again_afterwards(ranks: RankPool) -> None:
    def body() -> object:
        if hvd.rank() == 0:
            handle = start_allreduce("x")
            with pytest.raises(DuplicateNameError, match=r"x'?: a tensor with the same name is currently being proc"):
                start_allreduce("x")
            hvd.barrier()
        else:
            hvd.barrier()
            handle = start_allreduce("x")
        handle.wait()
        return [start_allreduce("x", hvd.rank()).wait()[0][0].item() for _ in range(3)]

    assert ranks.run(body) == [[0.5] * 3] * 2


def test_a_mismatch_is_told_to_all_ranks_which_go_on(ranks: RankPool) -> None:
    def body() -> object:
        with pytest.raises(hvd.HorovodInternalError, match="Mismatched ALLREDUCE tensor shapes") as error:
            start_allreduce("x", count=2 + hvd.rank()).wait()
        assert "rank 0" in str(error.value)
        assert "rank 1" in str(error.value)
        return start_allreduce("x", hvd.rank()).wait()[0].tolist()

    assert ranks.run(body) == [[0.5, 0.5]] * 2


def test_ranks_that_wait_for_different_operations_are_told_so(ranks: RankPool) -> None:
    def body() -> object:
        with pytest.raises(hvd.HorovodInternalError, match="every rank waits") as error:
            start_allreduce(f"of rank {hvd.rank()}").wait()
        assert all(f"rank {rank}'" in str(error.value) for rank in range(2))
        return start_allreduce("together", hvd.rank()).wait()[0].tolist()

    assert ranks.run(body) == [[0.5, 0.5]] * 2


def test_a_rank_that_waits_in_vain_can_leave_and_the_others_learn_it(ranks: RankPool, tmp_path: Path) -> None:
    """An operation is pending that the other rank, alive and busy, has not joined; leaving must not wait for it."""
    gone = tmp_path / "rank-0-has-gone"
    os.mkfifo(gone)

    def body() -> object:
        hvd.barrier()
        if hvd.rank() == 1:
            gone.read_text()  # busy until then
            with pytest.raises(hvd.HorovodInternalError, match="shut down on rank 0, and allreduce 'late' needs it"):
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
        with pytest.raises(hvd.HorovodInternalError, match="shut down on rank 1, and allreduce 'late' needs it"):
            start_allreduce("late").wait()
        return None

    ranks.run(body)


def test_alone_every_operation_runs_at_once_and_a_closed_executor_takes_nothing() -> None:
    executor = Executor()
    members = executor.find_members(GLOBAL_SET, "x")
    operation = Allreduce([torch.ones(1)], SUM, members, "allreduce.x")
    assert executor.submit(operation).is_done()
    assert executor.run(operation)[0].tolist() == [1.0]
    executor.close()
    with pytest.raises(hvd.HorovodInternalError, match="has not been initialized"):
        executor.submit(Barrier(members, "barrier.x"))


def test_an_operation_in_flight_is_interrupted_by_the_loss_of_another_rank(own_ranks: Ranks) -> None:
    """Rank 1 does not notice by itself that rank 0 has gone: it waits for nobody but the sequencer."""

    def body() -> object:
        hvd.barrier()
        if hvd.rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        started = time.monotonic()
        with pytest.raises(hvd.HorovodInternalError, match=r"rank 1"):
            start_allreduce("never asked for by rank 1").wait()
        return time.monotonic() - started

    with pytest.raises(AssertionError, match=f"rank 1: ended with {-signal.SIGKILL}") as error:
        own_ranks.run(body)
    assert "rank 0" not in str(error.value)


def test_a_lost_worker_becomes_an_error_that_names_operation_rank_and_cause(own_ranks: Ranks) -> None:
    def body() -> object:
        hvd.barrier()
        if hvd.rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        started = time.monotonic()
        with pytest.raises(
            hvd.HorovodInternalError, match=r"allreduce 'loss' failed on rank 0: .*(rank 1|[Cc]onnection)"
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
