"""What real ranks see when something goes wrong: a rank killed, a sequencer gone, a fork, an early end."""

import gc
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import worker_runtime.torch as hvd
from tests.waiting import wait_until
from tests.worker_runtime.ranks import RankFailedError, RankPool, Ranks, ask_child
from worker_runtime.api import functions
from worker_runtime.engine.engine import Engine

LARGE = 1_000_000  # elements: far more than travel inside a request
CHILD_SECONDS = 60  # a forked child ends by itself


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


def expect_loss(wait: Callable[[], object], cause: str = "rank 3 was cut off") -> None:
    with pytest.raises(hvd.HorovodInternalError, match=cause):
        wait()


def find_engine() -> Engine:
    from worker_runtime.membership.runtime import RUNTIME  # noqa: PLC0415 - the one of the process that plays the rank

    return RUNTIME.engine


def die_when_released() -> None:
    """End as soon as an operation is released on this rank: its others have begun, or will."""
    find_engine().current.start = lambda *_: os.kill(os.getpid(), signal.SIGKILL)


def fork_child() -> int:
    """A child that does nothing, as a DataLoader's worker may."""
    pid = os.fork()
    if pid == 0:
        os.close(int(sys.argv[2]))  # by its end the test knows that its parent has ended
        signal.alarm(CHILD_SECONDS)
        signal.pause()
        os._exit(0)
    return pid


def test_a_killed_rank_is_named_to_all_whatever_they_wait_for(tmp_path: Path) -> None:
    """In join(), and for gloo, in the middle of its work, though a child of the dead holds its connections open.

    Rank 0, for which the others wait as well, is busy until they know, and reports nothing.
    """
    child, heard = tmp_path / "child", [tmp_path / "1", tmp_path / "2"]

    def body() -> None:
        hvd.allreduce(torch.ones(LARGE), name="warm")
        if hvd.rank() == 3:
            child.write_text(str(fork_child()))
            die_when_released()
        others = begin_all_kinds() if hvd.rank() != 3 else []
        handle = hvd.allreduce_async(torch.ones(LARGE), name="in flight")
        if hvd.rank() == 0:
            wait_until(lambda: all(path.exists() for path in heard), "what ranks 1 and 2 hear")
        expect_loss(hvd.join if hvd.rank() == 2 else lambda: hvd.synchronize(handle))
        if hvd.rank():
            heard[hvd.rank() - 1].touch()
        for other in others:
            expect_loss(lambda other=other: hvd.synchronize(other))
        expect_loss(lambda: hvd.allreduce(torch.ones(1), name="afterwards"))
        hvd.shutdown()

    with Ranks(4) as four_ranks, pytest.raises(RankFailedError) as failure:
        four_ranks.run(body, size=4)
    os.kill(int(child.read_text()), signal.SIGKILL)
    assert [str(failure.value)] == [f"rank 3: ended with {-signal.SIGKILL}"]


def find_sequencer() -> int:
    """The pid of rank 0's child; 0 on other ranks."""
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text(encoding="utf-8").split()
    return int(children[0]) if hvd.rank() == 0 else 0


def test_all_ranks_hear_of_the_sequencer_s_end_and_a_new_world_has_another(ranks: RankPool, tmp_path: Path) -> None:
    asked = tmp_path / "rank-1-has-asked"

    def body() -> object:
        hvd.barrier()
        if hvd.rank() == 1:
            handles = [hvd.allreduce_async(torch.ones(1), name="of rank 1")]
            asked.touch()
        else:
            handles = begin_all_kinds()
            wait_until(asked.exists)
            os.kill(find_sequencer(), signal.SIGKILL)
        for handle in handles:
            expect_loss(lambda handle=handle: hvd.synchronize(handle), "sequencer")
        expect_loss(hvd.barrier, "sequencer")
        hvd.shutdown()
        hvd.init()
        return hvd.allreduce(torch.ones(3), op=hvd.Sum).tolist()

    assert ranks.run(body) == [[2.0] * 3] * 2


def test_a_sequencer_that_was_stopped_for_a_while_is_waited_for(ranks: RankPool) -> None:
    def body() -> object:
        hvd.barrier()
        pid = find_sequencer()
        if pid:
            os.kill(pid, signal.SIGSTOP)
            threading.Timer(1.5, os.kill, (pid, signal.SIGCONT)).start()
        return [hvd.allreduce(torch.ones(count), op=hvd.Sum).sum().item() for count in (3, LARGE)]

    assert ranks.run(body) == [[6.0, 2.0 * LARGE]] * 2


def test_forked_children_leave_pending_operations_to_their_parent(ranks: RankPool) -> None:
    def drop_all() -> list[int]:
        find_engine().handle_table._entries.clear()
        gc.collect()
        return list(functions._handle_map)

    def body() -> object:
        handles = begin_all_kinds() if hvd.rank() == 0 else []
        dropped = [ask_child(drop_all) for _ in range(3)]
        handles = handles or begin_all_kinds()
        pid = os.fork()  # some are in flight now
        if pid == 0:
            raise SystemExit(0)  # with the interpreter's own end
        results = [hvd.synchronize(handle) for handle in handles]
        return dropped, len(results), os.waitpid(pid, 0)[1]

    assert ranks.run(body) == [([[]] * 3, 9, 0)] * 2
