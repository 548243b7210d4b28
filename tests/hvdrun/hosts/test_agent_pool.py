"""Orders to the agents of all hosts, and what they report, over transports that need no process."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from unittest.mock import AsyncMock

import pytest

from hvdrun.errors import HostLostEarlyError, HostLostError
from hvdrun.hosts import agent_pool as pool_module
from hvdrun.hosts.agent_connection import AgentConnection
from hvdrun.hosts.agent_pool import AgentPool
from hvdrun.hosts.lasting_transport import LastingTransport
from hvdrun.hosts.masters import Masters
from hvdrun.processes.background import BackgroundTasks
from rendezvous.core.messages import Exited, Launch, Terminate
from rendezvous.core.model import Assignment, Endpoint, Round, Slot, Worker
from rendezvous.core.outcome import TEMPORARY_FAILURE
from rendezvous.errors import WireError
from rendezvous.server.agent_streams import AgentStream
from rendezvous.wire import codec
from rendezvous.wire.orders import AgentMessage, Begin, Hello, Hold, Output, OutputStream, Release, Reserved, Wait
from tests.hvdrun.agent import jobs
from tests.hvdrun.played_agent import HOW_IT_ENDED, PlayedAgent, ignore
from tests.waiting import happen, in_loop

WORKERS = {host: Worker(Slot(host, 0), 1) for host in "ab"}
LAUNCHES = {host: Launch(worker, Assignment(0, 2, 0, 1, 0, 2), "placed") for host, worker in WORKERS.items()}
PIECE = Output(WORKERS["a"], OutputStream.STDOUT, b"text\n")


def make_begin(host: str) -> Begin:
    return replace(jobs.make_begin("/"), host=host)


class Launcher:
    """Receives the messages of the pool; shows them as soon as `reads` is set."""

    def __init__(self) -> None:
        self.shown: list[AgentMessage] = []
        self.lost: list[tuple[str, str]] = []
        self.reads = asyncio.Event()
        self.reads.set()

    async def show(self, _host: str, message: AgentMessage) -> None:
        """A piece of output."""
        await self.reads.wait()
        self.shown.append(message)

    def lose(self, host: str, how: str) -> None:
        """A host is lost."""
        self.lost.append((host, how))


@asynccontextmanager
async def opened(*begun: str, **agents: PlayedAgent) -> AsyncIterator[tuple[AgentPool, Launcher]]:
    """A pool of started agents, which is closed in the end; those on the hosts `begun` have received the job."""
    launcher, tasks = Launcher(), BackgroundTasks()
    pool = AgentPool(tasks, launcher.show, launcher.lose)
    try:
        async with tasks:
            for host, agent in agents.items():
                pool.add(host, agent)
                await pool.open(host)
            for host in begun:
                pool.begin(host, make_begin(host))
            yield pool, launcher
    finally:
        await pool.close()


@in_loop
async def test_orders_go_to_the_worker_s_host_and_after_the_news_of_the_job() -> None:
    a, b = PlayedAgent(), PlayedAgent()
    async with opened(a=a, b=b) as (pool, _):
        assert pool.hosts == ("a", "b")
        for launch in LAUNCHES.values():
            pool.order(launch)
        assert (a.orders, b.orders) == ([], [])
        pool.begin("a", make_begin("a"))
        terminate = Terminate(WORKERS["a"], 5.0, "the test wants it")
        pool.order(terminate)
        assert a.orders == [make_begin("a"), LAUNCHES["a"], terminate]
        assert b.orders == []
        pool.begin("b", make_begin("b"))
        assert b.orders == [make_begin("b"), LAUNCHES["b"]]


@in_loop
async def test_an_order_that_has_waited_for_its_round_until_its_host_was_lost_is_dropped() -> None:
    a, b = PlayedAgent(), PlayedAgent()
    async with opened("a", a=a, b=b) as (pool, _):
        masters = Masters(pool.order)
        for rank, host in enumerate("ab"):
            masters.order(replace(LAUNCHES[host], round=Round(0, rank, 2)))
        pool.abandon("b")
        masters.note_reserved(Reserved(Endpoint("10.0.0.1", 5000), 0))
        assert (len(a.orders), b.orders) == (2, [])


@in_loop
async def test_an_agent_of_a_former_launcher_gets_orders_and_is_heard() -> None:
    a = PlayedAgent()
    async with opened() as (pool, launcher):
        await pool.adopt("a", a)
        assert pool.has_begun("a")
        pool.order(LAUNCHES["a"])
        assert a.orders == [LAUNCHES["a"]]
        a.outbox.put_nowait(PIECE)
        await happen(lambda: launcher.shown == [PIECE])
        a.end()
        await happen(lambda: launcher.lost == [("a", HOW_IT_ENDED)])


@in_loop
async def test_a_worker_that_was_withdrawn_is_not_launched() -> None:
    a = PlayedAgent()
    async with opened(a=a) as (pool, _):
        pool.order(LAUNCHES["a"])
        assert not pool.has_begun("a")
        assert pool.withdraw(WORKERS["a"]) == Exited.before_start(WORKERS["a"])
        pool.begin("a", make_begin("a"))
        pool.withdraw(WORKERS["a"])  # no launch of this worker waits any more
        assert pool.has_begun("a")
        pool.order(LAUNCHES["a"])
        assert a.orders == [make_begin("a"), LAUNCHES["a"]]


@in_loop
async def test_answers_from_before_the_beginning_and_the_end_reach_every_caller() -> None:
    agent = PlayedAgent()
    async with opened(a=agent) as (pool, launcher):
        hello = Hello("1.0")
        agent.outbox.put_nowait(hello)
        assert await pool.hear("a") == hello
        agent.end()
        for _ in range(2):
            with pytest.raises(HostLostEarlyError, match="'a' was lost before the job began: its agent ended"):
                await pool.hear("a")
        assert launcher.shown == []


@pytest.mark.parametrize(
    ("last", "how"),
    [(None, HOW_IT_ENDED), (WireError("nonsense"), "the peer does not speak hvdrun's protocol: nonsense")],
    ids=["ends", "talks nonsense"],
)
@in_loop
async def test_a_host_whose_agent_is_gone_or_of_no_use_is_lost(last: Exception | None, how: str) -> None:
    agent = PlayedAgent()
    async with opened("a", a=agent) as (pool, launcher):
        agent.outbox.put_nowait(PIECE)
        agent.outbox.put_nowait(last)
        await happen(lambda: launcher.lost == [("a", how)])
        assert launcher.shown == [PIECE]
        with pytest.raises(HostLostError, match=f"'a' was lost: {how}"):  # and not before the job began
            await pool.hear("a")


@in_loop
async def test_an_error_of_the_launcher_while_output_is_shown_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(Launcher, "show", fail)
    agent = PlayedAgent()
    agent.outbox.put_nowait(PIECE)
    with pytest.raises(ZeroDivisionError):
        async with opened("a", a=agent):
            await asyncio.Event().wait()
    assert not agent.is_open


@in_loop
async def test_release_waits_longer_for_a_paused_reader_than_a_silent_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "RELEASE_SECONDS", 0.01)
    agent, looks = PlayedAgent(), 0

    def is_lost(_: str) -> bool:
        nonlocal looks
        looks += 1
        return False

    async with opened("a", a=agent) as (pool, launcher):
        launcher.reads.clear()
        agent.outbox.put_nowait(PIECE)
        releasing = asyncio.create_task(pool.release(is_lost))
        await happen(lambda: looks > 5 or releasing.done())  # a silent agent is looked at once
        assert not releasing.done()
        launcher.reads.set()
        await releasing
        assert launcher.shown == [PIECE]


@in_loop
async def test_release_does_not_wait_for_an_agent_that_stays_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "RELEASE_SECONDS", 0.01)
    async with opened("a", "b", a=PlayedAgent(obeys=False), b=PlayedAgent()) as (pool, _):
        await pool.release()


@in_loop
async def test_close_waits_for_no_reader() -> None:
    agent = PlayedAgent()
    async with opened("a", a=agent) as (pool, launcher):
        launcher.reads.clear()
        agent.outbox.put_nowait(PIECE)
        await asyncio.sleep(0)
        await pool.close()
        assert not agent.is_open
        assert (launcher.shown, launcher.lost) == ([], [])


@in_loop
async def test_close_raises_each_error_of_an_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PlayedAgent, "close", AsyncMock(side_effect=[OSError("first"), OSError("second")]))
    with pytest.raises(OSError, match="first") as caught:
        async with opened(a=PlayedAgent(), b=PlayedAgent()):
            pass
    (note,) = caught.value.__notes__
    assert note.endswith("OSError: second\n")


@in_loop
async def test_a_lost_host_is_abandoned_and_what_came_from_it_is_shown() -> None:
    silent, other = PlayedAgent(obeys=False), PlayedAgent()
    async with opened("a", "b", a=silent, b=other) as (pool, launcher):
        silent.outbox.put_nowait(PIECE)
        await pool.release(lambda host: host == "a")
        assert (silent.is_abandoned, other.is_abandoned) == (True, False)
        assert other.orders[-1] == Release()
        assert (launcher.shown, launcher.lost) == ([PIECE], [])


@in_loop
async def test_agents_that_wait_for_the_job_learn_that_their_launcher_lives() -> None:
    first, second, launcher, tasks = PlayedAgent(), PlayedAgent(), Launcher(), BackgroundTasks()
    pool = AgentPool(tasks, launcher.show, launcher.lose, launcher_timeout_seconds=0.06)
    async with tasks:
        for host, agent in {"a": first, "b": second}.items():
            pool.add(host, agent)
            await pool.open(host)
        pool.begin("a", make_begin("a"))
        await happen(lambda: first.orders.count(Wait(0.06)) > 3)  # its worker was withdrawn
        pool.order(LAUNCHES["a"])
        before, known = len(first.orders), second.orders.count(Wait(0.06))
        await happen(lambda: second.orders.count(Wait(0.06)) > known + 3)
        assert len(first.orders) == before
        pool.hold(held=True)
        assert (first.orders[-1], second.orders[-1]) == (Hold(held=True), Wait(None))
        count = len(second.orders)
        await asyncio.sleep(0.1)  # nothing happens that could be waited for
        assert len(second.orders) == count
    await pool.close()


@in_loop
async def test_a_started_agent_learns_immediately_how_long_it_waits_for_its_launcher() -> None:
    agent, launcher, tasks = PlayedAgent(), Launcher(), BackgroundTasks()
    pool = AgentPool(tasks, launcher.show, launcher.lose, launcher_timeout_seconds=600.0)
    async with tasks:
        pool.add("a", agent)
        await pool.open("a")
        assert agent.orders == [Wait(600.0)]
    await pool.close()


@in_loop
async def test_other_tasks_run_between_two_pieces_of_output() -> None:
    agent = PlayedAgent()
    for _ in range(100):
        agent.outbox.put_nowait(PIECE)
    seen = set()
    async with opened(a=agent) as (_, launcher):
        while len(launcher.shown) < 100:
            seen.add(len(launcher.shown))
            await asyncio.sleep(0)
    assert len(seen) > 50


@in_loop
async def test_a_host_that_is_given_up_may_get_another_agent() -> None:
    first, second = PlayedAgent(obeys=False), PlayedAgent()
    async with opened("a", a=first) as (pool, launcher):
        pool.abandon("a")
        assert pool.hosts == ()
        assert not pool.has_begun("a")
        pool.add("a", second)
        await pool.open("a")
        assert not pool.has_begun("a")
        pool.order(LAUNCHES["a"])
        await happen(lambda: first.is_abandoned and not first.is_open)
        assert launcher.lost == []
        pool.begin("a", make_begin("a"))
        assert second.orders == [make_begin("a"), LAUNCHES["a"]]


@in_loop
async def test_the_agent_of_a_retired_host_is_released_and_its_last_output_is_shown() -> None:
    agent = PlayedAgent()
    async with opened(a=agent) as (pool, launcher):
        agent.outbox.put_nowait(PIECE)
        pool.retire("a")
        assert (pool.hosts, agent.orders) == ((), [Release(75)])
        await happen(lambda: not agent.is_open)
        assert (launcher.shown, launcher.lost) == ([PIECE], [])


@in_loop
async def test_release_waits_for_the_output_of_a_host_that_the_job_has_left() -> None:
    agent = PlayedAgent(obeys=False)
    async with opened("a", a=agent) as (pool, launcher):
        pool.retire("a")
        releasing = asyncio.create_task(pool.release())
        await asyncio.sleep(0)
        agent.outbox.put_nowait(PIECE)
        agent.end()
        await releasing
        assert launcher.shown == [PIECE]
        assert not agent.is_abandoned


@in_loop
async def test_close_ends_a_released_agent_that_does_not_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "RELEASE_SECONDS", 600.0)
    slow, silent = PlayedAgent(obeys=False), PlayedAgent(obeys=False)
    async with opened(a=slow, b=silent) as (pool, _):
        pool.retire("a")
    assert slow.is_abandoned
    assert [agent.is_open for agent in (slow, silent)] == [False, False]


@in_loop
async def test_a_host_that_the_job_has_left_cannot_be_heard() -> None:
    async with opened() as (pool, _):
        pool.send("a", Release())
        with pytest.raises(HostLostEarlyError, match="has left it"):
            await pool.hear("a")
        with pytest.raises(HostLostEarlyError, match="has left it"):
            await pool.tunnel("a", 1)


@in_loop
async def test_an_agent_that_is_given_up_keeps_no_caller_waiting_for_an_answer() -> None:
    agent = PlayedAgent(obeys=False)
    async with BackgroundTasks() as tasks:
        connection = AgentConnection("a", agent, tasks, ignore, lambda *_: pytest.fail("it counts as lost"))
        await connection.open()
        hearing = asyncio.create_task(connection.hear())
        await asyncio.sleep(0)
        connection.abandon()
        connection.abandon()
        with pytest.raises(HostLostEarlyError, match="given up"):
            await hearing
        await connection.close()
    assert agent.story == ["opened", "abandoned", "closed"]


@in_loop
async def test_closing_an_agent_that_is_being_started_calls_that_off_first() -> None:
    agent = PlayedAgent(starts=False)
    async with BackgroundTasks() as tasks:
        connection = AgentConnection("a", agent, tasks, ignore, lambda *_: pytest.fail("it counts as lost"))
        opening = asyncio.create_task(connection.open())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        await connection.close()
        assert agent.story == ["called off", "closed"]
        await asyncio.wait({opening})
        assert opening.cancelled()


@in_loop
async def test_the_agent_of_a_host_that_a_former_launcher_has_left_is_released_and_heard_to_its_end() -> None:
    async with opened() as (pool, launcher):
        stream, transport = AgentStream(), LastingTransport("a", None)
        transport.attach(stream)
        await pool.adopt_left("a", transport)
        async with aclosing(stream.orders()) as orders:
            assert await anext(orders) == Release(TEMPORARY_FAILURE)
        assert await stream.receive(1, [codec.pack_agent_message(PIECE)], is_last=True) == 1
        assert (launcher.shown, launcher.lost, pool.hosts) == ([PIECE], [], ())
