"""The hosts of a static job: all of them, or none; how they are reached is in test_routes.py."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

import pytest

from hvdrun.briefing import Briefing
from hvdrun.errors import HostsOverdueError
from hvdrun.fleet import Fleet
from hvdrun.jobspec import JobSpec
from hvdrun.static_hosts import StaticHosts
from rendezvous.authority import Authority
from rendezvous.core.events import Event, HostsChanged
from rendezvous.core.model import Endpoint, Host
from rendezvous.orders import Begin
from rendezvous.server import Server
from tests.hvdrun.played_agent import Machine, PlayedAgent, ignore, refuse
from tests.waiting import happen, in_loop

MASTER = Endpoint("127.0.0.1", 5000)


class Rendezvous:
    """What a server is told."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.tell = self.events.append

    async def open(self, _address: str) -> int:
        """See `Server`."""
        return 1


@asynccontextmanager
async def hosting(spec: JobSpec, agents: Mapping[str, PlayedAgent], server: Rendezvous) -> AsyncIterator[StaticHosts]:
    """The hosts of a job whose agents are being started."""
    fleet = Fleet(agents, ignore, lambda *_: None, refuse)
    briefing = Briefing(spec, "job", Authority("job"), lambda _: None, {})
    opening = asyncio.create_task(fleet.open())
    try:
        yield StaticHosts(spec, fleet, cast("Server", server), briefing, opening, verbose=lambda _: None)
    finally:
        opening.cancel()
        await asyncio.wait({opening})
        await fleet.close()


def make_spec(start_timeout_seconds: float = 60.0) -> JobSpec:
    hosts = (Host("localhost", 1), Host("127.0.0.1", 1))
    return JobSpec(("true",), 2, hosts, Path("/"), start_timeout_seconds=start_timeout_seconds)


@in_loop
async def test_the_first_host_reserves_a_port_that_the_others_are_told() -> None:
    spec, server = make_spec(), Rendezvous()
    agents = {host.name: Machine() for host in spec.hosts}
    async with hosting(spec, agents, server) as hosts:
        running = asyncio.create_task(hosts.run())
        await happen(lambda: bool(agents["localhost"].orders))
        assert server.events == [HostsChanged(spec.hosts)]
        assert agents["127.0.0.1"].orders == []
        hosts.note_reserved(MASTER)
        await running
    begins = [agents[host.name].orders[0] for host in spec.hosts]
    assert [begin.master for begin in begins if isinstance(begin, Begin)] == [None, MASTER]


@in_loop
async def test_hosts_that_do_not_start_in_time_are_named() -> None:
    spec = make_spec(start_timeout_seconds=0.05)
    agents = {"localhost": Machine(), "127.0.0.1": Machine(starts=False)}
    async with hosting(spec, agents, Rendezvous()) as hosts:
        with pytest.raises(HostsOverdueError) as caught:
            await hosts.run()
        assert caught.value.hosts == ("127.0.0.1",)
