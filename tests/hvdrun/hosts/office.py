"""A job's hosts with agents and a rendezvous of the test's own."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from unittest.mock import AsyncMock, Mock

from hvdrun.hosts.agent_config import AgentConfig
from hvdrun.hosts.agent_pool import AgentPool
from hvdrun.hosts.hosts import Hosts
from hvdrun.processes.background import BackgroundTasks
from hvdrun.spec.jobspec import JobSpec
from rendezvous.core.messages import Event, IllegalEventError, Lost
from rendezvous.server.agent_streams import AgentStream
from rendezvous.server.authority import Authority
from rendezvous.wire.orders import Begin
from tests.hvdrun.played_agent import Machine, PlayedAgent, ignore
from tests.waiting import happen


class Office:
    """A job's hosts, and what the rendezvous and the user learn.

    failures: why the agents of these hosts cannot be started.
    waiting: the hosts whose agents do not start before `let_start`.
    """

    def __init__(self, spec: JobSpec, tasks: BackgroundTasks) -> None:
        self.agents: dict[str, list[PlayedAgent]] = {}
        self.failures: dict[str, str] = {}
        self.waiting: set[str] = set()
        self.events: list[Event] = []
        self.said: list[str] = []
        self.numbers: dict[str, int] = {}
        self.is_over = False
        self.pool = AgentPool(tasks, ignore, self._lose)
        self.details: list[str] = []  # that -v shows
        console = Mock(notice=lambda text, *_: self.said.append(text), verbose=self.details.append)
        self._server = Mock(open=AsyncMock(return_value=1), submit=self._submit)
        self.streams: defaultdict[str, AgentStream] = defaultdict(AgentStream)
        self._server.stream = self.streams.__getitem__
        self._server.number_agent = lambda host: self.numbers.get(host, 1)
        self._server.state.outcome = None
        self.config = AgentConfig(spec, "job", Authority("job"), lambda _: None, {})
        self.agent_keys: set[str] = set()  # hosts whose key the ssh agent alone has
        self.hosts = Hosts(spec, self.pool, console, reach=self._reach, needs_ssh_agent=self.agent_keys.__contains__)

    @property
    def begun(self) -> list[str]:
        """The hosts that have received the job."""
        return [host for host in self.pool.hosts if self.pool.has_begun(host)]

    @property
    def lost(self) -> dict[str, str]:
        """The hosts that were reported to the rendezvous as lost, and why."""
        return {event.host: event.reason for event in self.events if isinstance(event, Lost)}

    def serve(self) -> None:
        """The rendezvous has been opened."""
        self.hosts.serve(self._server, self.config)

    def let_start(self, *hosts: str) -> None:
        """Let the agents of these hosts start."""
        for host in hosts:
            self.agents[host][-1].may_start.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for a message, an order, or the end."""
        await happen(lambda: condition() or self.is_over)

    async def bring_in(self, host: str) -> Begin:
        """Want a host, and wait for the job's description to its agent."""
        known = len(self.agents.get(host, ()))
        self.hosts.want(host)
        await self.until(lambda: len(self.agents.get(host, ())) > known and bool(self.agents[host][-1].orders))
        begin = self.agents[host][-1].orders[0]
        assert isinstance(begin, Begin)
        return begin

    def _reach(self, host: str, _spec: JobSpec) -> PlayedAgent:
        agent = Machine(failure=self.failures.get(host, ""), starts=host not in self.waiting)
        self.agents.setdefault(host, []).append(agent)
        return agent

    def _lose(self, host: str, how: str) -> None:
        self.hosts.lose(host, how)

    def _submit(self, event: Event) -> None:
        if isinstance(event, Lost) and event.host == "stranger":
            raise IllegalEventError(event, "it is not in use")
        self.events.append(event)


@asynccontextmanager
async def opened(
    spec: JobSpec, *waiting: str, failures: dict[str, str] | None = None, serves: bool = True
) -> AsyncIterator[Office]:
    """Run an office, and raise what it ends with."""
    tasks = BackgroundTasks()
    office = Office(spec, tasks)
    office.waiting.update(waiting)
    office.failures.update(failures or {})
    running: asyncio.Task[None] | None = None
    try:
        async with tasks:
            running = asyncio.create_task(office.hosts.run())
            running.add_done_callback(lambda _: setattr(office, "is_over", True))
            if serves:
                office.serve()
                await office.until(lambda: bool(office.events))
            try:
                yield office
            finally:
                running.cancel()
                await asyncio.wait({running})
    finally:
        await office.pool.close()
    if running is not None and not running.cancelled():
        running.result()
