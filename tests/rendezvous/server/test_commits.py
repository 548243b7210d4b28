"""A server with a journal: nobody learns of what is not durable; and a server that begins where another one ended."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager

import pytest

from rendezvous.client import AgentClient
from rendezvous.core.messages import (
    Begun,
    Declared,
    Dismiss,
    Effect,
    Exited,
    Finish,
    HostsChanged,
    Joined,
    Launch,
    Lost,
    Reported,
    Ticked,
)
from rendezvous.core.model import Host, Policy, Recovery, Worker
from rendezvous.core.state import State
from rendezvous.errors import CallRefusedError, UnreachableError
from rendezvous.server.authority import Authority
from rendezvous.server.server import Server
from rendezvous.server.state_machine import Term
from rendezvous.wire import codec
from rendezvous.wire.notifications import KEY_BYTES, Published
from tests.rendezvous.stage import A0, B0, LOOPBACK, Stage, in_clean_loop
from tests.waiting import LIMIT_SECONDS, happen

ELASTIC = Policy.elastic(1, 2, 2, lease_seconds=LIMIT_SECONDS, recovery=Recovery(cooldown_seconds=(0.0, 0.0)))
BOTH = (Host("a", 1), Host("b", 1))
SECRET = b"s" * KEY_BYTES


class DiskError(Exception):
    """What a journal may raise."""


class Disk:
    """A journal whose writes end when a test lets them.

    begun: the states whose write has begun. written: the durable ones.
    """

    def __init__(self) -> None:
        self.begun: list[State] = []
        self.written: list[State] = []
        self.is_free = asyncio.Event()
        self.is_free.set()
        self.error: Exception | None = None

    async def write(self, state: State) -> None:
        """See `rendezvous.server.commits.Journal`."""
        self.begun.append(state)
        await self.is_free.wait()
        if self.error is not None:
            raise self.error
        self.written.append(state)


@asynccontextmanager
async def open_journaled(
    disk: Disk,
    policy: Policy = ELASTIC,
    *,
    authority: Authority | None = None,
    port: int = 0,
    state: State | None = None,
) -> AsyncIterator[Stage]:
    """A job on two hosts, or what has become of it."""
    effects: list[Effect] = []
    authority = authority or Authority("job")
    credential = authority.issue_server()
    term = Term(journal=disk, state=state, secret=SECRET)
    async with Server(policy, effects.append, credential, term=term) as server:
        port = await server.open(LOOPBACK, port)
        if state is None:
            server.submit(HostsChanged(BOTH))
            await server.settle()
        yield Stage(server, authority, port, effects)


async def begin(stage: Stage) -> None:
    """Let both agents report, and the workers join."""
    for worker in (A0, B0):
        stage.server.submit(Reported(worker.slot.host, (worker,)))
        stage.server.submit(Joined(worker))
    await stage.server.settle()


async def pass_turns() -> None:
    """Whatever can happen without the disk does."""
    for _ in range(20):
        await asyncio.sleep(0)


async def read(agent: AgentClient) -> object:
    """The first notification that this agent's host receives."""
    async with asyncio.timeout(LIMIT_SECONDS), aclosing(agent.watch()) as notices:
        return await anext(notices)


@in_clean_loop
async def test_effects_wait_until_the_state_is_durable() -> None:
    disk = Disk()
    async with open_journaled(disk) as stage:
        assert disk.written[-1].workers == stage.server.state.workers
        launched = list(stage.effects)
        assert [type(effect) for effect in launched] == [Launch, Launch]
        disk.is_free.clear()
        stage.server.submit(Exited(A0, 1))
        await pass_turns()
        assert disk.begun[-1] is stage.server.state
        assert stage.effects == launched
        disk.is_free.set()
        await stage.server.settle()
        assert Worker(A0.slot, 2) in {each.worker for each in stage.effects if isinstance(each, Launch)}


