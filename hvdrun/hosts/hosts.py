"""The hosts of a job: each is added, and lost or released later.

The agent of a host is started when its first worker is launched. Agents are started at the same time, and those that
are ready are configured together. A failure is the loss of that host, and the job continues with the others.

The hosts of a static job are fixed. Their agents are started first, and all of them are configured together: a failure
ends the job.

Long because everything that can happen to a host is handled here.
"""

import asyncio
import contextlib
import math
import os
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from hvdrun.console import Console
from hvdrun.errors import (
    HostFaultError,
    HostLostEarlyError,
    HostsFailedError,
    HostsOverdueError,
    HvdrunError,
    LaunchError,
)
from hvdrun.hosts.agent_config import AgentConfig
from hvdrun.hosts.agent_pool import AgentPool
from hvdrun.hosts.network_plan import NetworkPlan, Route
from hvdrun.hosts.preparation import add_hosts
from hvdrun.processes.background import BackgroundTasks
from hvdrun.spec.command import LookupContext
from hvdrun.spec.hosts import HostList
from hvdrun.spec.jobspec import JobSpec
from hvdrun.transport.transport import Transport
from hvdrun.version import __version__
from rendezvous.core.messages import Begun, Dismiss, HostsChanged, IllegalEventError, Lost
from rendezvous.core.model import Endpoint
from rendezvous.wire.orders import Hello

if TYPE_CHECKING:
    from hvdrun.hosts.discovery import Discovery
    from hvdrun.joining.roster import Roster
    from rendezvous.server.server import Server

FIRST_SECONDS = 10.0  # how long the first ready hosts wait for the others: the job may need all
GATHER_SECONDS = 1.0  # the same later, or when they are enough: hosts that come together are checked together
HELLO_SECONDS = 30.0  # an agent says hello as soon as Python has started; a host may be busy


