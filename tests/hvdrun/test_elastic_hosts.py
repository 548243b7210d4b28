"""The hosts of an elastic job: found, brought in, lost, left; with agents and a rendezvous of the test's own.

Long because each of these has its test, and all of them need the same agents and the same office around them.
"""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from hvdrun import elastic_hosts as elastic_hosts_module
from hvdrun.briefing import Briefing
from hvdrun.console import Console
from hvdrun.discovery_script import DiscoveryImpossibleError
from hvdrun.elastic_hosts import ElasticHosts
from hvdrun.elasticity import Elasticity
from hvdrun.errors import HostsFailedError, LaunchError, OtherUserError
from hvdrun.fleet import Fleet
from hvdrun.jobspec import JobSpec, RemoteSide
from hvdrun.narrator import Narrator
from hvdrun.rank_book import RankBook
from rendezvous.authority import Authority
from rendezvous.core.errors import IllegalEventError
from rendezvous.core.events import Event, HostsChanged, Lost
from rendezvous.core.model import Host
from rendezvous.orders import Begin, Order, Release, Telling
from rendezvous.server import Server

LIMIT_SECONDS = 20.0


class Agent:
    """A transport whose agent starts unless it fails, and ends when it is let go or the test says so."""

    def __init__(self, failure: str = "") -> None:
        self.orders: list[Order] = []
        self.is_abandoned = False
        self._failure = failure
        self._ended = asyncio.Event()

    async def open(self) -> None:
        """See `Transport`."""
        if self._failure:
            raise LaunchError(self._failure)

    def send(self, order: Order) -> None:
        """See `Transport`."""
        self.orders.append(order)
        if isinstance(order, Release):
            self.end()

    def end(self) -> None:
        """It ends."""
        self._ended.set()

    async def tellings(self) -> AsyncIterator[Telling]:
        """See `Transport`."""
        await self._ended.wait()
        nothing: tuple[Telling, ...] = ()
        for telling in nothing:
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

    async def close(self) -> None:
        """See `Transport`."""


