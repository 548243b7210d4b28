"""How an agent takes part in the rendezvous: reports, and the lease that they renew."""

import asyncio
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from hvdrun.agent import attendance
from hvdrun.agent.attendance import attend, choose_ends
from hvdrun.agent.lease import Lease, LeaseExpiredError
from hvdrun.agent.watch import Watch
from rendezvous.authority import Authority
from rendezvous.core.effects import Effect, Finish, Launch
from rendezvous.core.events import Exited, HostsChanged
from rendezvous.core.model import Host, Policy, Slot, Worker
from rendezvous.errors import CallRefusedError
from rendezvous.orders import Begin
from rendezvous.server import Server
from tests.hvdrun.agent.jobs import JOB
from tests.rendezvous.stage import Sequencing

LIMIT_SECONDS = 20.0
WORKER = Worker(Slot("a", 0), 1)


class Workers(Watch):
    """One worker that never was a process."""

    def __init__(self) -> None:
        self.changed = asyncio.Event()
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


class Rendezvous:
    """A real server of a job of one worker, and what an agent needs to know of it."""

    def __init__(self, lease_seconds: float) -> None:
        self.effects: list[Effect] = []
        self.authority = Authority(JOB)
        policy = Policy.static(1, lease_seconds=30)
        self.server = Server(policy, self.effects.append, self.authority.issue_server())
        self.begin = Begin(
            job=JOB,
            host="a",
            server="",
            credential=self.authority.issue_agent("a"),
            command=("true",),
            directory="/",
            environment={},
            lease_seconds=lease_seconds,
            start_timeout_seconds=30,
            address="127.0.0.1",
        )

    async def finished(self) -> Finish:
        """How the server saw the job end."""
        while True:
            for effect in self.effects:
                if isinstance(effect, Finish):
                    return effect
            await asyncio.sleep(0.005)


@asynccontextmanager
async def serving(lease_seconds: float = 30.0) -> AsyncIterator[tuple[Rendezvous, Path]]:
    """The server, and where the agent's socket may be."""
    rendezvous = Rendezvous(lease_seconds)
    with tempfile.TemporaryDirectory() as folder:
        async with asyncio.timeout(LIMIT_SECONDS), rendezvous.server as server:
            port = await server.open("127.0.0.1")
            server.tell(HostsChanged((Host("a", 1),)))
            rendezvous.begin = replace(rendezvous.begin, server=f"127.0.0.1:{port}")
            yield rendezvous, Path(folder, "agent.sock")


def test_an_end_is_reported_at_once_and_acknowledged() -> None:
    async def scenario() -> None:
        async with serving() as (rendezvous, socket):
            workers = Workers()
            attending = asyncio.create_task(attend(rendezvous.begin, socket, workers, Lease(600), Sequencing()))
            while rendezvous.server.state.last_heard["a"] is None:  # noqa: ASYNC110 - the state has no event
                await asyncio.sleep(0.005)
            workers.end(0)
            assert (await rendezvous.finished()).outcome.exit_code == 0
            while workers.ended():  # noqa: ASYNC110 - the same
                await asyncio.sleep(0.005)
            attending.cancel()
            await asyncio.wait({attending})
            assert attending.cancelled()

    asyncio.run(scenario())


def test_reports_renew_the_lease_though_nothing_changes() -> None:
    async def scenario() -> None:
        async with serving(lease_seconds=0.3) as (rendezvous, socket):
            lease = Lease(0.3)
            attending = asyncio.create_task(attend(rendezvous.begin, socket, Workers(), lease, Sequencing()))
            done, _ = await asyncio.wait({attending}, timeout=1.0)
            assert not done
            assert lease.look()
            attending.cancel()
            await asyncio.wait({attending})

    asyncio.run(scenario())


def test_without_an_answer_for_the_lease_it_ends_and_says_what_went_wrong_last() -> None:
    async def scenario() -> None:
        async with serving() as (rendezvous, socket):
            await rendezvous.server.close()
            began = asyncio.get_running_loop().time()
            with pytest.raises(LeaseExpiredError, match=r"for the lease of 0\.5 s.*127\.0\.0\.1:.*refused"):
                await attend(rendezvous.begin, socket, Workers(), Lease(0.5), Sequencing())
            assert 0.5 <= asyncio.get_running_loop().time() - began < 5

    asyncio.run(scenario())