class Hosts:
    """Starts and configures the agents of hosts with workers, and reports lost hosts to the rendezvous.

    reach: makes the transport to a host.
    roster: the agents that join by themselves, if this job has such.
    """

    def __init__(
        self,
        spec: JobSpec,
        pool: AgentPool,
        console: Console,
        *,
        reach: Callable[[str, JobSpec], Transport],
        roster: "Roster | None" = None,
    ) -> None:
        self._spec = spec
        self._pool = pool
        self._console = console
        self._reach = reach
        self._roster = roster
        self._needed = () if spec.is_elastic else tuple(dict.fromkeys(slot.host for slot in spec.place()))
        self._tasks = BackgroundTasks()
        self._have_started = asyncio.Event()  # all agents of a static job
        self._serving: asyncio.Future[tuple[Server, AgentConfig]] = asyncio.get_running_loop().create_future()
        self._master: asyncio.Future[Endpoint] = asyncio.get_running_loop().create_future()
        self._server: Server
        self._config: AgentConfig
        self._discovery: Discovery | None = None
        self._plan = NetworkPlan(pool, console.verbose, is_whole=bool(self._needed), coming=self._list_coming)
        self._opening: dict[str, asyncio.Task[None]] = {}
        self._ready: set[str] = set()
        self._failures: dict[str, LaunchError] = {}
        self._changed = asyncio.Event()
        self._patience_seconds = math.inf if self._needed else FIRST_SECONDS
        self._has_begun = False  # an agent has its configuration

    async def run(self) -> None:
        """Find and add hosts until cancelled.

        Raises:
            HvdrunError: the job cannot start: a host that it needs cannot be used, none of its fixed hosts can, or its
                script cannot be run.
        """
        async with self._tasks:
            for host in self._needed:
                self.want(host)
            self._server, self._config = await self._serving
            self._server.submit(HostsChanged(self._spec.workers.hosts))
            await self._plan.open(self._server)
            if self._roster is not None and not self._needed:
                self._tasks.create_task(self._add_agents(self._roster), name="add agents that join")
            elif self._spec.discovers and not self._needed:
                from hvdrun.hosts.discovery import Discovery  # noqa: PLC0415 - few jobs have a script

                self._discovery = Discovery(self._spec, self._console.notice)
                self._tasks.create_task(self._discovery.run(self._add_found), name="add hosts of the script")
            while True:
                await self._changed.wait()
                self._changed.clear()
                await self._gather()
                self._raise_if_impossible()
                await self._bring_in()

    def serve(self, server: "Server", config: AgentConfig) -> None:
        """The rendezvous has started: add the hosts."""
        self._serving.set_result((server, config))

    async def wait_started(self, limit_seconds: float) -> None:
        """Wait until the agents of a static job have been started, at most so long."""
        if self._needed:
            with contextlib.suppress(TimeoutError):  # the job continues, and the agents start meanwhile
                await asyncio.wait_for(self._have_started.wait(), limit_seconds)

    def want(self, host: str) -> None:
        """A worker is launched there: start an agent, unless the host has one."""
        if host in self._pool.hosts:
            return
        self._pool.add(host, self._reach(host, self._spec))
        self._opening[host] = self._tasks.create_task(self._open(host), name="start an agent")

    def lose(self, host: str, how: str) -> None:
        """The agent of this host has stopped."""
        if self._pool.has_begun(host):
            self._forget(host)
            self._report_lost(host, how)
        else:
            self._fail(host, HostLostEarlyError(host, how))

    def dismiss(self, effect: Dismiss) -> None:
        """The job has no workers there any more: release the agent, if there is one, or kill what is left of it."""
        host = effect.host
        if host not in self._pool.hosts or self._needed:
            return
        self._cancel(host)
        if effect.is_lost:
            self._pool.abandon(host)
        else:
            self._pool.retire(host)

    def note_reserved(self, master: Endpoint) -> None:
        """The first host of a static job has reserved this port."""
        self._master.set_result(master)

    async def _open(self, host: str) -> None:
        limit_seconds = self._spec.limits.start_timeout_seconds
        try:
            async with asyncio.timeout(limit_seconds):
                await self._pool.open(host)
            if all(map(self._pool.is_open, self._needed)):
                self._have_started.set()
            await self._check_version(host)
        except TimeoutError:
            self._fail(host, HostsOverdueError((host,), limit_seconds))
        except LaunchError as error:
            self._fail(host, error)
        except Exception as error:
            if self._needed:
                raise
            self._console.verbose("".join(traceback.format_exception(error)))
            self._fail(host, HostFaultError(host, error))  # the job continues without this host
        else:
            del self._opening[host]
            self._ready.add(host)
            self._changed.set()

    async def _check_version(self, host: str) -> None:
        """Wait for the hello of this host's agent, and refuse an agent of another version.

        The rendezvous limits the wait for a local agent by --start-timeout.

        Raises:
            LaunchError: the agent has another version, has stopped, or has said nothing.
        """
        is_remote = self._spec.is_remote(host)
        try:
            async with asyncio.timeout(HELLO_SECONDS if is_remote else None):
                while not isinstance(hello := await self._pool.hear(host), Hello):
                    pass
        except TimeoutError:
            raise LaunchError(f"the agent on the host {host!r} said nothing within {HELLO_SECONDS:g} s.") from None
        if hello.version != __version__:
            from hvdrun.transport.failures import VersionMismatchError  # noqa: PLC0415 - only a failure needs it

            interpreter = self._spec.remote.interpreter if is_remote else sys.executable
            raise VersionMismatchError(host, interpreter, hello.version, __version__)

    async def _gather(self) -> None:
        """Wait for agents that are being started: for all of a static job, else not for long."""
        began = time.monotonic()
        while self._opening and (self._ready or self._needed):
            patience_seconds = min(self._patience_seconds, GATHER_SECONDS if self._is_enough() else math.inf)
            if (left := began + patience_seconds - time.monotonic()) <= 0:
                break
            await asyncio.wait(self._opening.values(), timeout=left, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.sleep(0)

    def _is_enough(self) -> bool:
        """The job can start with the hosts that are ready."""
        workers = self._spec.workers
        return sum(host.slots for host in workers.hosts if host.name in self._ready) >= workers.size

    async def _bring_in(self) -> None:
        batch = [host for host in self._pool.hosts if host in self._ready]
        self._ready.clear()
        answers = await self._plan.extend(self._spec, batch) if batch else {}
        for host, answer in answers.items():
            if isinstance(answer, LaunchError) and self._waits(host):
                self._fail(host, answer)
        self._raise_if_impossible()
        master: Endpoint | None = None
        for host, answer in answers.items():
            if isinstance(answer, Route) and self._waits(host):
                self._patience_seconds = GATHER_SECONDS
                self._begin(host, answer, master)
                if self._needed:
                    master = await self._master
                    self._raise_if_impossible()

    def _waits(self, host: str) -> bool:
        """The host's agent has started, and has no configuration yet."""
        return host in self._pool.hosts and host not in self._opening and not self._pool.has_begun(host)

    def _begin(self, host: str, route: Route, master: Endpoint | None) -> None:
        self._has_begun = True
        number = self._server.number_agent(host)
        self._pool.begin(host, self._config.write(host, route, master, number))
        if self._spec.is_remote(host):
            self._server.submit(Begun(host))

    def _fail(self, host: str, error: LaunchError) -> None:
        """A host could not be added."""
        self._forget(host)
        self._failures[host] = error
        self._changed.set()
        if not self._is_impossible():
            self._report_lost(host, str(error))

    def _is_impossible(self) -> bool:
        """The job cannot start without the hosts that have failed."""
        if self._needed:
            return bool(self._failures)
        return bool(self._failures) and not (self._has_begun or self._spec.discovers or self._pool.hosts)

    def _raise_if_impossible(self) -> None:
        if self._is_impossible() and not self._opening and self._server.state.outcome is None:
            failures = {host.name: self._failures.get(host.name) for host in self._spec.workers.hosts}
            raise _collect({host: error for host, error in failures.items() if error}, len(self._needed or failures))

    def _report_lost(self, host: str, sentence: str) -> None:
        with contextlib.suppress(IllegalEventError):  # the job has left the host meanwhile
            self._server.submit(Lost(host, sentence))

    def _forget(self, host: str) -> None:
        self._cancel(host)
        if host in self._pool.hosts:
            self._pool.abandon(host)

    def _cancel(self, host: str) -> None:
        opening = self._opening.pop(host, None)
        if opening is not None and opening is not asyncio.current_task():
            opening.cancel()
        self._ready.discard(host)
        self._plan.forget(host)

    def _list_coming(self) -> tuple[str, ...]:
        """The hosts of the script for which the lookup, whether they are this machine, is not finished."""
        return () if self._discovery is None else self._discovery.pending

    async def _add_agents(self, roster: "Roster") -> None:
        """Report the hosts whose agents join by themselves to the rendezvous, as long as each is connected."""
        hosts = roster.hosts
        while True:
            remote = replace(self._spec.remote, hosts=self._spec.remote.hosts | {host.name for host in hosts})
            self._spec = replace(self._spec, workers=replace(self._spec.workers, hosts=hosts), remote=remote)
            self._config.update(self._spec)
            self._server.submit(HostsChanged(hosts))
            hosts = await roster.other_than(hosts)

    def _add_found(self, known: HostList, is_local: Callable[[str], bool], news: HostList | None) -> bool:
        """Report hosts that the script names to the rendezvous, and print what has changed in the script's answer.

        Returns False if the job cannot use these hosts; the reason is printed.

        Raises:
            HvdrunError: the job cannot use these hosts, and has not started anywhere.
        """
        context = LookupContext(self._spec.workers.directory, os.environ.get("PATH"), sys.executable)
        former = self._spec
        try:
            self._spec = add_hosts(self._spec, known, context, is_local)
        except HvdrunError as error:
            if not self._has_begun:
                raise
            self._console.notice(f"what the script names now is not taken: {error}")
            return False
        self._config.update(self._spec)
        if news is not None and self._discovery is not None:
            self._discovery.announce(news.hosts)
        if news is not None or self._spec.workers.hosts != former.workers.hosts:
            self._server.submit(HostsChanged(self._spec.workers.hosts))
        return True


def _collect(failures: dict[str, LaunchError], hosts: int) -> LaunchError:
    """One error for all failures of so many hosts."""
    overdue = [error for error in failures.values() if isinstance(error, HostsOverdueError)]
    if overdue:
        return HostsOverdueError([*failures], overdue[0].seconds)
    errors = list(dict.fromkeys(failures.values()))  # several hosts may share an error
    return errors[0] if len(errors) == 1 else HostsFailedError(errors, hosts)