class Office:
    """A job's hosts, and what the rendezvous and the user are told."""

    def __init__(self, spec: JobSpec) -> None:
        self.agents: dict[str, list[Agent]] = {}
        self.failures: dict[str, str] = {}
        self.events: list[Event] = []
        self.said: list[str] = []
        self.numbers: dict[str, int] = {}
        self.is_over = False
        self.fleet = Fleet({}, self._show, self._lose)
        narrator = Narrator(spec, cast("Console", self), RankBook(lambda: None))
        briefing = Briefing(spec, "job", Authority("job"), lambda _: None, {})
        self.hosts = ElasticHosts(
            spec, self.fleet, cast("Server", self), briefing, narrator, notice=self.notice, verbose=lambda _: None
        )

    def notice(self, text: str) -> None:
        """The user is told."""
        self.said.append(text)

    async def open(self, address: str) -> int:
        """See `Server`."""
        assert address == "127.0.0.1"
        return 1

    def tell(self, event: Event) -> None:
        """See `Server`."""
        if isinstance(event, Lost) and event.host == "stranger":
            raise IllegalEventError(event, "it is not in use")
        self.events.append(event)

    def number_agent(self, host: str) -> int:
        """See `Server`."""
        return self.numbers.get(host, 1)

    def reach(self, hosts: tuple[str, ...], _spec: JobSpec, _gate: asyncio.Semaphore) -> dict[str, Agent]:
        """See `reach_all`."""
        (host,) = hosts
        self.agents.setdefault(host, []).append(Agent(self.failures.get(host, "")))
        return {host: self.agents[host][-1]}

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for what is told, or ordered, or for the end of it all."""
        while not (condition() or self.is_over):  # noqa: ASYNC110 - agents have no events
            await asyncio.sleep(0.001)

    def begin_of(self, host: str) -> Begin | None:
        """What the newest agent of a host was told of the job."""
        orders = self.agents[host][-1].orders if host in self.agents else []
        return next((order for order in orders if isinstance(order, Begin)), None)

    def _lose(self, host: str, how: str) -> None:
        self.hosts.lose(host, how)

    async def _show(self, _: Telling) -> None: ...


@pytest.fixture
def spec(tmp_path: Path) -> JobSpec:
    return JobSpec(("true",), 1, (Host("localhost", 2), Host("127.0.0.1", 1)), tmp_path, Elasticity(1))


@asynccontextmanager
async def opened(spec: JobSpec, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Office]:
    office = Office(spec)
    monkeypatch.setattr(elastic_hosts_module, "reach_all", office.reach)
    running = asyncio.create_task(office.hosts.run())
    running.add_done_callback(lambda _: setattr(office, "is_over", True))
    try:
        await office.until(lambda: bool(office.events))
        yield office
    finally:
        running.cancel()
        await asyncio.wait({running})
        await office.fleet.close()
    if not running.cancelled():
        running.result()


def run(scenario: Callable[[], Coroutine[object, object, None]]) -> None:
    asyncio.run(asyncio.wait_for(scenario(), LIMIT_SECONDS))


def test_hosts_are_brought_in_when_they_are_wanted(spec: JobSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with opened(spec, monkeypatch) as office:
            assert office.events == [HostsChanged(spec.hosts)]
            assert office.agents == {}
            assert office.hosts.want("localhost")
            await office.until(lambda: office.begin_of("localhost") is not None)
            begin = office.begin_of("localhost")
            assert begin is not None
            assert (begin.job, begin.master, begin.address) == ("job", None, "127.0.0.1")
            assert begin.environment[b"HOROVOD_ELASTIC"] == b"1"
            assert begin.environment[b"OMP_NUM_THREADS"] == b"1"  # two slots
            assert [*office.agents] == ["localhost"]

    run(scenario)


def test_a_lost_host_may_get_another_agent_with_an_identity_of_its_own(
    spec: JobSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with opened(spec, monkeypatch) as office:
            office.hosts.want("localhost")
            await office.until(lambda: office.begin_of("localhost") is not None)
            office.agents["localhost"][0].end()
            await office.until(lambda: Lost("localhost", "its agent ended") in office.events)
            assert office.agents["localhost"][0].is_abandoned
            office.numbers["localhost"] = 2
            office.hosts.want("localhost")
            await office.until(lambda: len(office.agents["localhost"]) == 2 and bool(office.begin_of("localhost")))
            begin = office.begin_of("localhost")
            assert begin is not None
            assert begin.job == "job~2"

    run(scenario)


def test_a_host_that_is_dismissed_while_it_is_offered_was_lost_and_is_given_up(
    spec: JobSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with opened(spec, monkeypatch) as office:
            office.hosts.dismiss("localhost")  # it has none
            office.hosts.want("localhost")
            await office.until(lambda: office.begin_of("localhost") is not None)
            office.hosts.dismiss("localhost")
            assert office.fleet.hosts == ()
            await office.until(lambda: office.agents["localhost"][0].is_abandoned)
            assert office.events == [HostsChanged(spec.hosts)]

    run(scenario)


def test_a_host_that_fails_is_lost_and_the_others_are_used(spec: JobSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with opened(spec, monkeypatch) as office:
            office.failures["localhost"] = "it is down."
            office.hosts.want("localhost")
            office.hosts.want("127.0.0.1")
            await office.until(lambda: office.begin_of("127.0.0.1") is not None)
            assert office.events[1:] == [Lost("localhost", "it is down.")]

    run(scenario)


def test_fixed_hosts_that_can_none_of_them_be_used_end_the_job(spec: JobSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with opened(spec, monkeypatch) as office:
            office.failures = {"localhost": "it is down.", "127.0.0.1": "it is away."}
            office.hosts.want("localhost")
            office.hosts.want("127.0.0.1")
            await office.until(lambda: False)

    with pytest.raises(HostsFailedError) as caught:
        run(scenario)
    assert caught.value.lines[1:] == ("it is down.", "it is away.")


def test_the_loss_of_a_host_that_the_job_has_left_is_no_news(spec: JobSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with opened(spec, monkeypatch) as office:
            office.hosts.lose("stranger", "it ended")
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert office.events == [HostsChanged(spec.hosts)]

    run(scenario)


def discover(spec: JobSpec, script: str) -> JobSpec:
    side = RemoteSide(frozenset(), ("true",), sys.executable)
    return replace(spec, hosts=(), elasticity=Elasticity(1, script=script), remote=side)


def test_what_the_script_names_is_told(spec: JobSpec, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hosts").write_text("localhost:1\n")

    async def scenario() -> None:
        async with opened(discover(spec, "cat hosts"), monkeypatch) as office:
            await office.until(lambda: len(office.events) == 2)
            (tmp_path / "next").write_text("localhost:1\n127.0.0.1:2\n")
            (tmp_path / "next").rename(tmp_path / "hosts")
            await office.until(lambda: len(office.events) == 3)
            assert office.events == [
                HostsChanged(()),
                HostsChanged((Host("localhost", 1),)),
                HostsChanged((Host("localhost", 1), Host("127.0.0.1", 2))),
            ]
            assert office.said == ["the script names new hosts: 127.0.0.1 (2 slots)."]
            office.failures["localhost"] = "it is down."
            office.hosts.want("localhost")
            await office.until(lambda: office.events[-1] == Lost("localhost", "it is down."))  # others may come

    run(scenario)


def test_a_host_that_is_not_named_any_more_is_let_go_when_it_is_dismissed(
    spec: JobSpec, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hosts").write_text("localhost\n127.0.0.1\n")

    async def scenario() -> None:
        async with opened(discover(spec, "cat hosts"), monkeypatch) as office:
            await office.until(lambda: len(office.events) == 2)
            office.hosts.want("127.0.0.1")
            await office.until(lambda: office.begin_of("127.0.0.1") is not None)
            (tmp_path / "next").write_text("localhost\n")
            (tmp_path / "next").rename(tmp_path / "hosts")
            await office.until(lambda: len(office.events) == 3)
            office.hosts.dismiss("127.0.0.1")
            assert isinstance(office.agents["127.0.0.1"][0].orders[-1], Release)
            assert office.fleet.hosts == ()

    run(scenario)


def test_an_answer_that_cannot_be_used_ends_a_job_that_has_not_begun_and_no_other(
    spec: JobSpec, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hosts").write_text("localhost\n")

    async def scenario() -> None:
        async with opened(discover(spec, "cat hosts"), monkeypatch) as office:
            await office.until(lambda: len(office.events) == 2)
            office.hosts.want("localhost")
            await office.until(lambda: office.begin_of("localhost") is not None)
            (tmp_path / "next").write_text("nobody@127.0.0.1\n")
            (tmp_path / "next").rename(tmp_path / "hosts")
            await office.until(lambda: len(office.said) == 1)
            assert office.said[0].startswith("what the script names now is not taken: nobody@127.0.0.1 is this machine")
            assert len(office.events) == 2

    run(scenario)

    async def sooner() -> None:
        async with opened(discover(spec, "echo nobody@localhost"), monkeypatch) as office:
            await office.until(lambda: len(office.events) == 2)

    with pytest.raises(OtherUserError):
        run(sooner)


def test_a_script_that_cannot_be_started_ends_the_job(spec: JobSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with opened(discover(spec, "./nowhere"), monkeypatch) as office:
            await office.until(lambda: False)

    with pytest.raises(DiscoveryImpossibleError):
        run(scenario)
