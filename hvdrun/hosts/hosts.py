"""The hosts of a job: each is added, and lost or released later.

The agent of a host is started when its first worker is launched. Agents are started at the same time, and those that
are ready are configured together. A failure is the loss of that host, and the job continues with the others.

The first list of a static job is whole: the job needs each of these hosts, and gets no others. If they are known, their
agents are started before the rendezvous. All of them are configured together, and a failure ends the job.
"""

import asyncio
import contextlib
import math
import time
import traceback
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from hvdrun.console import Console
from hvdrun.errors import (
    HostFaultError,
    HostLostEarlyError,
    HostsFailedError,
    HostsOverdueError,
    LaunchError,
)
from hvdrun.hosts.agent_config import AgentConfig
from hvdrun.hosts.agent_pool import AgentPool
from hvdrun.hosts.hello import check_version
from hvdrun.hosts.lasting_transport import LastingTransport
from hvdrun.hosts.lasting_tunnel import WHEN_KILLED, explain_ssh_agent
from hvdrun.hosts.network_plan import NetworkFacts, NetworkPlan, Route
from hvdrun.hosts.sources import choose_source
from hvdrun.processes.background import BackgroundTasks
from hvdrun.spec.jobspec import JobSpec
from hvdrun.transport.transport import Transport
from rendezvous.core.messages import Begun, Dismiss, HostsChanged, IllegalEventError, Level, Lost
from rendezvous.core.model import LOOPBACK
from rendezvous.core.outcome import TEMPORARY_FAILURE, Outcome
from rendezvous.wire.orders import agent_identity

if TYPE_CHECKING:
    from hvdrun.jobs.continuation import Continuation
    from hvdrun.joining.roster import Roster
    from rendezvous.server.server import Server

FIRST_SECONDS = 10.0  # how long the first ready hosts wait for the others: the job may need all
GATHER_SECONDS = 1.0  # the same later, or when they are enough: hosts that come together are checked together


