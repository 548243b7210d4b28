"""How an agent takes part in the rendezvous: reports, and the launcher timeout that they restart."""

import asyncio
import itertools
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from hvdrun.agent import session as attendance
from hvdrun.agent.launcher_timeout import LauncherTimeout, LauncherTimeoutError
from hvdrun.agent.session import attend, choose_ends
from hvdrun.agent.watch import Watch
from rendezvous.core.messages import Effect, Exited, Finish, HostsChanged
from rendezvous.core.model import Host, Policy, Slot, Worker
from rendezvous.errors import CallRefusedError
from rendezvous.server.authority import Authority
from rendezvous.server.server import Server
from tests.hvdrun.agent.jobs import JOB, WORKER, make_begin
from tests.rendezvous.stage import Sequencing
from tests.waiting import happen, in_loop


class Workers(Watch):
    """One worker that never was a process."""

    def __init__(self) -> None:
        self.changed = asyncio.Event()
        self.is_noticed = False
        self.signal = 0
        self.has_world = False
        self.sequencer_end = ""
        self.alive: tuple[Worker, ...] = (WORKER,)
        self.ends: tuple[Exited, ...] = ()

    def running(self) -> tuple[Worker, ...]:
        """See `Watch`."""
        return self.alive

    def ended(self) -> tuple[Exited, ...]:
        """See `Watch`."""
        return self.ends

    def acknowledge(self, ends: tuple[Exited, ...]) -> None:
        """See `Watch`."""
        self.ends = tuple(end for end in self.ends if end not in ends)

    def end(self, returncode: int) -> None:
        """The worker has ended."""
        self.alive = ()
        self.ends = (Exited(WORKER, returncode),)
        self.changed.set()


class CountedTimeout(LauncherTimeout):
    """Counts its restarts."""

    restarts = 0

    def restart(self) -> None:
        """See `LauncherTimeout`."""
        self.restarts += 1
        super().restart()


class Rendezvous:
    """A real server of a job of one worker, what it has ordered, and an agent's part in it."""

    def __init__(self, folder: str) -> None:
        self.socket = Path(folder, "agent.sock")
        self.effects: list[Effect] = []
        self.workers = Workers()
        self.authority = Authority(JOB)
        policy = Policy.static(1, lease_seconds=30)
        self.server = Server(policy, self.effects.append, self.authority.issue_server())
        self.begin = replace(make_begin("/"), credential=self.authority.issue_agent("a"))

    async def attend(self, launcher_timeout: LauncherTimeout | None = None) -> None:
        """Attend as the agent does."""
        await attend(self.begin, self.socket, self.workers, launcher_timeout or LauncherTimeout(600), Sequencing())

    @asynccontextmanager
    async def attending(self, launcher_timeout: LauncherTimeout | None = None) -> AsyncIterator[None]:
        """Attend meanwhile."""
        task = asyncio.create_task(self.attend(launcher_timeout))
        try:
            yield
        finally:
            assert not task.done()
            task.cancel()
            await asyncio.wait({task})
            assert task.cancelled()

    async def heard(self) -> None:
        """Wait until the agent has reported."""
        await happen(lambda: self.server.state.last_heard["a"] is not None, "a report")


@asynccontextmanager
async def serving() -> AsyncIterator[Rendezvous]:
    """A server that knows of host a."""
    with tempfile.TemporaryDirectory() as folder:
        rendezvous = Rendezvous(folder)
        async with rendezvous.server as server:
            port = await server.open("127.0.0.1")
            server.submit(HostsChanged((Host("a", 1),)))
            rendezvous.begin = replace(rendezvous.begin, server=f"127.0.0.1:{port}")
            yield rendezvous


@in_loop
async def test_an_end_is_reported_immediately_and_acknowledged() -> None:
    async with serving() as rendezvous, rendezvous.attending():
        await rendezvous.heard()
        rendezvous.workers.end(0)
        await happen(lambda: any(isinstance(effect, Finish) for effect in rendezvous.effects), "the end of the job")
        await happen(lambda: not rendezvous.workers.ended())


@in_loop
async def test_reports_restart_the_launcher_timeout_though_nothing_changes() -> None:
    launcher_timeout = CountedTimeout(600, clock=lambda: 0.0)
    async with serving() as rendezvous:
        rendezvous.begin = replace(rendezvous.begin, lease_seconds=0.3)
        async with rendezvous.attending(launcher_timeout):
            await happen(lambda: launcher_timeout.restarts == 5)


@in_loop
async def test_a_session_without_answers_ends_with_the_launcher_timeout_and_reports_the_last_error() -> None:
    async with serving() as rendezvous:
        await rendezvous.server.close()
        clock = itertools.count(0, 4).__next__  # four seconds more at each look
        # On a busy machine the last call may reach its deadline before the connection is refused.
        with pytest.raises(LauncherTimeoutError, match=r"for 30 s.*127\.0\.0\.1:.*(refused|Deadline)"):
            await rendezvous.attend(LauncherTimeout(30, clock))


@in_loop
async def test_a_refused_report_is_an_error() -> None:
    async with serving() as rendezvous:
        rendezvous.begin = replace(rendezvous.begin, credential=rendezvous.authority.issue_agent("b"))
        with pytest.raises(CallRefusedError, match="is not that of host 'a'"):
            await rendezvous.attend()


@in_loop
async def test_a_cancellation_that_comes_together_with_a_change_is_not_lost() -> None:
    async with serving() as rendezvous, rendezvous.attending():
        await rendezvous.heard()
        await happen(lambda: bool(rendezvous.workers.changed._waiters), "the wait for a change")
        rendezvous.workers.changed.set()


@in_loop
async def test_many_changes_are_one_report(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attendance, "SECONDS_PER_WORKER", 1000.0)  # no longer than until the next report by itself
    async with serving() as rendezvous, rendezvous.attending():
        await rendezvous.heard()
        for _ in range(100):
            rendezvous.workers.changed.set()
            await asyncio.sleep(0)
        assert rendezvous.server._last_reports["a"] == 1


def test_ends_with_long_errors_are_sent_in_several_reports() -> None:
    ends = tuple(Exited(Worker(Slot("a", index), 1), 127, "x" * 400_000) for index in range(5))
    assert choose_ends(ends) == ends[:2]
    assert choose_ends(ends[:2]) == ends[:2]
    assert choose_ends((replace(ends[0], error="x" * 2_000_000), *ends)) != ()
    assert choose_ends(()) == ()


@in_loop
async def test_ends_left_for_the_next_report_are_sent_immediately(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attendance, "MAX_ERROR_CHARACTERS", 10)
    async with serving() as rendezvous:
        rendezvous.workers.ends = (Exited(WORKER, 127, "not found"), Exited(WORKER, 126, "no program"))
        async with rendezvous.attending():  # the next report by itself comes in 100 s
            await happen(lambda: not rendezvous.workers.ended())