@in_clean_loop
async def test_steps_during_a_write_are_written_together_and_performed_in_their_order() -> None:
    disk = Disk()
    async with open_journaled(disk) as stage:
        writes = len(disk.begun)
        disk.is_free.clear()
        stage.server.submit(Exited(A0, 1))
        await pass_turns()
        for event in (Exited(B0, 1), Exited(Worker(A0.slot, 2), 1)):
            stage.server.submit(event)
        disk.is_free.set()
        await stage.server.settle()
        assert len(disk.written) == len(disk.begun) == writes + 2
        launched = [each.worker for each in stage.effects if isinstance(each, Launch)]
        assert launched[2:] == [Worker(A0.slot, 2), Worker(B0.slot, 2), Worker(A0.slot, 3)]


@in_clean_loop
async def test_a_tick_or_heartbeat_without_news_is_not_written() -> None:
    disk = Disk()
    async with open_journaled(disk) as stage:
        await begin(stage)
        writes = len(disk.begun)
        for _ in range(10):
            stage.server.submit(Ticked(stage.server.state.now + 0.1))
            stage.server.submit(Reported("a", (A0,)))
        await stage.server.settle()
        assert len(disk.begun) == writes


@in_clean_loop
async def test_the_first_sign_of_an_agent_is_written() -> None:
    disk = Disk()
    async with open_journaled(disk) as stage:
        for event in (Begun("a"), Reported("b", (B0,))):
            writes = len(disk.begun)
            for _ in range(2):
                stage.server.submit(event)
                await stage.server.settle()
            assert len(disk.begun) == writes + 1


@in_clean_loop
async def test_a_journal_that_fails_ends_the_server_and_no_effect_and_no_answer_follows() -> None:
    async def report(address: str, authority: Authority) -> None:
        client = AgentClient(address, "a", authority.issue_agent("a"))
        try:
            await client.report(1, [], [Exited(A0, 1)], LIMIT_SECONDS)
        finally:
            await client.close()

    disk = Disk()
    with pytest.raises(DiskError):  # noqa: PT012 - raised where the block is left
        async with asyncio.timeout(LIMIT_SECONDS), open_journaled(disk) as stage:
            ordered = list(stage.effects)
            disk.error = DiskError()
            reporting = asyncio.create_task(report(stage.address, stage.authority))
            await asyncio.Event().wait()
    with pytest.raises((CallRefusedError, UnreachableError)):
        await reporting
    stage.server.submit(Exited(B0, 1))
    await pass_turns()
    assert stage.effects == ordered


@in_clean_loop
async def test_a_server_that_closes_during_a_write_performs_nothing_more() -> None:
    disk = Disk()
    async with open_journaled(disk) as stage:
        ordered = list(stage.effects)
        disk.is_free.clear()
        stage.server.submit(Exited(A0, 1))
        await pass_turns()
    assert stage.effects == ordered


@in_clean_loop
async def test_a_call_is_answered_when_its_state_is_durable() -> None:
    disk = Disk()
    async with open_journaled(disk) as stage, stage.agent("a") as a, stage.agent("b") as b:
        await b.join(codec.encode(Joined(B0)))
        reading = asyncio.create_task(read(a))
        disk.is_free.clear()
        writes = len(disk.begun)
        calls = [
            asyncio.create_task(a.join(codec.encode(Joined(A0)))),
            asyncio.create_task(a.join(codec.encode(Joined(Worker(A0.slot, 7))))),
        ]
        await happen(lambda: len(disk.begun) > writes)
        stage.server.submit(Ticked(stage.server.state.now + 0.01))
        await asyncio.wait({*calls, reading}, timeout=0.1)
        assert not any(each.done() for each in (*calls, reading))
        disk.is_free.set()
        answer, refusal = await asyncio.gather(*calls, return_exceptions=True)
        assert not isinstance(answer, BaseException)
        assert "was never started" in str(refusal)
        assert isinstance(await reading, Published)


