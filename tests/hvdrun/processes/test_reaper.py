"""The reaper kills what is left of workers, and one look at all processes serves all of them."""

import signal
import subprocess
from collections.abc import Container, Iterator

import pytest

from hvdrun.processes import processes, reaper
from hvdrun.processes.background import report_callback_errors
from hvdrun.processes.processes import Process
from hvdrun.processes.reaper import CLEAN_LOOKS, Reaper
from rendezvous.core.model import Slot, Worker
from tests.hvdrun.agent.jobs import JOB, ORIGIN
from tests.hvdrun.agent.sleepers import is_alive, sleeping
from tests.waiting import LIMIT_SECONDS, happen, in_loop

NO_PID = 2**22 + 1  # more than the largest pid


class Counted(Reaper):
    """Counts its looks."""

    def __init__(self, lives: Container[int] = (), job: str = JOB) -> None:
        super().__init__(job, "a", lives)
        self.looks = 0
        self.cleared: list[Worker] = []

    def end(self, index: int, pid: int) -> None:
        """A worker was reaped."""
        worker = name(index)
        self.clear(worker, pid, lambda: self.cleared.append(worker))

    def _look(self) -> None:
        self.looks += 1
        super()._look()


def name(index: int) -> Worker:
    return Worker(Slot("a", index), 1)


def mark(index: int) -> dict[str, str]:
    return {"HVD_JOB": JOB, "HVD_SLOT": f"a:{index}", "HVD_INCARNATION": "1"}


@in_loop
async def test_the_ends_of_a_hundred_workers_take_as_many_looks_as_the_end_of_one() -> None:
    room = Counted(job=f"{JOB}-of-hundred")  # processes of an earlier test may still end in the other one
    for index in range(100):
        room.end(index, NO_PID + index)
    await room.finish()
    assert room.looks == CLEAN_LOOKS
    assert room.cleared == [name(index) for index in range(100)]


@in_loop
async def test_an_end_is_reported_when_no_process_of_the_worker_is_left_in_any_session() -> None:
    inner = {**mark(0), "HVD_JOB": f"{ORIGIN}/1.1/inner"}  # of a job that the second worker runs
    with (
        sleeping("setsid sleep 600 &", mark(0)) as first,
        sleeping(environment=mark(1)) as second,
        sleeping(environment=inner) as worker_of_second,
    ):
        left_when_cleared: list[list[Process]] = []

        def look() -> None:
            left_when_cleared.append([one for one in processes.running() if processes.comes_from(one, f"{ORIGIN}/0.1")])

        room = Counted({second.pid})
        room.clear(name(0), NO_PID, look)
        await room.finish()
        assert left_when_cleared == [[]]
        assert first.wait(LIMIT_SECONDS) == -signal.SIGKILL
        assert is_alive(second.pid)
        assert is_alive(worker_of_second.pid)
        room.end(1, NO_PID)
        await room.finish()
        assert worker_of_second.wait(LIMIT_SECONDS) == -signal.SIGKILL


@in_loop
async def test_a_session_without_the_worker_s_environment_is_ended_with_it() -> None:
    with sleeping() as left:
        room = Counted()
        room.end(0, left.pid)
        await room.finish()
        assert left.wait(LIMIT_SECONDS) == -signal.SIGKILL


@in_loop
async def test_a_living_worker_that_has_a_dead_one_s_number_is_not_swept_for_it() -> None:
    with sleeping(environment=mark(1)) as living:
        room = Counted({living.pid})
        room.end(0, living.pid)
        await room.finish()
        assert room.cleared == [name(0)]
        assert is_alive(living.pid)


@in_loop
async def test_all_condemned_processes_are_killed_in_one_look() -> None:
    with sleeping(environment=mark(0)) as first, sleeping() as second, sleeping(environment=mark(2)) as third:
        room = Counted({first.pid, second.pid, third.pid})
        room.kill(name(0), first.pid)
        room.kill(name(1), second.pid)
        await room.finish()
        assert room.looks == 1
        assert (first.wait(LIMIT_SECONDS), second.wait(LIMIT_SECONDS)) == (-signal.SIGKILL, -signal.SIGKILL)
        assert is_alive(third.pid)


@in_loop
async def test_a_worker_that_leads_no_session_yet_is_killed_alone() -> None:
    with subprocess.Popen(["sleep", "600"]) as forked:  # noqa: ASYNC220 - starts immediately
        room = Counted({forked.pid})
        room.kill(name(0), forked.pid)
        await room.finish()
        assert forked.wait(LIMIT_SECONDS) == -signal.SIGKILL


@in_loop
async def test_a_search_for_orphans_without_a_free_descriptor_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    real = processes.running
    failures = iter([True, True])

    def running() -> Iterator[Process]:
        if next(failures, False):
            raise OSError("too many open files")
        return real()

    monkeypatch.setattr(processes, "running", running)
    with sleeping(environment=mark(0)) as left, sleeping() as doomed:
        room = Counted()
        room.end(0, NO_PID)
        room.kill(name(1), doomed.pid)
        await room.finish()
        assert (left.wait(LIMIT_SECONDS), doomed.wait(LIMIT_SECONDS)) == (-signal.SIGKILL, -signal.SIGKILL)


@in_loop
async def test_an_unexpected_error_of_the_reaper_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(processes, "running")
    failed: list[BaseException] = []
    report_callback_errors(failed.append)
    room = Counted()
    room.end(0, NO_PID)
    await room.finish()
    await happen(lambda: bool(failed), "the report")
    assert [type(error) for error in failed] == [AttributeError]


@in_loop
async def test_the_wait_for_a_process_that_cannot_be_ended_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reaper, "REAP_SECONDS", 0.0)
    monkeypatch.setattr(processes, "kill", lambda *_: None)  # as it is with a process that waits for a dead disk
    with sleeping(environment=mark(0)):
        room = Counted()
        room.end(0, NO_PID)
        await room.finish()
        assert room.cleared == [name(0)]