def test_a_server_that_does_not_believe_this_agent_is_named_as_such() -> None:
    async def scenario() -> None:
        async with serving() as (rendezvous, socket):
            begin = replace(rendezvous.begin, credential=Authority("another job").issue_agent("a"))
            with pytest.raises(LeaseExpiredError, match="handshake failed"):
                await attend(begin, socket, Workers(), Lease(1.0), Sequencing())

    asyncio.run(scenario())


def test_a_refused_report_is_an_error() -> None:
    async def scenario() -> None:
        async with serving() as (rendezvous, socket):
            begin = replace(rendezvous.begin, credential=rendezvous.authority.issue_agent("b"))
            with pytest.raises(CallRefusedError, match="does not speak for host 'a'"):
                await attend(begin, socket, Workers(), Lease(30), Sequencing())

    asyncio.run(scenario())


def test_a_cancellation_that_comes_together_with_a_change_is_not_lost() -> None:
    async def scenario() -> None:
        async with serving() as (rendezvous, socket):
            workers = Workers()
            attending = asyncio.create_task(attend(rendezvous.begin, socket, workers, Lease(600), Sequencing()))
            while rendezvous.server.state.last_heard["a"] is None:  # noqa: ASYNC110 - the state has no event
                await asyncio.sleep(0.005)
            while not workers.changed._waiters:  # noqa: ASYNC110 - until it waits again
                await asyncio.sleep(0)
            workers.changed.set()
            attending.cancel()
            done, _ = await asyncio.wait({attending}, timeout=5)
            assert done
            assert attending.cancelled()

    asyncio.run(scenario())


def test_the_lease_outlasts_some_lost_reports() -> None:
    assert attendance.REPORTS_PER_LEASE >= 3


def test_the_server_orders_what_the_agent_does_not_have() -> None:
    async def scenario() -> None:
        async with serving() as (rendezvous, socket):
            workers = Workers()
            workers.alive = ()
            attending = asyncio.create_task(attend(rendezvous.begin, socket, workers, Lease(600), Sequencing()))
            while sum(isinstance(effect, Launch) for effect in rendezvous.effects) < 2:  # noqa: ASYNC110 - no event
                await asyncio.sleep(0.005)
            attending.cancel()
            await asyncio.wait({attending})

    asyncio.run(scenario())


def test_many_changes_are_few_reports_and_the_last_one_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attendance, "SECONDS_PER_WORKER", 0.2)

    async def scenario() -> None:
        async with serving() as (rendezvous, socket):
            workers = Workers()
            attending = asyncio.create_task(attend(rendezvous.begin, socket, workers, Lease(600), Sequencing()))
            while rendezvous.server.state.last_heard["a"] is None:  # noqa: ASYNC110 - the state has no event
                await asyncio.sleep(0.005)
            for _ in range(100):
                workers.changed.set()
                await asyncio.sleep(0)
            workers.end(0)
            await rendezvous.finished()
            assert rendezvous.server._last_reports["a"] <= 3
            attending.cancel()
            await asyncio.wait({attending})

    asyncio.run(scenario())


def test_ends_with_long_sentences_are_told_in_several_reports() -> None:
    ends = tuple(Exited(Worker(Slot("a", index), 1), 127, "x" * 400_000) for index in range(5))
    assert choose_ends(ends) == ends[:2]
    assert choose_ends(ends[:2]) == ends[:2]
    assert choose_ends((replace(ends[0], error="x" * 2_000_000), *ends)) != ()
    assert choose_ends(()) == ()


def test_ends_that_were_left_for_the_next_report_are_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attendance, "MAX_ERROR_CHARACTERS", 10)

    async def scenario() -> None:
        async with serving(lease_seconds=600) as (rendezvous, socket):  # the next report by itself comes in 100 s
            workers = Workers()
            workers.ends = (Exited(WORKER, 127, "not found"), Exited(WORKER, 126, "no program"))
            attending = asyncio.create_task(attend(rendezvous.begin, socket, workers, Lease(600), Sequencing()))
            while workers.ended():  # noqa: ASYNC110 - the state has no event
                await asyncio.sleep(0.005)
            attending.cancel()
            await asyncio.wait({attending})

    asyncio.run(scenario())
