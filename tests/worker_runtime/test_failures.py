"""What real ranks see when something goes wrong: a rank killed, a sequencer gone, a fork, an early end.

Times are of the machine's one monotonic clock, so that ranks can compare theirs.

Long because each way in which a rank, the sequencer or a program can end or be interrupted has its test here.
"""

import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

import worker_runtime.torch as hvd
from tests.worker_runtime.ranks import RankFailedError, RankPool, Ranks

LARGE = 1_000_000  # elements: far more than travel inside a question
LIMIT_SECONDS = 1.0  # from a loss until everybody knows
CHILD_SECONDS = 60  # a forked child ends by itself


@pytest.fixture
def four_ranks() -> Iterator[Ranks]:
    """Four that one test has to itself."""
    with Ranks(4) as fresh:
        yield fresh


def begin_all_kinds() -> list[int]:
    """One asynchronous operation of each kind."""
    x = torch.ones(8)
    return [
        hvd.allreduce_async(x, name="a"),
        hvd.allreduce_async_(torch.ones(LARGE), name="b"),
        hvd.grouped_allreduce_async([x, x], name="c"),
        hvd.allgather_async(x, name="d"),
        hvd.grouped_allgather_async([x, x], name="e"),
        hvd.broadcast_async(x, 1, name="f"),
        hvd.alltoall_async(x, splits=[8] + [0] * (hvd.size() - 1), name="g"),
        hvd.reducescatter_async(x, name="h"),
        hvd.grouped_reducescatter_async([x, x], name="i"),
    ]


def expect_loss(wait: Callable[[], object], cause: str = "rank 3 was lost") -> None:
    with pytest.raises(hvd.HorovodInternalError, match=cause):
        wait()


def replace_start(start: Callable[..., object]) -> None:
    """Do something else as soon as an operation is released on this rank: its others have begun, or will."""
    from worker_runtime.runtime import RUNTIME  # noqa: PLC0415 - the one of the process that plays the rank

    RUNTIME.executor._attempt.runner.start = start


def fork_child() -> int:
    """A child that does nothing, as a DataLoader's worker may."""
    pid = os.fork()
    if pid == 0:
        os.close(int(sys.argv[2]))  # by its end the test knows that its parent has ended
        signal.alarm(CHILD_SECONDS)
        signal.pause()
        os._exit(0)
    return pid


def test_a_killed_rank_is_named_to_all_within_a_second_whatever_they_wait_for(
    four_ranks: Ranks, tmp_path: Path
) -> None:
    """Also in join(), in the middle of gloo's work, and though a child of the dead holds its connections open."""
    death, child = tmp_path / "death", tmp_path / "child"

    def die(*_: object) -> None:
        death.write_text(str(time.monotonic()))
        os.kill(os.getpid(), signal.SIGKILL)

    def body() -> None:
        pair = hvd.add_process_set([2, 3])
        if pair.included():
            hvd.barrier(pair)  # which connects them
        hvd.barrier()
        if hvd.rank() == 3:
            child.write_text(str(fork_child()))
            replace_start(die)
            hvd.allreduce(torch.ones(LARGE), name="in flight", process_set=pair)
        handles = begin_all_kinds()
        waits = {
            0: hvd.join,
            1: lambda: hvd.allreduce(torch.ones(1), name="never"),
            2: lambda: hvd.allreduce(torch.ones(LARGE), name="in flight", process_set=pair),
        }
        expect_loss(waits[hvd.rank()])
        seconds = time.monotonic() - float(death.read_text())
        for handle in handles:
            expect_loss(lambda handle=handle: hvd.synchronize(handle))
        expect_loss(lambda: hvd.allreduce(torch.ones(1), name="afterwards"))
        began = time.monotonic()
        hvd.shutdown()
        assert seconds < LIMIT_SECONDS
        assert time.monotonic() - began < LIMIT_SECONDS

    with pytest.raises(RankFailedError) as failure:
        four_ranks.run(body, size=4)
    os.kill(int(child.read_text()), signal.SIGKILL)
    assert [str(failure.value)] == [f"rank 3: ended with {-signal.SIGKILL}"]


