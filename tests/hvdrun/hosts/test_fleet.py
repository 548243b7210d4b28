"""Orders to the agents of all hosts, and what they report, over transports that need no process.

Long because each thing that a fleet does for its launcher has its test here.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from hvdrun.errors import HostLostEarlyError, HostLostError
from hvdrun.hosts import fleet as fleet_module
from hvdrun.hosts.contact import Contact
from hvdrun.hosts.fleet import Fleet
from hvdrun.processes.background import BackgroundTasks
from rendezvous.core.messages import Launch, Terminate
from rendezvous.core.model import Assignment, Slot, Worker
from rendezvous.errors import WireError
from rendezvous.orders import Begin, Hello, Hold, Output, OutputStream, Release, Telling, Wait
from tests.hvdrun.agent import jobs
from tests.hvdrun.played_agent import HOW_IT_ENDED, PlayedAgent, ignore
from tests.waiting import happen, in_loop

WORKERS = {host: Worker(Slot(host, 0), 1) for host in "ab"}
LAUNCHES = {host: Launch(worker, Assignment(0, 2, 0, 1, 0, 2), "placed") for host, worker in WORKERS.items()}
PIECE = Output(WORKERS["a"], OutputStream.STDOUT, b"text\n")


def make_begin(host: str) -> Begin:
    return replace(jobs.make_begin("/"), host=host)


class Launcher:
    """Whom the fleet tells; shows what is told as soon as `reads` is set."""

    def __init__(self) -> None:
        self.shown: list[Telling] = []
        self.lost: list[tuple[str, str]] = []
        self.reads = asyncio.Event()
        self.reads.set()

    async def show(self, telling: Telling) -> None:
        """A piece of output."""
        await self.reads.wait()
        self.shown.append(telling)

    def lose(self, host: str, how: str) -> None:
        """A host is lost."""
        self.lost.append((host, how))


@asynccontextmanager
async def opened(*begun: str, **agents: PlayedAgent) -> AsyncIterator[tuple[Fleet, Launcher]]:
    """A fleet of started agents, which is closed in the end; those on the hosts `begun` have been told of the job."""
    launcher, tasks = Launcher(), BackgroundTasks()
    fleet = Fleet(tasks, launcher.show, launcher.lose)
    try:
        async with tasks:
            for host, agent in agents.items():
                fleet.add(host, agent)
                await fleet.open(host)
            for host in begun:
                fleet.begin(host, make_begin(host))
            yield fleet, launcher
    finally:
        await fleet.close()


@in_loop
async def test_orders_go_to_the_worker_s_host_and_after_the_news_of_the_job() -> None:
    a, b = PlayedAgent(), PlayedAgent()
    async with opened(a=a, b=b) as (fleet, _):
        assert fleet.hosts == ("a", "b")
        for launch in LAUNCHES.values():
            fleet.order(launch)
        assert (a.orders, b.orders) == ([], [])
        fleet.begin("a", make_begin("a"))
        terminate = Terminate(WORKERS["a"], 5.0, "the test wants it")
        fleet.order(terminate)
        assert a.orders == [make_begin("a"), LAUNCHES["a"], terminate]
        assert b.orders == []
        fleet.begin("b", make_begin("b"))
        assert b.orders == [make_begin("b"), LAUNCHES["b"]]


@in_loop
async def test_a_worker_that_was_withdrawn_is_not_launched() -> None:
    a = PlayedAgent()
    async with opened(a=a) as (fleet, _):
        fleet.order(LAUNCHES["a"])
        assert not fleet.has_begun("a")
        fleet.withdraw(WORKERS["a"])
        fleet.begin("a", make_begin("a"))
        assert fleet.has_begun("a")
        assert a.orders == [make_begin("a")]


@in_loop
async def test_answers_from_before_the_beginning_are_for_whoever_asks_and_so_is_the_end() -> None:
    agent = PlayedAgent()
    async with opened(a=agent) as (fleet, launcher):
        hello = Hello("1.0", "host", "3.11")
        agent.told.put_nowait(hello)
        assert await fleet.hear("a") == hello
        agent.end()
        for _ in range(2):
            with pytest.raises(HostLostEarlyError, match="'a' was lost before the job began: its agent ended"):
                await fleet.hear("a")
        assert launcher.shown == []


@pytest.mark.parametrize(
    ("last", "how"),
    [(None, HOW_IT_ENDED), (WireError("nonsense"), "the peer does not speak hvdrun's protocol: nonsense")],
    ids=["ends", "talks nonsense"],
)
@in_loop
async def test_a_host_whose_agent_is_gone_or_of_no_use_is_lost(last: Exception | None, how: str) -> None:
    agent = PlayedAgent()
    async with opened("a", a=agent) as (fleet, launcher):
        agent.told.put_nowait(PIECE)
        agent.told.put_nowait(last)
        await happen(lambda: launcher.lost == [("a", how)])
        assert launcher.shown == [PIECE]
        with pytest.raises(HostLostError, match=f"'a' was lost: {how}"):  # and not before the job began
            await fleet.hear("a")


@in_loop
async def test_an_error_of_the_launcher_while_output_is_shown_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(Launcher, "show", fail)
    agent = PlayedAgent()
    agent.told.put_nowait(PIECE)
    with pytest.raises(ZeroDivisionError):
        async with opened("a", a=agent):
            await asyncio.Event().wait()
    assert not agent.is_open


@in_loop
async def test_release_waits_longer_for_a_paused_reader_than_a_silent_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_module, "RELEASE_SECONDS", 0.01)
    agent, looks = PlayedAgent(), 0

    def is_lost(_: str) -> bool:
        nonlocal looks
        looks += 1
        return False

    async with opened("a", a=agent) as (fleet, launcher):
        launcher.reads.clear()
        agent.told.put_nowait(PIECE)
        releasing = asyncio.create_task(fleet.release(is_lost))
        await happen(lambda: looks > 5 or releasing.done())  # a silent agent is looked at once
        assert not releasing.done()
        launcher.reads.set()
        await releasing
        assert launcher.shown == [PIECE]


@in_loop
async def test_release_does_not_wait_for_an_agent_that_stays_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_module, "RELEASE_SECONDS", 0.01)
    async with opened("a", "b", a=PlayedAgent(obeys=False), b=PlayedAgent()) as (fleet, _):
        await fleet.release()


@in_loop
async def test_close_waits_for_nobody_s_reader() -> None:
    agent = PlayedAgent()
    async with opened("a", a=agent) as (fleet, launcher):
        launcher.reads.clear()
        agent.told.put_nowait(PIECE)
        await asyncio.sleep(0)
        await fleet.close()
        assert not agent.is_open
        assert (launcher.shown, launcher.lost) == ([], [])


@in_loop
async def test_a_lost_host_is_abandoned_and_what_came_from_it_is_shown() -> None:
    silent, other = PlayedAgent(obeys=False), PlayedAgent()
    async with opened("a", "b", a=silent, b=other) as (fleet, launcher):
        silent.told.put_nowait(PIECE)
        await fleet.release(lambda host: host == "a")
        assert (silent.is_abandoned, other.is_abandoned) == (True, False)
        assert other.orders[-1] == Release()
        assert (launcher.shown, launcher.lost) == ([PIECE], [])


@in_loop
async def test_agents_that_wait_for_the_job_are_told_that_their_launcher_is_there() -> None:
    first, second, launcher, tasks = PlayedAgent(), PlayedAgent(), Launcher(), BackgroundTasks()
    fleet = Fleet(tasks, launcher.show, launcher.lose, patience_seconds=0.06)
    async with tasks:
        for host, agent in {"a": first, "b": second}.items():
            fleet.add(host, agent)
            await fleet.open(host)
        fleet.begin("a", make_begin("a"))
        before = len(first.orders)
        await happen(lambda: second.orders.count(Wait(0.06)) > 3)
        assert len(first.orders) == before
        fleet.hold(held=True)
        assert (first.orders[-1], second.orders[-1]) == (Hold(held=True), Wait(None))
        count = len(second.orders)
        await asyncio.sleep(0.1)  # nothing happens that could be waited for
        assert len(second.orders) == count
    await fleet.close()


@in_loop
async def test_other_tasks_run_between_two_pieces_of_output() -> None:
    agent = PlayedAgent()
    for _ in range(100):
        agent.told.put_nowait(PIECE)
    seen = set()
    async with opened(a=agent) as (_, launcher):
        while len(launcher.shown) < 100:
            seen.add(len(launcher.shown))
            await asyncio.sleep(0)
    assert len(seen) > 50


@in_loop
async def test_a_host_that_is_given_up_may_get_another_agent() -> None:
    first, second = PlayedAgent(obeys=False), PlayedAgent()
    async with opened("a", a=first) as (fleet, launcher):
        fleet.abandon("a")
        assert fleet.hosts == ()
        assert not fleet.has_begun("a")
        fleet.add("a", second)
        await fleet.open("a")
        assert not fleet.has_begun("a")
        fleet.order(LAUNCHES["a"])
        await happen(lambda: first.is_abandoned and not first.is_open)
        assert launcher.lost == []
        fleet.begin("a", make_begin("a"))
        assert second.orders == [make_begin("a"), LAUNCHES["a"]]


@in_loop
async def test_a_host_that_is_left_is_let_go_and_what_it_still_says_is_shown() -> None:
    agent = PlayedAgent()
    async with opened(a=agent) as (fleet, launcher):
        agent.told.put_nowait(PIECE)
        fleet.retire("a")
        assert (fleet.hosts, agent.orders) == ((), [Release(75)])
        await happen(lambda: not agent.is_open)
        assert (launcher.shown, launcher.lost) == ([PIECE], [])


@in_loop
async def test_close_ends_an_agent_that_was_let_go_and_does_not_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_module, "RELEASE_SECONDS", 600.0)
    slow, silent = PlayedAgent(obeys=False), PlayedAgent(obeys=False)
    async with opened(a=slow, b=silent) as (fleet, _):
        fleet.retire("a")
    assert slow.is_abandoned
    assert [agent.is_open for agent in (slow, silent)] == [False, False]


@in_loop
async def test_a_host_that_the_job_has_left_cannot_be_asked() -> None:
    async with opened() as (fleet, _):
        fleet.send("a", Release())
        with pytest.raises(HostLostEarlyError, match="has left it"):
            await fleet.hear("a")
        with pytest.raises(HostLostEarlyError, match="has left it"):
            await fleet.tunnel("a", 1)


@in_loop
async def test_an_agent_that_is_given_up_keeps_nobody_waiting_for_an_answer() -> None:
    agent = PlayedAgent(obeys=False)
    async with BackgroundTasks() as tasks:
        contact = Contact("a", agent, tasks, ignore, lambda *_: pytest.fail("it counts as lost"))
        await contact.open()
        hearing = asyncio.create_task(contact.hear())
        await asyncio.sleep(0)
        contact.abandon()
        contact.abandon()
        with pytest.raises(HostLostEarlyError, match="given up"):
            await hearing
        await contact.close()
    assert agent.story == ["opened", "abandoned", "closed"]


@in_loop
async def test_closing_an_agent_that_is_being_started_calls_that_off_first() -> None:
    agent = PlayedAgent(starts=False)
    async with BackgroundTasks() as tasks:
        contact = Contact("a", agent, tasks, ignore, lambda *_: pytest.fail("it counts as lost"))
        opening = asyncio.create_task(contact.open())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        await contact.close()
        assert agent.story == ["called off", "closed"]
        await asyncio.wait({opening})
        assert opening.cancelled()