@in_clean_loop
async def test_an_agent_is_refused_when_its_dismissal_is_durable() -> None:
    disk = Disk()
    async with open_journaled(disk) as stage, stage.agent("b") as b:
        await begin(stage)
        disk.is_free.clear()
        state = stage.server.state
        stage.server.submit(Lost("b", "it was silent"))
        lost = stage.server.state
        assert lost is not state
        reporting = asyncio.create_task(b.report(1, [B0], [], LIMIT_SECONDS))
        await asyncio.wait({reporting}, timeout=0.1)
        assert not reporting.done()
        assert (stage.server.number_agent("b"), stage.server.state.workers) == (1, lost.workers)
        disk.is_free.set()
        with pytest.raises(CallRefusedError, match="host 'b' was lost, and another agent has replaced this one"):
            await reporting
        assert stage.server.number_agent("b") == 2


@in_clean_loop
async def test_a_server_continues_where_another_one_ended() -> None:
    disk, authority = Disk(), Authority("job")
    async with open_journaled(disk, authority=authority) as stage:
        await begin(stage)
        for event in (Declared(A0), Declared(B0), Lost("b", "gone")):
            stage.server.submit(event)
        await stage.server.settle()
        port = stage.port
        async with stage.agent("a") as a:
            first = await read(a)
    async with open_journaled(disk, authority=authority, port=port, state=disk.written[-1]) as stage:
        assert stage.port == port
        assert stage.server.number_agent("b") == 3, "nobody knows whether the second agent was started"
        assert disk.written[-1].tenures == stage.server.state.tenures
        launched = [each.worker for each in stage.effects if isinstance(each, Launch)]
        assert launched == [each.worker for each in stage.server.state.workers.values() if each.worker.slot.host == "b"]
        former = authority.issue_agent("b", 1)
        async with stage.agent("a") as a, stage.agent("b", credential=former) as b:
            again = await read(a)
            assert isinstance(again, Published)
            assert (again, len(again.key)) == (first, KEY_BYTES)
            assert list(stage.server.topic("b")._standing) == [], "its next agent has no member of the generation"
            await a.report(1, [A0], [], LIMIT_SECONDS)
            with pytest.raises(CallRefusedError, match="another agent has replaced"):
                await b.report(1, [], [], LIMIT_SECONDS)


@in_clean_loop
async def test_an_agent_that_was_left_in_peace_is_answered_by_the_next_server() -> None:
    disk, authority = Disk(), Authority("job")
    policy = Policy.elastic(1, 2, 2, lease_seconds=LIMIT_SECONDS)
    async with open_journaled(disk, policy, authority=authority) as stage:
        stage.server.submit(Reported("b", (B0,)))
        stage.server.submit(HostsChanged(BOTH[:1]))
        stage.server.submit(Exited(B0, -15, was_stopped=True))
        await stage.server.settle()
        assert [each.host for each in stage.effects if isinstance(each, Dismiss)] == ["b"]
    async with (
        open_journaled(disk, policy, authority=authority, state=disk.written[-1]) as stage,
        stage.agent("b", credential=authority.issue_agent("b")) as b,
    ):
        await b.report(9, [], [], LIMIT_SECONDS)


@in_clean_loop
async def test_the_end_of_a_job_is_repeated_by_the_next_server() -> None:
    disk = Disk()
    policy = Policy.static(2)
    async with open_journaled(disk, policy) as stage:
        stage.server.submit(Exited(A0, 0))
        stage.server.submit(Exited(B0, 0))
        await stage.server.settle()
        (end,) = (each for each in stage.effects if isinstance(each, Finish))
    async with open_journaled(disk, policy, state=disk.written[-1]) as stage:
        assert stage.effects == [end]


@in_clean_loop
async def test_an_error_of_the_launcher_is_raised_in_the_owner_of_a_server_with_a_journal() -> None:
    def refuse(_: Effect) -> None:
        raise DiskError

    credential = Authority("job").issue_server()
    with pytest.raises(DiskError):  # noqa: PT012 - raised where the block is left
        server = Server(ELASTIC, refuse, credential, term=Term(journal=Disk()))
        async with asyncio.timeout(LIMIT_SECONDS), server:
            server.submit(HostsChanged(BOTH))
            await asyncio.Event().wait()
