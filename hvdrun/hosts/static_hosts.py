"""The hosts of a static job: all of them are brought in at the start, or the job does not begin."""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from hvdrun.errors import HostsOverdueError
from hvdrun.hosts.briefing import Briefing
from hvdrun.hosts.fleet import Fleet
from hvdrun.hosts.routes import find_routes
from hvdrun.spec.jobspec import JobSpec
from rendezvous.core.messages import Begun, HostsChanged
from rendezvous.core.model import Endpoint
from rendezvous.orders import Begin

if TYPE_CHECKING:
    from rendezvous.server import Server


class StaticHosts:
    """Tells the agents of the job; the first one, of rank 0's host, reserves a port that the others must know.

    opening: the start of all agents, which is under way.
    """

    def __init__(
        self,
        spec: JobSpec,
        fleet: Fleet,
        server: "Server",
        briefing: Briefing,
        opening: asyncio.Task[None],
        *,
        verbose: Callable[[str], None],
    ) -> None:
        self._spec = spec
        self._fleet = fleet
        self._server = server
        self._briefing = briefing
        self._opening = opening
        self._verbose = verbose
        self._master: asyncio.Future[Endpoint] = asyncio.get_running_loop().create_future()

    async def run(self) -> None:
        """Bring them in.

        Raises:
            LaunchError: some cannot be used.
        """
        self._server.tell(HostsChanged(self._spec.workers.hosts))
        await self._wait_for_agents()
        routes = await find_routes(self._spec, self._fleet, self._server, self._verbose)
        ends = dict.fromkeys(str(route.server) for route in routes.values())
        self._verbose(f"the rendezvous listens on {', '.join(ends)}")
        first, *others = self._fleet.hosts
        self._begin_on(first, self._briefing.write(first, routes[first], master=None))
        if others:
            master = await self._master
            for host in others:
                self._begin_on(host, self._briefing.write(host, routes[host], master=master))

    def note_reserved(self, master: Endpoint) -> None:
        """The first host keeps this port."""
        self._master.set_result(master)

    def _begin_on(self, host: str, begin: Begin) -> None:
        self._fleet.begin(host, begin)
        if self._spec.is_remote(host):
            self._server.tell(Begun(host))

    async def _wait_for_agents(self) -> None:
        limit_seconds = self._spec.limits.start_timeout_seconds
        done, _ = await asyncio.wait({self._opening}, timeout=limit_seconds)
        if not done:
            raise HostsOverdueError(self._fleet.awaited, limit_seconds)
        self._opening.result()
