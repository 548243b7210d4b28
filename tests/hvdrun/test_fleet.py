"""Orders to the agents of all hosts, and what they tell, over transports that need no process.

Long because a host can be slow, silent, lost, left or given up at each of its stages, and every one has its test.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine

import pytest

from hvdrun import fleet as fleet_module
from hvdrun.errors import HostLostEarlyError, HostsFailedError, LaunchError
from hvdrun.fleet import Fleet
from rendezvous.core.effects import Launch, Terminate
from rendezvous.core.model import Assignment, Slot, Worker
from rendezvous.credentials import Credential
from rendezvous.errors import WireError
from rendezvous.orders import Begin, Hello, Hold, Order, Output, OutputStream, Release, Telling, Wait

LIMIT_SECONDS = 10.0
WORKERS = {host: Worker(Slot(host, 0), 1) for host in "ab"}
LAUNCHES = {host: Launch(worker, Assignment(0, 2, 0, 1, 0, 2), "placed") for host, worker in WORKERS.items()}
PIECE = Output(WORKERS["a"], OutputStream.STDOUT, b"text\n")


def make_begin(host: str) -> Begin:
    return Begin(
        job="job",
        host=host,
        server="127.0.0.1:1",
        credential=Credential(b"", b"", b""),
        command=("true",),
        directory="/",
        environment={},
        lease_seconds=30,
        start_timeout_seconds=30,
        address="127.0.0.1",
    )


class Agent:
    """A transport with an agent that tells what the test has put in, and ends when told to."""

    def __init__(self, *, failure: str = "", obeys: bool = True) -> None:
        self.orders: list[Order] = []
        self.told: asyncio.Queue[Telling | Exception | None] = asyncio.Queue()
        self.is_open = False
        self.is_abandoned = False
        self._failure = failure
        self._obeys = obeys

    async def open(self) -> None:
        """See `Transport`."""
        if self._failure:
            raise LaunchError(self._failure)
        self.is_open = True

    def send(self, order: Order) -> None:
        """See `Transport`."""
        self.orders.append(order)
        if self._obeys and isinstance(order, Release):
            self.told.put_nowait(None)

    async def tellings(self) -> AsyncIterator[Telling]:
        """See `Transport`."""
        while (telling := await self.told.get()) is not None:
            if isinstance(telling, Exception):
                raise telling
            yield telling

    async def wait(self) -> str:
        """See `Transport`."""
        return "its agent ended"

    async def tunnel(self, port: int) -> int:
        """See `Transport`."""
        return port

    async def abandon(self) -> None:
        """See `Transport`."""
        self.is_abandoned = True
        self.told.put_nowait(None)

    async def close(self) -> None:
        """See `Transport`."""
        self.is_open = False


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


def run(scenario: Callable[[], Coroutine[object, object, None]]) -> None:
    asyncio.run(asyncio.wait_for(scenario(), LIMIT_SECONDS))


def make_fleet(launcher: Launcher, **agents: Agent) -> Fleet:
    return Fleet(agents, launcher.show, launcher.lose)


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - lists have no events
        await asyncio.sleep(0)


def test_all_agents_that_cannot_be_started_are_named() -> None:
    async def scenario() -> None:
        agents = {"a": Agent(failure="a is down."), "b": Agent(), "c": Agent(failure="c is away.")}
        fleet = make_fleet(Launcher(), **agents)
        with pytest.raises(HostsFailedError) as caught:
            await fleet.open()
        assert caught.value.lines == ("2 of 3 hosts cannot be used:", "a is down.", "c is away.")
        assert fleet.awaited == ("a", "c")
        assert agents["b"].is_open
        await fleet.close()
        assert not agents["b"].is_open

    run(scenario)


def test_orders_go_to_the_worker_s_host_and_after_the_news_of_the_job() -> None:
    async def scenario() -> None:
        a, b = Agent(), Agent()
        fleet = make_fleet(Launcher(), a=a, b=b)
        assert fleet.hosts == ("a", "b")
        await fleet.open()
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
        await fleet.close()

    run(scenario)


def test_a_worker_that_was_withdrawn_is_not_launched() -> None:
    async def scenario() -> None:
        a = Agent()
        fleet = make_fleet(Launcher(), a=a)
        await fleet.open()
        fleet.order(LAUNCHES["a"])
        assert not fleet.has_begun("a")
        fleet.withdraw(WORKERS["a"])
        fleet.begin("a", make_begin("a"))
        assert fleet.has_begun("a")
        assert [order for order in a.orders if isinstance(order, Begin | Launch)] == [make_begin("a")]
        await fleet.close()

    run(scenario)


def test_answers_from_before_the_beginning_are_for_whoever_asks_and_so_is_the_end() -> None:
    async def scenario() -> None:
        agent, launcher = Agent(), Launcher()
        fleet = make_fleet(launcher, a=agent)
        await fleet.open()
        hello = Hello("1.0", "host", "3.11")
        agent.told.put_nowait(hello)
        assert await fleet.hear("a") == hello
        agent.told.put_nowait(None)
        for _ in range(2):
            with pytest.raises(HostLostEarlyError, match="'a' was lost before the job began: its agent ended"):
                await fleet.hear("a")
        assert launcher.shown == []
        await fleet.close()

    run(scenario)


def test_what_agents_tell_is_shown() -> None:
    async def scenario() -> None:
        agent, launcher = Agent(), Launcher()
        fleet = make_fleet(launcher, a=agent)
        await fleet.open()
        fleet.begin("a", make_begin("a"))
        agent.told.put_nowait(PIECE)
        await until(lambda: launcher.shown == [PIECE])
        await fleet.close()

    run(scenario)


@pytest.mark.parametrize(
    ("last", "how"),
    [(None, "its agent ended"), (WireError("nonsense"), "the peer does not speak hvdrun's protocol: nonsense")],
    ids=["ends", "talks nonsense"],
)
def test_a_host_whose_agent_is_gone_or_of_no_use_is_lost(last: Exception | None, how: str) -> None:
    async def scenario() -> None:
        agent, launcher = Agent(), Launcher()
        fleet = make_fleet(launcher, a=agent)
        await fleet.open()
        fleet.begin("a", make_begin("a"))
        agent.told.put_nowait(last)
        await until(lambda: launcher.lost == [("a", how)])
        await fleet.close()

    run(scenario)


def test_a_released_host_is_not_lost_and_its_last_output_is_shown() -> None:
    async def scenario() -> None:
        agent, launcher = Agent(), Launcher()
        fleet = make_fleet(launcher, a=agent)
        await fleet.open()
        fleet.begin("a", make_begin("a"))
        agent.told.put_nowait(PIECE)
        await fleet.release()
        assert agent.orders[-1] == Release()
        assert (launcher.shown, launcher.lost) == ([PIECE], [])
        await fleet.close()

    run(scenario)


def test_a_reader_who_pauses_is_waited_for_longer_than_a_silent_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        agent, launcher = Agent(), Launcher()
        launcher.reads.clear()
        fleet = make_fleet(launcher, a=agent)
        await fleet.open()
        fleet.begin("a", make_begin("a"))
        agent.told.put_nowait(PIECE)
        releasing = asyncio.create_task(fleet.release())
        done, _ = await asyncio.wait({releasing}, timeout=0.3)
        assert not done
        launcher.reads.set()
        await releasing
        assert launcher.shown == [PIECE]
        await fleet.close()

    monkeypatch.setattr(fleet_module, "RELEASE_SECONDS", 0.05)
    run(scenario)


def test_an_agent_that_stays_silent_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        silent, other = Agent(obeys=False), Agent()
        fleet = make_fleet(Launcher(), a=silent, b=other)
        await fleet.open()
        for host in "ab":
            fleet.begin(host, make_begin(host))
        await fleet.release()
        await fleet.close()

    monkeypatch.setattr(fleet_module, "RELEASE_SECONDS", 0.05)
    run(scenario)


def test_closing_waits_for_nobody_s_reader() -> None:
    async def scenario() -> None:
        agent, launcher = Agent(), Launcher()
        launcher.reads.clear()
        fleet = make_fleet(launcher, a=agent)
        await fleet.open()
        fleet.begin("a", make_begin("a"))
        agent.told.put_nowait(PIECE)
        await asyncio.sleep(0)
        await fleet.close()
        assert not agent.is_open
        assert (launcher.shown, launcher.lost) == ([], [])

    run(scenario)


def test_a_lost_host_is_abandoned_and_what_came_from_it_is_shown() -> None:
    async def scenario() -> None:
        silent, other, launcher = Agent(obeys=False), Agent(), Launcher()
        fleet = make_fleet(launcher, a=silent, b=other)
        await fleet.open()
        for host in "ab":
            fleet.begin(host, make_begin(host))
        silent.told.put_nowait(PIECE)
        await fleet.release(lambda host: host == "a")
        assert (silent.is_abandoned, other.is_abandoned) == (True, False)
        assert (launcher.shown, launcher.lost) == ([PIECE], [])
        await fleet.close()

    run(scenario)


def test_agents_that_wait_for_the_job_are_told_that_their_launcher_is_there() -> None:
    async def scenario() -> None:
        first, second, launcher = Agent(), Agent(), Launcher()
        fleet = Fleet({"a": first, "b": second}, launcher.show, launcher.lose, patience_seconds=0.06)
        await fleet.open()
        fleet.begin("a", make_begin("a"))
        before = len(first.orders)
        await until(lambda: second.orders.count(Wait(0.06)) > 3)
        assert len(first.orders) == before
        fleet.hold(held=True)
        assert (first.orders[-1], second.orders[-1]) == (Hold(held=True), Wait(None))
        count = len(second.orders)
        await asyncio.sleep(0.1)
        assert len(second.orders) == count
        await fleet.close()

    run(scenario)


def test_other_tasks_run_between_two_pieces_of_output() -> None:
    async def scenario() -> None:
        agent, launcher = Agent(), Launcher()
        fleet = make_fleet(launcher, a=agent)
        for _ in range(100):
            agent.told.put_nowait(PIECE)
        await fleet.open()
        seen = []
        while len(launcher.shown) < 100:
            seen.append(len(launcher.shown))
            await asyncio.sleep(0)
        assert len(set(seen)) > 50
        await fleet.close()

    run(scenario)


def test_a_host_that_is_given_up_may_get_another_agent_at_once() -> None:
    async def scenario() -> None:
        first, second, launcher = Agent(obeys=False), Agent(), Launcher()
        fleet = make_fleet(launcher, a=first)
        await fleet.open()
        fleet.begin("a", make_begin("a"))
        fleet.abandon("a")
        assert fleet.hosts == ()
        assert not fleet.has_begun("a")
        fleet.add("a", second)
        await fleet.open_one("a")
        assert not fleet.has_begun("a")
        fleet.order(LAUNCHES["a"])
        await until(lambda: first.is_abandoned and not first.is_open)
        assert launcher.lost == []
        fleet.begin("a", make_begin("a"))
        assert second.orders == [make_begin("a"), LAUNCHES["a"]]
        await fleet.close()

    run(scenario)


def test_a_host_that_is_left_is_let_go_and_what_it_still_says_is_shown() -> None:
    async def scenario() -> None:
        agent, launcher = Agent(), Launcher()
        fleet = make_fleet(launcher, a=agent)
        await fleet.open()
        agent.told.put_nowait(PIECE)
        fleet.retire("a")
        assert (fleet.hosts, agent.orders) == ((), [Release()])
        await until(lambda: not agent.is_open)
        assert (launcher.shown, launcher.lost) == ([PIECE], [])
        await fleet.close()

    run(scenario)


def test_one_that_does_not_go_is_waited_for_no_longer_than_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        slow, silent, launcher = Agent(obeys=False), Agent(obeys=False), Launcher()
        fleet = make_fleet(launcher, a=slow, b=silent)
        await fleet.open()
        fleet.retire("a")
        await fleet.close()
        assert slow.is_abandoned
        assert [agent.is_open for agent in (slow, silent)] == [False, False]

    monkeypatch.setattr(fleet_module, "RELEASE_SECONDS", 60.0)
    run(scenario)


def test_nobody_is_asked_on_a_host_that_the_job_has_left() -> None:
    async def scenario() -> None:
        fleet = make_fleet(Launcher())
        fleet.send("a", Release())
        with pytest.raises(HostLostEarlyError, match="has left it"):
            await fleet.hear("a")
        with pytest.raises(HostLostEarlyError, match="has left it"):
            await fleet.tunnel("a", 1)
        await fleet.close()

    run(scenario)
