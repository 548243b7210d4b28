"""The hosts of an elastic job: found, brought in, lost, left; with agents and a rendezvous of the test's own."""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from unittest.mock import AsyncMock, Mock

import pytest

from hvdrun.console.narrator import Narrator
from hvdrun.console.rank_book import RankBook
from hvdrun.errors import HostsFailedError, LaunchError, OtherUserError
from hvdrun.hosts.briefing import Briefing
from hvdrun.hosts.discovery_script import DiscoveryImpossibleError
from hvdrun.hosts.elastic_hosts import ElasticHosts
from hvdrun.hosts.fleet import Fleet
from hvdrun.spec.elasticity import Elasticity
from hvdrun.spec.jobspec import JobSpec
from hvdrun.spec.remote import Remote
from rendezvous.authority import Authority
from rendezvous.core.messages import Dismiss, Event, HostsChanged, IllegalEventError, Lost
from rendezvous.core.model import Host
from rendezvous.orders import Begin, Release
from tests.hvdrun.played_agent import HOW_IT_ENDED, Machine, PlayedAgent, ignore, refuse
from tests.hvdrun.specs import build_spec, with_fields
from tests.waiting import happen, in_loop

NameHosts = Callable[[str], None]


class Office:
    """A job's hosts, and what the rendezvous and the user are told."""

    def __init__(self, spec: JobSpec) -> None:
        self.agents: dict[str, list[PlayedAgent]] = {}
        self.failures: dict[str, str] = {}
        self.events: list[Event] = []
        self.said: list[str] = []
        self.numbers: dict[str, int] = {}
        self.is_over = False
        self.fleet = Fleet({}, ignore, self._lose, refuse)
        narrator = Narrator(spec, Mock(notice=self.said.append), RankBook(lambda: None))
        server = Mock(open=AsyncMock(return_value=1), tell=self._tell)
        server.number_agent = lambda host: self.numbers.get(host, 1)
        briefing = Briefing(spec, "job", Authority("job"), lambda _: None, {})
        self.hosts = ElasticHosts(
            spec,
            self.fleet,
            server,
            briefing,
            narrator,
            reach=self._reach,
            notice=self.said.append,
            verbose=Mock(),
        )

    def _reach(self, host: str, _spec: JobSpec) -> PlayedAgent:
        self.agents.setdefault(host, []).append(Machine(failure=self.failures.get(host, "")))
        return self.agents[host][-1]

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for what is told, or ordered, or for the end of it all."""
        await happen(lambda: condition() or self.is_over)

    async def bring_in(self, host: str) -> Begin:
        """Want a host, and wait for what its agent is told of the job."""
        known = len(self.agents.get(host, ()))
        self.hosts.want(host)
        await self.until(lambda: len(self.agents.get(host, ())) > known and bool(self.agents[host][-1].orders))
        begin = self.agents[host][-1].orders[0]
        assert isinstance(begin, Begin)
        return begin

    def _lose(self, host: str, how: str) -> None:
        self.hosts.lose(host, how)

    def _tell(self, event: Event) -> None:
        if isinstance(event, Lost) and event.host == "stranger":
            raise IllegalEventError(event, "it is not in use")
        self.events.append(event)


@pytest.fixture
def spec(tmp_path: Path) -> JobSpec:
    return build_spec(("true",), 1, (Host("localhost", 2), Host("127.0.0.1", 1)), tmp_path, Elasticity(1))


@asynccontextmanager
async def opened(spec: JobSpec) -> AsyncIterator[Office]:
    """Run an office, and raise what it ends with."""
    office = Office(spec)
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


@pytest.fixture
def name_hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> NameHosts:
    """`name_hosts(text)` has the script `cat hosts` print this text, from one moment to the next."""
    monkeypatch.chdir(tmp_path)

    def name_hosts(text: str) -> None:
        (tmp_path / "next").write_text(text)
        (tmp_path / "next").rename(tmp_path / "hosts")

    return name_hosts


@in_loop
async def test_hosts_are_brought_in_when_they_are_wanted(spec: JobSpec) -> None:
    async with opened(spec) as office:
        assert office.events == [HostsChanged(spec.workers.hosts)]
        assert office.agents == {}
        begin = await office.bring_in("localhost")
        assert (begin.job, begin.master, begin.address) == ("job", None, "127.0.0.1")
        assert begin.environment[b"HOROVOD_ELASTIC"] == b"1"
        assert begin.environment[b"OMP_NUM_THREADS"] == b"1"  # two slots
        assert [*office.agents] == ["localhost"]


@in_loop
async def test_a_lost_host_may_get_another_agent_with_an_identity_of_its_own(spec: JobSpec) -> None:
    async with opened(spec) as office:
        await office.bring_in("localhost")
        office.agents["localhost"][0].end()
        await office.until(lambda: Lost("localhost", HOW_IT_ENDED) in office.events)
        assert office.agents["localhost"][0].is_abandoned
        office.numbers["localhost"] = 2
        assert (await office.bring_in("localhost")).job == "job~2"


@in_loop
async def test_a_drained_host_is_released_though_it_is_offered(spec: JobSpec) -> None:
    async with opened(spec) as office:
        await office.bring_in("localhost")
        office.hosts.dismiss(Dismiss("localhost", "it got a stop notice", is_drained=True))
        assert isinstance(office.agents["localhost"][0].orders[-1], Release)
        assert not office.agents["localhost"][0].is_abandoned


@in_loop
async def test_a_host_that_is_dismissed_while_it_is_offered_is_given_up(spec: JobSpec) -> None:
    async with opened(spec) as office:
        office.hosts.dismiss(Dismiss("localhost", "it was lost"))  # it has none
        await office.bring_in("localhost")
        office.hosts.dismiss(Dismiss("localhost", "it was lost"))
        assert office.fleet.hosts == ()
        await office.until(lambda: office.agents["localhost"][0].is_abandoned)
        assert office.events == [HostsChanged(spec.workers.hosts)]


@in_loop
async def test_fixed_hosts_that_can_none_of_them_be_used_end_the_job(spec: JobSpec) -> None:
    async def want_both() -> None:
        async with opened(spec) as office:
            office.failures = {"localhost": "it is down."}
            office.hosts.want("localhost")
            office.hosts.want("127.0.0.1")
            await office.until(lambda: "127.0.0.1" in office.agents)
            office.agents["127.0.0.1"][0].end()
            await office.until(lambda: False)

    with pytest.raises(HostsFailedError) as caught:
        await want_both()
    lost = f"the host '127.0.0.1' was lost before the job began: {HOW_IT_ENDED}."
    assert caught.value.lines[1:] == ("it is down.", lost)


@in_loop
async def test_the_loss_of_a_host_that_the_job_has_left_is_no_news(spec: JobSpec) -> None:
    async with opened(spec) as office:
        office.hosts.lose("stranger", "it ended")
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert office.events == [HostsChanged(spec.workers.hosts)]


def discover(spec: JobSpec, script: str) -> JobSpec:
    side = Remote(frozenset(), ("true",), sys.executable)
    return with_fields(spec, hosts=(), elasticity=Elasticity(1, script=script), remote=side)


@in_loop
async def test_the_rendezvous_hears_what_the_script_names(spec: JobSpec, name_hosts: NameHosts) -> None:
    name_hosts("localhost:1\n")
    async with opened(discover(spec, "cat hosts")) as office:
        await office.until(lambda: len(office.events) == 2)
        name_hosts("localhost:1\n127.0.0.1:2\n")
        await office.until(lambda: len(office.events) == 3)
        first, second = Host("localhost", 1), Host("127.0.0.1", 2)
        assert office.events == [HostsChanged(()), HostsChanged((first,)), HostsChanged((first, second))]
        assert office.said == ["the script names new hosts: 127.0.0.1 (2 slots)."]
        office.failures["localhost"] = "it is down."
        office.hosts.want("localhost")
        await office.until(lambda: office.events[-1] == Lost("localhost", "it is down."))  # others may come


@in_loop
async def test_a_dismissed_host_named_no_more_is_released(spec: JobSpec, name_hosts: NameHosts) -> None:
    name_hosts("localhost\n127.0.0.1\n")
    async with opened(discover(spec, "cat hosts")) as office:
        await office.until(lambda: len(office.events) == 2)
        await office.bring_in("127.0.0.1")
        name_hosts("localhost\n")
        await office.until(lambda: len(office.events) == 3)
        office.hosts.dismiss(Dismiss("127.0.0.1", "it was lost"))
        assert isinstance(office.agents["127.0.0.1"][0].orders[-1], Release)
        assert office.fleet.hosts == ()


@in_loop
async def test_a_job_that_has_begun_ignores_a_bad_answer(spec: JobSpec, name_hosts: NameHosts) -> None:
    name_hosts("localhost\n")
    async with opened(discover(spec, "cat hosts")) as office:
        await office.until(lambda: len(office.events) == 2)
        await office.bring_in("localhost")
        name_hosts("nobody@127.0.0.1\n")
        await office.until(lambda: len(office.said) == 1)
        assert office.said[0].startswith("what the script names now is not taken: nobody@127.0.0.1 is this machine")
        assert len(office.events) == 2


@pytest.mark.parametrize(
    ("script", "error"), [("echo nobody@localhost", OtherUserError), ("./nowhere", DiscoveryImpossibleError)]
)
@in_loop
async def test_a_first_answer_that_cannot_be_used_ends_the_job(
    spec: JobSpec, script: str, error: type[LaunchError]
) -> None:
    with pytest.raises(error):
        async with opened(discover(spec, script)) as office:
            await office.until(lambda: False)
