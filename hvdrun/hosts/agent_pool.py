"""The agents of a job: orders to all hosts, and the output of their workers back."""

import asyncio
from collections.abc import Awaitable, Callable, Collection

from hvdrun.errors import HostLostEarlyError
from hvdrun.hosts.agent_connection import AgentConnection
from hvdrun.processes.background import BackgroundTasks, merge_errors
from hvdrun.transport.transport import Transport
from rendezvous.core.messages import Exited, Launch, Terminate
from rendezvous.core.model import Worker
from rendezvous.core.outcome import TEMPORARY_FAILURE
from rendezvous.wire.orders import AgentMessage, Begin, Order, PassOn, Stop, Wait

RELEASE_SECONDS = 10.0  # longer than a released agent needs to stop its workers
_LOOK_SECONDS = 0.25  # between two looks whether a host is lost
_KEEPALIVES_PER_TIMEOUT = 6


class AgentPool:
    """The agents of one job, one per host at a time.

    Args:
        tasks: end before `close` is called.
        show: takes the host and each message of its agent, and blocks the host while the reader of the output is
            behind.
        lose: takes the host of an agent that has stopped before it was released, and how it stopped.
        launcher_timeout_seconds: how long an agent without a configuration waits for a sign of the launcher; None: no
            limit.
    """

    def __init__(
        self,
        tasks: BackgroundTasks,
        show: Callable[[str, AgentMessage], Awaitable[None]],
        lose: Callable[[str, str], None],
        launcher_timeout_seconds: float | None = None,
    ) -> None:
        self._tasks = tasks
        self._show = show
        self._lose = lose
        self._launcher_timeout_seconds = launcher_timeout_seconds
        self._connections: dict[str, AgentConnection] = {}
        self._leaving: dict[AgentConnection, bool] = {}  # no longer of this job; whether it is heard to its end
        self._keeping_alive: asyncio.Task[None] | None = None
        self._held = False
        self._is_stopping = False

    @property
    def hosts(self) -> tuple[str, ...]:
        """The hosts whose agent was added, in that order."""
        return tuple(self._connections)

    def is_open(self, host: str) -> bool:
        """The host's agent has been started."""
        return host in self._connections and self._connections[host].is_open

    def has_begun(self, host: str) -> bool:
        """The host's agent has its configuration."""
        return host in self._connections and self._connections[host].has_begun

    def add(self, host: str, transport: Transport) -> None:
        """Add the agent of a host that has none; `open` starts it."""
        self._connections[host] = AgentConnection(host, transport, self._tasks, self._show, self._note_end)

    async def adopt(self, host: str, transport: Transport) -> None:
        """Go on with the agent that a former launcher has started and configured."""
        self._connections[host] = AgentConnection(
            host, transport, self._tasks, self._show, self._note_end, has_begun=True
        )
        await self._connections[host].open()

    async def adopt_left(self, host: str, transport: Transport) -> None:
        """Release the agent of a host that a former launcher has left, and show what it still has to say."""
        connection = AgentConnection(host, transport, self._tasks, self._show, self._note_end, has_begun=True)
        await connection.open()
        connection.release(TEMPORARY_FAILURE)
        self._close_later(connection, drains=True)

    async def open(self, host: str) -> None:
        """Start an agent, and receive its messages from then on.

        Raises:
            LaunchError: it could not be started.
        """
        if self._launcher_timeout_seconds is not None and (self._keeping_alive is None or self._keeping_alive.done()):
            waiting = self._keep_alive(self._launcher_timeout_seconds)
            self._keeping_alive = self._tasks.create_task(waiting, name="keep waiting agents alive")
        connection = self._connections[host]
        await connection.open()
        if self._launcher_timeout_seconds is not None and not self._held and not connection.has_begun:
            connection.send(Wait(self._launcher_timeout_seconds))  # else it waits for ever if this machine vanishes now

    def send(self, host: str, order: Order) -> None:
        """Send an order that is about no worker; without an effect if the job has left the host."""
        if host in self._connections:
            self._connections[host].send(order)

    def find(self, host: str) -> AgentConnection:
        """The connection of a host's agent.

        Raises:
            LaunchError: the job has left the host.
        """
        if host not in self._connections:
            raise HostLostEarlyError(host, "the job has left it")
        return self._connections[host]

    async def hear(self, host: str) -> AgentMessage:
        """Receive the next answer of a host's agent.

        Raises:
            LaunchError: it has stopped, or the job has left the host.
        """
        return await self.find(host).hear()

    async def tunnel(self, host: str, port: int) -> int:
        """The port of that host's loopback address that leads to this machine's `port`.

        Raises:
            LaunchError: there can be none.
        """
        return await self.find(host).tunnel(port)

    def begin(self, host: str, begin: Begin) -> None:
        """Send an agent its configuration, and the orders that waited for it."""
        self._connections[host].begin(begin, held=self._held, is_stopping=self._is_stopping)

    def order(self, effect: Launch | Terminate) -> None:
        """Send an order to the agent of the worker's host, now or after the configuration.

        It has no effect if the job has left the host, while an order waited for the port of its round, say.
        """
        if (connection := self._connections.get(effect.worker.slot.host)) is not None:
            connection.order(effect)

    def withdraw(self, worker: Worker) -> Exited:
        """Drop the orders for a worker, which its agent has not got yet; returns its end."""
        self._connections[worker.slot.host].withdraw(worker)
        return Exited.before_start(worker)

    def hold(self, *, held: bool) -> None:
        """Tell all agents that this launcher is suspended, or has resumed."""
        self._held = held
        for connection in self._connections.values():
            connection.hold(held=held, launcher_timeout_seconds=self._launcher_timeout_seconds)

    def stop(self) -> None:
        """Tell all agents, also those that come later, that a stop notice has come for the job."""
        self._is_stopping = True
        for connection in self._connections.values():
            if connection.has_begun:
                connection.send(Stop())

    def pass_on(self, order: PassOn) -> None:
        """Have the agents send their workers a signal that is the program's own."""
        for connection in self._connections.values():
            if connection.has_begun:
                connection.send(order)

    def abandon(self, host: str) -> None:
        """Kill the agent of a lost host, without waiting; another agent may be started on the host."""
        connection = self._connections.pop(host)
        connection.abandon()
        self._close_later(connection, drains=False)

    def retire(self, host: str) -> None:
        """Release the agent of a host that the job leaves, without waiting; another agent may be started on it."""
        connection = self._connections.pop(host)
        connection.release(TEMPORARY_FAILURE)
        self._close_later(connection, drains=True)

    async def release(self, is_lost: Callable[[str], bool] = lambda _: False, exit_code: int = 0) -> None:
        """Release all agents, and return when all output has been printed, also of hosts that the job has left.

        This waits for a reader of the output that pauses, up to RELEASE_SECONDS for an agent that sends nothing, and
        not for a host that is lost.

        exit_code: the job's.
        """
        connections = tuple(self._connections.values())
        for connection in connections:
            connection.release(exit_code)
        leaving = tuple(connection for connection, drains in self._leaving.items() if drains)
        await asyncio.gather(_drain(connections, is_lost), _drain(leaving))

    async def close(self) -> None:
        """Stop every agent that is left, and wait until it has stopped.

        Raises:
            Exception: one cannot be stopped; the others were. If several cannot, the error has notes about the others.
        """
        left = [connection.close() for connection in self._connections.values()]
        leaving = [connection.close(abandons=True) for connection in self._leaving]
        results = await asyncio.gather(*left, *leaving, return_exceptions=True)  # an error is raised below
        if errors := [result for result in results if isinstance(result, BaseException)]:
            raise merge_errors(errors)

    def _note_end(self, connection: AgentConnection, how: str) -> None:
        if self._connections.get(connection.host) is connection:
            self._lose(connection.host, how)

    def _close_later(self, connection: AgentConnection, *, drains: bool) -> None:
        self._leaving[connection] = drains
        self._tasks.create_task(self._close(connection, drains=drains), name="close an agent")

    async def _close(self, connection: AgentConnection, *, drains: bool) -> None:
        if drains:
            await _drain((connection,))
        await connection.close()
        del self._leaving[connection]

    async def _keep_alive(self, launcher_timeout_seconds: float) -> None:
        """Send keepalives to the agents that do not report yet: they have had no worker."""
        while waiting := [connection for connection in self._connections.values() if not connection.has_launched]:
            for connection in waiting:
                if connection.is_open and not self._held:
                    connection.send(Wait(launcher_timeout_seconds))
            await asyncio.sleep(launcher_timeout_seconds / _KEEPALIVES_PER_TIMEOUT)


async def _drain(connections: Collection[AgentConnection], is_lost: Callable[[str], bool] = lambda _: False) -> None:
    """Wait until the last message of released agents has been handled; see `AgentPool.release`."""
    waiting = {connection.listening for connection in connections if connection.listening is not None}
    count, patience_seconds = sum(connection.message_count for connection in connections), RELEASE_SECONDS
    while waiting:
        for connection in connections:
            if connection.listening is not None and is_lost(connection.host):
                connection.abandon()
        pause_seconds = min(_LOOK_SECONDS, patience_seconds)
        done, waiting = await asyncio.wait(waiting, timeout=pause_seconds, return_when=asyncio.FIRST_COMPLETED)
        came = sum(connection.message_count for connection in connections)
        if done or any(connection.showing for connection in connections) or came > count:
            count, patience_seconds = came, RELEASE_SECONDS
        elif (patience_seconds := patience_seconds - pause_seconds) <= 0:
            return