class Hosts:
    """Starts and configures the agents of hosts with workers, and reports lost hosts to the rendezvous.

    Args:
        spec: the job as a value.
        pool: the agents of the hosts.
        console: prints what becomes of hosts.
        reach: makes the transport to a host.
        adopt: makes the transport to an agent that a former launcher has started; takes what returns the job.
        needs_ssh_agent: the ssh agent alone has the key of a host.
        examine: asks the agent of a host that has just come about its host.
        roster: the agents that join by themselves, if this job has such.
        continuation: what a former server of the job has left, and the next one needs; None where there is none.

    is_over: no host is added any more, since the job has ended, perhaps because one could not be used.
    """

    def __init__(
        self,
        spec: JobSpec,
        pool: AgentPool,
        console: Console,
        *,
        reach: Callable[[str, JobSpec], Transport],
        adopt: Callable[[str, Callable[[], JobSpec]], LastingTransport] = lambda host, _: LastingTransport(host, None),
        needs_ssh_agent: Callable[[str], bool] = lambda _: False,
        examine: Callable[[str], None] = lambda _: None,
        roster: "Roster | None" = None,
        continuation: "Continuation | None" = None,
    ) -> None:
        self._spec = spec
        self._pool = pool
        self._console = console
        self._reach = reach
        self._adopt = adopt
        self._needs_ssh_agent = needs_ssh_agent
        self._has_warned = False  # of the ssh agent
        self._examine = examine
        self._early = tuple(host.name for host in spec.workers.hosts if spec.keeps_first_hosts)
        self._roster = roster
        former = None if continuation is None else continuation.state
        self._source = choose_source(spec, console.notice, roster, () if former is None else former.listed)
        self._tasks = BackgroundTasks()
        self.is_over = False
        self._have_started = asyncio.Event()  # the agents that are started before the rendezvous
        self._serving: asyncio.Future[tuple[Server, AgentConfig]] = asyncio.get_running_loop().create_future()

        self._server: Server
        self._config: AgentConfig
        self._continuation = continuation
        reserve = (lambda _, port: port) if continuation is None else continuation.reserve
        self._plan = NetworkPlan(pool, console.verbose, coming=lambda: self._source.coming, reserve=reserve)

        self._lasting: dict[str, LastingTransport] = {}  # to agents that outlive this launcher
        self._opening: dict[str, asyncio.Task[None]] = {}
        self._ready: set[str] = set()
        self._bringing: set[str] = set()  # the hosts whose agents are brought in now
        self._failures: dict[str, LaunchError] = {}
        self._bugs: dict[str, Exception] = {}  # with which hosts were lost
        self._changed = asyncio.Event()

        self._patience_seconds = FIRST_SECONDS
        if spec.keeps_first_hosts:
            self._patience_seconds = math.inf
        self._begun = 0  # how many agents got their configuration, and could serve

    async def run(self) -> None:
        """Find and add hosts until cancelled.

        Raises:
            HvdrunError: the job cannot start: a host that it needs cannot be used, none of its fixed hosts can, or its
                script cannot be run.
        """
        async with self._tasks:
            try:
                await self._add_hosts()
            finally:
                self.is_over = True

    async def _add_hosts(self) -> None:
        former = self._read_network()
        if former is None:
            for host in self._early:
                self.want(host)
        self._server, self._config = await self._serving
        if former is not None and self._roster is not None:
            self._restore_roster(self._roster, former)
        self._tasks.create_task(self._source.run(self._use), name="find hosts")
        if former is not None:
            await self._adopt_all(former)
        await self._plan.open(self._server, former)
        if former is not None:
            self._reopen_tunnels(former)
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
        """Wait until the agents that need no rendezvous have been started, at most so long."""
        if self._early:
            with contextlib.suppress(TimeoutError):  # the job continues, and the agents start meanwhile
                async with asyncio.timeout(limit_seconds):
                    await self._have_started.wait()

    def want(self, host: str) -> None:
        """A worker is launched there: start an agent, unless the host has one."""
        if host in self._pool.hosts:
            return
        transport = self._reach(host, self._spec)
        if isinstance(transport, LastingTransport):
            self._lasting[host] = transport
        self._pool.add(host, transport)
        self._opening[host] = self._tasks.create_task(self._open(host), name="start an agent")

    def _read_network(self) -> NetworkFacts | None:
        """The network of the job, where a former server of it has begun."""
        kept = None if self._continuation is None else self._continuation.network
        return None if kept is None else NetworkFacts.decode(kept)

    async def _adopt_all(self, former: NetworkFacts) -> None:
        """Go on with the agents that a former server of the job has heard, and release those whose host it has left."""
        state = self._server.state
        for host in self._list_former(former):
            await self.adopt(host)
        for host, left in state.left.items():
            if left[-1] == state.tenures[host]:  # those before have ended
                transport = LastingTransport(host, None)
                transport.attach(self._server.streams.of(agent_identity(host, left[-1])))
                await self._pool.adopt_left(host, transport)

    def _list_former(self, former: NetworkFacts) -> list[str]:
        """The hosts with agents that a former server has heard."""
        heard = self._server.state.last_heard
        return [host for host, when in heard.items() if when is not None and host in former.routes]

    def _restore_roster(self, roster: "Roster", former: NetworkFacts) -> None:
        found = frozenset(self._list_former(former))
        hosts = tuple(host for host in self._server.state.listed if host.name in found)
        tunnels = {host: former.routes[host].server.port for host in former.tunnelled}
        roster.restore(hosts, tunnels, former.ports[LOOPBACK])

    def _reopen_tunnels(self, former: NetworkFacts) -> None:
        for host in former.tunnelled & self._lasting.keys():
            self._lasting[host].reopen_tunnel(former.ports[LOOPBACK], former.routes[host].server.port)

    async def adopt(self, host: str) -> None:
        """Go on with a host whose agent a former launcher has started; after `serve`."""
        server, _ = await self._serving
        transport = self._lasting[host] = self._adopt(host, lambda: self._spec)
        transport.attach(server.stream(host))
        self._begun += 1
        await self._pool.adopt(host, transport)

    def lose(self, host: str, how: str) -> None:
        """The agent of this host has stopped."""
        if self._pool.has_begun(host):
            self._forget(host)
            self._report_lost(host, how)
        else:
            self._fail(host, HostLostEarlyError(host, how))

    def refuse(self, host: str, error: LaunchError) -> None:
        """The agent of this host got its configuration, and cannot serve."""
        self._begun -= 1
        self._fail(host, error)

    def dismiss(self, effect: Dismiss) -> None:
        """The job no longer has workers there: release the agent, if there is one, or kill what is left of it."""
        host = effect.host
        if host not in self._pool.hosts:
            return
        self._cancel(host)
        if effect.is_lost:
            self._pool.abandon(host)
        else:
            self._pool.retire(host)

    def tolerate(self, host: str, error: Exception, trace: str) -> None:
        """Raise an unexpected error of one host, or print it with -v if the job may continue without that host."""
        if self._spec.keeps_first_hosts:
            raise error
        # An OSError is a lack of resources, which may be over later.
        if not isinstance(error, OSError):
            self._bugs[host] = error
        for line in trace.splitlines():
            self._console.verbose(line)

    def find_bug(self, outcome: Outcome) -> Exception | None:
        """The unexpected error with which the host was lost that ended the job: to start it again does not help."""
        if outcome.host is None or outcome.exit_code != TEMPORARY_FAILURE:
            return None
        return self._bugs.get(outcome.host)

    def _use(self, spec: JobSpec) -> None:
        """The job has these hosts from now on."""
        self._spec = spec
        self._config.update(spec)
        self._server.submit(HostsChanged(spec.workers.hosts))

    async def _open(self, host: str) -> None:
        limit_seconds = self._spec.limits.start_timeout_seconds
        try:
            async with asyncio.timeout(limit_seconds):
                await self._pool.open(host)
            if all(map(self._pool.is_open, self._early)):
                self._have_started.set()
            await check_version(self._pool, host, self._spec)
            self._examine(host)
        except TimeoutError:
            self._fail(host, HostsOverdueError((host,), limit_seconds))
        except LaunchError as error:
            self._fail(host, error)
        except Exception as error:  # noqa: BLE001 - raised in a static job
            self.tolerate(host, error, "".join(traceback.format_exception(error)))
            self._fail(host, HostFaultError(host, error))
        else:
            del self._opening[host]
            self._ready.add(host)
            self._changed.set()

    async def _gather(self) -> None:
        """Wait for agents that are being started, so that they are configured with those that are ready."""
        began = time.monotonic()
        while self._opening and self._ready:
            patience_seconds = self._patience_seconds
            if self._is_enough():
                patience_seconds = min(patience_seconds, GATHER_SECONDS)
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
        answers = {}
        if batch:
            self._bringing = set(batch)
            answers = await self._plan.extend(self._spec, batch)
        self._warn_of_ssh_agent([host for host, answer in answers.items() if isinstance(answer, Route)])
        for host, answer in answers.items():
            if host not in self._bringing:
                self._plan.forget(host)  # the job has left it meanwhile; another agent of it is brought in later
            elif isinstance(answer, LaunchError):
                self._fail(host, answer)
        self._raise_if_impossible()
        if self._continuation is not None and answers:
            self._continuation.keep_network(self._plan.facts.encode())  # before an agent knows where to report
        for host, answer in answers.items():
            if isinstance(answer, Route):
                self._raise_if_impossible()
                if host in self._bringing:
                    self._begin(host, answer)

    def _warn_of_ssh_agent(self, hosts: Sequence[str]) -> None:
        """Say once that an ssh agent that has ended keeps the job from hosts to which it may have to log in again."""
        if not self._spec.display.detach or self._has_warned:
            return
        tunnelled = self._plan.facts.tunnelled.intersection(hosts)
        again = hosts if self._spec.is_elastic else sorted(tunnelled)
        if found := [host for host in again if self._needs_ssh_agent(host)]:
            self._has_warned = True
            whens = ["after the loss of a host"] if self._spec.is_elastic else []
            whens += [WHEN_KILLED] if tunnelled else []
            self._console.notice(explain_ssh_agent(found, whens), Level.WARNING)

    def _begin(self, host: str, route: Route) -> None:
        self._begun += 1
        self._patience_seconds = GATHER_SECONDS
        self._bugs.pop(host, None)
        number = self._server.number_agent(host)
        if host in self._lasting:
            self._lasting[host].attach(self._server.stream(host))
        self._pool.begin(host, self._config.write(host, route, number))
        if self._spec.is_remote(host):
            self._server.submit(Begun(host))

    def _fail(self, host: str, error: LaunchError) -> None:
        """A host could not be added."""
        self._forget(host)
        self._failures[host] = error
        self._changed.set()
        if not self._is_impossible():
            self._report_lost(host, str(error), is_refused=error.is_refusal)

    def _is_impossible(self) -> bool:
        """The job cannot start without the hosts that have failed."""
        has_others = self._begun > 0 or self._spec.discovers or bool(self._pool.hosts)
        return bool(self._failures) and (self._spec.keeps_first_hosts or not has_others)

    def _raise_if_impossible(self) -> None:
        if self._is_impossible() and not self._opening and self._server.state.outcome is None:
            hosts = [host.name for host in self._spec.workers.hosts]
            raise _collect({host: self._failures[host] for host in hosts if host in self._failures}, len(hosts))

    def _report_lost(self, host: str, sentence: str, *, is_refused: bool = False) -> None:
        with contextlib.suppress(IllegalEventError):  # the job has left the host meanwhile
            self._server.submit(Lost(host, sentence, is_refused))

    def _forget(self, host: str) -> None:
        self._cancel(host)
        if host in self._pool.hosts:
            self._pool.abandon(host)

    def _cancel(self, host: str) -> None:
        self._lasting.pop(host, None)
        opening = self._opening.pop(host, None)
        if opening is not None and opening is not asyncio.current_task():
            opening.cancel()
        self._ready.discard(host)
        self._bringing.discard(host)
        self._plan.forget(host)
        if self._roster is not None:
            self._roster.drop(host)


def _collect(failures: dict[str, LaunchError], hosts: int) -> LaunchError:
    """One error for all failures of so many hosts."""
    overdue = [error for error in failures.values() if isinstance(error, HostsOverdueError)]
    if overdue:
        return HostsOverdueError([*failures], overdue[0].seconds)
    errors = list(dict.fromkeys(failures.values()))  # several hosts may share an error
    if len(errors) == 1:
        return errors[0]
    return HostsFailedError(errors, hosts)
