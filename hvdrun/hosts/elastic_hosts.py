"""The hosts of an elastic job, as they come, go, are lost and come back."""

import asyncio
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from hvdrun.console.narrator import Narrator
from hvdrun.errors import HostLostEarlyError, HvdrunError, LaunchError, raise_failures
from hvdrun.hosts.briefing import Briefing
from hvdrun.hosts.discovery_script import open_script
from hvdrun.hosts.fleet import Fleet
from hvdrun.hosts.lookout import Lookout
from hvdrun.hosts.lookups import Lookups
from hvdrun.hosts.preparation import take_in
from hvdrun.hosts.recruiter import Recruiter
from hvdrun.hosts.route_map import RouteMap
from hvdrun.hosts.routes import Route
from hvdrun.spec.command import Surroundings
from hvdrun.spec.hosts import HostList
from hvdrun.spec.jobspec import JobSpec
from hvdrun.transport.transport import Transport
from rendezvous.core.messages import Begun, Dismiss, HostsChanged, IllegalEventError, Lost

if TYPE_CHECKING:
    from hvdrun.joining.roster import Roster
    from rendezvous.server import Server


class ElasticHosts:
    """Finds hosts, has agents started on those that are wanted, and tells the rendezvous what became of them.

    reach: the transport to a host.
    notice: takes a sentence for every user, verbose: one for whoever asked for more.
    roster: the agents that have come by themselves, where they do.
    """

    def __init__(
        self,
        spec: JobSpec,
        fleet: Fleet,
        server: "Server",
        briefing: Briefing,
        narrator: Narrator,
        *,
        reach: Callable[[str, JobSpec], Transport],
        notice: Callable[[str], None],
        verbose: Callable[[str], None],
        roster: "Roster | None" = None,
    ) -> None:
        self._spec = spec
        self._roster = roster
        self._fleet = fleet
        self._server = server
        self._briefing = briefing
        self._narrator = narrator
        self._notice = notice
        self._lookups = Lookups()
        self._routes = RouteMap(fleet, server, verbose, coming=lambda: self._lookups.pending)
        self._recruiter = Recruiter(
            fleet,
            self._routes,
            look=lambda: self._spec,
            reach=lambda host: reach(host, self._spec),
            begin=self._begin,
            fail=self._fail,
        )
        self._found: asyncio.Queue[HostList] = asyncio.Queue()
        self._has_begun = False  # some host has been told of the job
        self._failures: dict[str, LaunchError] = {}  # while none has
        self._impossible: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def run(self) -> None:
        """Find and bring in hosts until cancelled.

        Raises:
            HvdrunError: the job cannot begin: its script cannot be run, or none of its fixed hosts can be used.
        """
        await self._routes.open()
        parts = [self._recruiter.run(), self._await_impossible()]
        if self._roster is not None:
            parts.append(self._take_in_agents(self._roster))
        elif self._spec.discovers:
            parts += [self._look_out(), self._take_in_found()]
        self._server.tell(HostsChanged(self._spec.workers.hosts))
        tasks = [asyncio.create_task(part) for part in parts]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def want(self, host: str) -> None:
        """A worker is to be started there: see to it that the host has an agent that takes orders, now or later."""
        self._recruiter.want(host)

    def lose(self, host: str, how: str) -> None:
        """The agent there has ended."""
        if not self._fleet.has_begun(host):
            self._fail(host, HostLostEarlyError(host, how))
            return
        self._forget(host)
        self._tell_lost(host, how)

    def dismiss(self, effect: Dismiss) -> None:
        """The job has no workers there any more; let the agent go, if there is one.

        Of a host that is still offered, and not drained, it was lost, and is given up: what may be left of it must end
        soon.
        """
        host = effect.host
        if host not in self._fleet.hosts:
            return
        if not effect.is_drained and any(offer.name == host for offer in self._spec.workers.hosts):
            self._forget(host)
        else:
            self._recruiter.forget(host)
            self._routes.forget(host)
            self._fleet.retire(host)

    def _begin(self, host: str, route: Route) -> None:
        self._has_begun = True
        number = self._server.number_agent(host)
        self._fleet.begin(host, self._briefing.write(host, route, None, number))
        if self._spec.is_remote(host):
            self._server.tell(Begun(host))

    def _fail(self, host: str, error: LaunchError) -> None:
        """A host could not be brought in; where hosts never change, and none could be, that ends the job."""
        self._forget(host)
        if not self._has_begun and not self._spec.discovers:
            self._failures[host] = error
            if not self._fleet.hosts and not self._impossible.done():
                self._impossible.set_exception(_collect(self._failures))
                return
        self._tell_lost(host, str(error))

    def _tell_lost(self, host: str, sentence: str) -> None:
        """Later, since this may be a part of what follows from another event."""

        def tell() -> None:
            try:
                self._server.tell(Lost(host, sentence))
            except IllegalEventError:
                pass  # meanwhile the job has left the host
            except Exception as error:  # noqa: BLE001 - raised where the server's owner waits
                self._server.fail(error)

        asyncio.get_running_loop().call_soon(tell)

    def _forget(self, host: str) -> None:
        self._recruiter.forget(host)
        self._routes.forget(host)
        if host in self._fleet.hosts:
            self._fleet.abandon(host)

    async def _await_impossible(self) -> None:
        await self._impossible

    async def _take_in_agents(self, roster: "Roster") -> None:
        """Tell the rendezvous of the hosts whose agents have come by themselves, for as long as each is there."""
        hosts = roster.hosts
        while True:
            remote = replace(self._spec.remote, hosts=self._spec.remote.hosts | {host.name for host in hosts})
            workers = replace(self._spec.workers, hosts=hosts)
            self._spec = replace(self._spec, workers=workers, remote=remote)
            self._briefing.update(self._spec)
            self._narrator.note_agents(hosts)
            self._server.tell(HostsChanged(hosts))
            hosts = await roster.other_than(hosts)

    async def _look_out(self) -> None:
        with open_script(self._spec) as script:
            await Lookout(script, self._found.put_nowait, self._notice).run()

    async def _take_in_found(self) -> None:
        """Tell the rendezvous of each new answer of the script, unless something is wrong with it.

        Nobody waits long for names that no server knows: the other hosts are told without them.

        Raises:
            HvdrunError: something is, before the job has begun anywhere.
        """
        try:
            while True:
                found = await self._found.get()
                is_news = True
                while is_news or (self._lookups.pending and self._found.empty()):
                    known = await self._lookups.find_known(found)
                    try:
                        self._take_in(known, found if is_news else None)
                    except HvdrunError as error:
                        if not self._has_begun:
                            raise
                        self._notice(f"what the script names now is not taken: {error}")
                        break
                    is_news = False
        finally:
            await self._lookups.close()

    def _take_in(self, known: HostList, news: HostList | None) -> None:
        """Tell the rendezvous of these hosts, and the user of all that the script names, where that is news."""
        around = Surroundings(self._spec.workers.directory, os.environ.get("PATH"), sys.executable)
        former, self._spec = self._spec, take_in(self._spec, known, around, self._lookups.is_local)
        self._briefing.update(self._spec)
        if news is not None:
            self._narrator.note_hosts(news.hosts)
        if news is not None or self._spec.workers.hosts != former.workers.hosts:
            self._server.tell(HostsChanged(self._spec.workers.hosts))


def _collect(failures: dict[str, LaunchError]) -> LaunchError:
    """All of them in one."""
    try:
        raise_failures(list(failures.values()), len(failures))
    except LaunchError as error:
        return error
    raise AssertionError("there are failures")