def test_a_rank_hears_of_a_loss_also_while_it_waits_for_gloo_and_for_another_that_is_busy(four_ranks: Ranks) -> None:
    """What rank 3 had to send never comes; rank 0, which has noticed, computes on and tells nobody."""

    def body() -> None:
        handle = hvd.allreduce_async(torch.ones(LARGE), name="warm")
        hvd.synchronize(handle)
        if hvd.rank() == 3:
            replace_start(lambda *_: os.kill(os.getpid(), signal.SIGKILL))
        began = time.monotonic()
        handle = hvd.allreduce_async(torch.ones(LARGE), name="in flight")
        if hvd.rank() == 0:
            time.sleep(3)  # is busy elsewhere
        expect_loss(lambda: hvd.synchronize(handle))
        assert hvd.rank() == 0 or time.monotonic() - began < LIMIT_SECONDS

    with pytest.raises(RankFailedError) as failure:
        four_ranks.run(body, size=4)
    assert [str(failure.value)] == [f"rank 3: ended with {-signal.SIGKILL}"]


def find_sequencer() -> int:
    """The pid of rank 0's child; 0 on other ranks."""
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text(encoding="utf-8").split()
    return int(children[0]) if hvd.rank() == 0 else 0


def test_all_hear_that_the_sequencer_has_ended_and_a_new_world_has_another(own_ranks: Ranks) -> None:
    def body() -> object:
        hvd.barrier()
        handles = begin_all_kinds() if hvd.rank() == 0 else []
        began = time.monotonic()
        if hvd.rank() == 1:
            handles = [hvd.allreduce_async(torch.ones(1), name=f"of rank {hvd.rank()}")]
        else:
            time.sleep(0.1)  # until rank 1 has heard of the barrier's end
            os.kill(find_sequencer(), signal.SIGKILL)
        for handle in handles:
            expect_loss(lambda handle=handle: hvd.synchronize(handle), "sequencer")
        expect_loss(hvd.barrier, "sequencer")
        assert time.monotonic() - began < LIMIT_SECONDS
        hvd.shutdown()
        hvd.init()
        return hvd.allreduce(torch.ones(3), op=hvd.Sum).tolist()

    assert own_ranks.run(body) == [[2.0] * 3] * 2


def test_a_sequencer_that_was_stopped_for_a_while_is_waited_for(ranks: RankPool) -> None:
    def body() -> object:
        hvd.barrier()
        pid = find_sequencer()
        if pid:
            os.kill(pid, signal.SIGSTOP)
            threading.Timer(1.5, os.kill, (pid, signal.SIGCONT)).start()
        return [hvd.allreduce(torch.ones(count), op=hvd.Sum).sum().item() for count in (3, LARGE)]

    assert ranks.run(body) == [[6.0, 2.0 * LARGE]] * 2


def test_a_fork_with_operations_pending_leaves_them_to_the_parent(ranks: RankPool) -> None:
    def body() -> object:
        handles = begin_all_kinds() if hvd.rank() == 0 else []
        children = []
        for _ in range(3):
            pid = os.fork()
            if pid == 0:
                try:
                    assert not hvd.is_initialized()
                    handles.clear()
                    gc.collect()
                finally:
                    os._exit(0)
            children.append(pid)
        handles = handles or begin_all_kinds()
        pid = os.fork()  # some are in flight now
        if pid == 0:
            raise SystemExit(0)  # with the interpreter's own end
        results = [hvd.synchronize(handle) for handle in handles]
        statuses = [os.waitpid(child, 0)[1] for child in (*children, pid)]
        return len(results), statuses

    def run_in_child() -> object:
        return body()

    assert ranks.run(run_in_child) == [(9, [0] * 4)] * 2


def test_shutdown_with_operations_pending_and_init_again(ranks: RankPool) -> None:
    def body() -> object:
        sums = []
        for turn in range(5):
            handles = begin_all_kinds() if turn % 2 or hvd.rank() == 0 else []
            hvd.shutdown()
            for handle in handles:
                with pytest.raises(hvd.HorovodInternalError, match="has not been initialized"):
                    hvd.synchronize(handle)
            hvd.init()
            sums.append(hvd.allreduce(torch.ones(1), op=hvd.Sum).item())
        return sums

    assert ranks.run(body) == [[2.0] * 5] * 2
