"""Hosts are brought in as they are wanted: beside each other, together, and each for itself when it fails."""

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from hvdrun.errors import HostLostEarlyError, HostsOverdueError, LaunchError
from hvdrun.hosts import recruiter as recruiter_module
from hvdrun.hosts.contact import Contact
from hvdrun.hosts.fleet import Fleet
from hvdrun.hosts.recruiter import Recruiter
from hvdrun.hosts.route_map import Answer
from hvdrun.hosts.routes import Route
from hvdrun.spec.elasticity import Elasticity
from hvdrun.spec.jobspec import JobSpec
from rendezvous.core.model import Endpoint, Host
from tests.hvdrun.played_agent import Machine, PlayedAgent, ignore, refuse
from tests.hvdrun.specs import build_spec, with_fields
from tests.waiting import happen, in_loop

ROUTE = Route("127.0.0.1", "", Endpoint("127.0.0.1", 1))


class Office:
    """A recruiter, the agents that it may start, and what became of them."""

    def __init__(self, start_timeout_seconds: float = 60.0) -> None:
        self.agents: dict[str, PlayedAgent] = {host: Machine(starts=False) for host in "abc"}
        self.batches: list[list[str]] = []
        self.unreachable: set[str] = set()
        self.begun: list[str] = []
        self.failed: dict[str, LaunchError] = {}
        self.fleet = Fleet({}, ignore, lambda *_: None, refuse)
        spec = build_spec(("true",), 1, (Host("a", 1),), Path("/"), Elasticity(1))
        self._spec = with_fields(spec, start_timeout_seconds=start_timeout_seconds)
        self.recruiter = Recruiter(
            self.fleet,
            self,
            look=lambda: self._spec,
            reach=lambda host: self.agents[host],
            begin=self._begin,
            fail=self.failed.__setitem__,
        )

    async def extend(self, spec: JobSpec, newcomers: list[str]) -> dict[str, Answer]:
        """See `Ways`."""
        assert spec is self._spec
        self.batches.append(newcomers)
        return {host: LaunchError("no way") if host in self.unreachable else ROUTE for host in newcomers}

    def let_start(self, *hosts: str) -> None:
        """Their agents start."""
        for host in hosts:
            self.agents[host].may_start.set()

    def _begin(self, host: str, route: Route) -> None:
        assert route == ROUTE
        self.begun.append(host)


@asynccontextmanager
async def opened(office: Office) -> AsyncIterator[Office]:
    running = asyncio.create_task(office.recruiter.run())
    try:
        yield office
    finally:
        running.cancel()
        await asyncio.wait({running})
        await office.fleet.close()
        assert running.cancelled()


@in_loop
async def test_the_first_hosts_are_brought_in_together() -> None:
    async with opened(Office()) as office:
        for host in "abc":
            office.recruiter.want(host)
            office.recruiter.want(host)  # again, and it is the same agent
        for host in "bca":
            office.let_start(host)
            await asyncio.sleep(0)
        await happen(lambda: len(office.begun) == 3)
        assert [sorted(batch) for batch in office.batches] == [["a", "b", "c"]]


@in_loop
async def test_who_does_not_come_holds_up_the_others_only_for_a_while() -> None:
    office = Office()
    office.recruiter._patience_seconds = 0.05
    async with opened(office):
        office.recruiter.want("a")
        office.recruiter.want("b")
        office.let_start("a")
        await happen(lambda: office.begun == ["a"])
        office.let_start("b")
        await happen(lambda: office.begun == ["a", "b"])
        assert office.batches == [["a"], ["b"]]
        assert office.recruiter._patience_seconds == recruiter_module.GATHER_SECONDS


@in_loop
async def test_as_many_as_the_job_starts_with_do_not_wait_long_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recruiter_module, "GATHER_SECONDS", 0.05)
    office = Office()
    office.recruiter._patience_seconds = math.inf
    async with opened(office):
        office.recruiter.want("a")
        office.recruiter.want("b")
        office.let_start("a")
        await happen(lambda: office.begun == ["a"])


@in_loop
async def test_each_host_fails_for_itself() -> None:
    async with opened(Office()) as office:
        office.agents["b"].failure = "b is down"
        office.unreachable = {"c"}
        for host in "abc":
            office.recruiter.want(host)
        office.let_start(*"abc")
        await happen(lambda: office.begun == ["a"] and len(office.failed) == 2)
        assert {host: str(error) for host, error in office.failed.items()} == {"b": "b is down", "c": "no way"}


@pytest.mark.parametrize(("error", "words"), [(OSError(24, "no files"), "no files"), (ValueError("x"), "own, please")])
@in_loop
async def test_an_unexpected_error_fails_a_host(monkeypatch: pytest.MonkeyPatch, error: Exception, words: str) -> None:
    async def fail(_: PlayedAgent) -> None:
        raise error

    async with opened(Office()) as office:
        monkeypatch.setattr(Machine, "open", fail)
        office.recruiter.want("a")
        await happen(lambda: bool(office.failed))
        assert words in str(office.failed["a"])
        assert office.recruiter._opening == {}


@in_loop
async def test_an_agent_that_does_not_start_in_time_is_a_failure() -> None:
    async with opened(Office(start_timeout_seconds=0.05)) as office:
        office.recruiter.want("a")
        await happen(lambda: bool(office.failed))
        assert isinstance(office.failed["a"], HostsOverdueError)


@in_loop
async def test_a_host_that_is_not_wanted_any_more_is_not_brought_in_and_may_be_wanted_again() -> None:
    async with opened(Office()) as office:
        office.recruiter.want("a")
        office.recruiter.want("b")
        office.recruiter.forget("a")
        office.fleet.abandon("a")
        office.agents["a"] = Machine(starts=False)
        office.let_start("b")
        await happen(lambda: office.begun == ["b"])
        office.recruiter.want("a")
        office.let_start("a")
        await happen(lambda: office.begun == ["b", "a"])
        assert office.failed == {}


@in_loop
async def test_an_agent_that_is_given_up_keeps_nobody_waiting_for_an_answer() -> None:
    agent = PlayedAgent(obeys=False)
    contact = Contact("a", agent, ignore, lambda *_: pytest.fail("it counts as lost"), refuse)
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
    contact = Contact("a", agent, ignore, lambda *_: pytest.fail("it counts as lost"), refuse)
    opening = asyncio.create_task(contact.open())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    await contact.close()
    assert agent.story == ["called off", "closed"]
    await asyncio.wait({opening})
    assert opening.cancelled()
