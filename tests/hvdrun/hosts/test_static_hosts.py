"""The hosts of a static job: all of them, or none; how they are reached is in test_routes.py."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from unittest.mock import AsyncMock, Mock

import pytest

from hvdrun.errors import HostsOverdueError
from hvdrun.hosts.briefing import Briefing
from hvdrun.hosts.fleet import Fleet
from hvdrun.hosts.static_hosts import StaticHosts
from hvdrun.spec.jobspec import JobSpec
from rendezvous.authority import Authority
from rendezvous.core.messages import Event, HostsChanged
from rendezvous.core.model import Endpoint, Host
from rendezvous.orders import Begin
from tests.hvdrun.played_agent import Machine, PlayedAgent, ignore, refuse
from tests.hvdrun.specs import build_spec
from tests.waiting import happen, in_loop

MASTER = Endpoint("127.0.0.1", 5000)


@asynccontextmanager
async def hosting(spec: JobSpec, agents: Mapping[str, PlayedAgent], events: list[Event]) -> AsyncIterator[StaticHosts]:
    """The hosts of a job whose agents are being started, and of whose server `events` shows what it is told."""
    server = Mock(open=AsyncMock(return_value=1), tell=events.append)
    fleet = Fleet(agents, ignore, lambda *_: None, refuse)
    briefing = Briefing(spec, "job", Authority("job"), lambda _: None, {})
    opening = asyncio.create_task(fleet.open())
    try:
        yield StaticHosts(spec, fleet, server, briefing, opening, verbose=lambda _: None)
    finally:
        opening.cancel()
        await asyncio.wait({opening})
        await fleet.close()


def make_spec(start_timeout_seconds: float = 60.0) -> JobSpec:
    hosts = (Host("localhost", 1), Host("127.0.0.1", 1))
    return build_spec(("true",), 2, hosts, Path("/"), start_timeout_seconds=start_timeout_seconds)


@in_loop
async def test_the_first_host_reserves_a_port_that_the_others_are_told() -> None:
    spec, events = make_spec(), list[Event]()
    agents = {host.name: Machine() for host in spec.workers.hosts}
    async with hosting(spec, agents, events) as hosts:
        running = asyncio.create_task(hosts.run())
        await happen(lambda: bool(agents["localhost"].orders))
        assert events == [HostsChanged(spec.workers.hosts)]
        assert agents["127.0.0.1"].orders == []
        hosts.note_reserved(MASTER)
        await running
    begins = [agents[host.name].orders[0] for host in spec.workers.hosts]
    assert [begin.master for begin in begins if isinstance(begin, Begin)] == [None, MASTER]


@in_loop
async def test_hosts_that_do_not_start_in_time_are_named() -> None:
    spec = make_spec(start_timeout_seconds=0.05)
    agents = {"localhost": Machine(), "127.0.0.1": Machine(starts=False)}
    async with hosting(spec, agents, []) as hosts:
        with pytest.raises(HostsOverdueError) as caught:
            await hosts.run()
        assert caught.value.hosts == ("127.0.0.1",)
