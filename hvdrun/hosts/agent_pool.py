"""Carries out what the core decides: orders to the agents of all hosts, and their workers' output back."""

import asyncio
from collections.abc import Awaitable, Callable, Collection

from hvdrun.errors import HostLostEarlyError
from hvdrun.hosts.agent_connection import AgentConnection
from hvdrun.processes.background import BackgroundTasks
from hvdrun.transport.transport import Transport
from rendezvous.core.messages import Launch, Terminate
from rendezvous.core.model import Worker
from rendezvous.core.outcome import TEMPORARY_FAILURE
from rendezvous.wire.orders import AgentMessage, Begin, Input, Order, Stop, Wait

RELEASE_SECONDS = 10.0  # more than a released agent needs to clear away
_LOOK_SECONDS = 0.25  # between two looks whether a host is lost
_SIGNS_PER_PATIENCE = 6


class AgentPool:
    """The agents of one job, one per host at a time.

    tasks: end before `close` is called.
    show: takes what an agent tells, and holds its host back while the reader is behind.
    lose: is told of a host whose agent has ended before it was released, and how.
    patience_seconds: how long an agent that has not been told of the job may hear nothing; None: without a limit.
    """

    def __init__(
        self,
        tasks: BackgroundTasks,
        show: Callable[[AgentMessage], Awaitable[None]],
        lose: Callable[[str, str], None],
        patience_seconds: float | None = None,
    ) -> None:
        self._tasks = tasks
        self._show = show
        self._lose = lose
        self._patience_seconds = patience_seconds
        self._connections: dict[str, AgentConnection] = {}
        self._leaving: set[AgentConnection] = set()  # of this job no more, and being closed
        self._encouraging: asyncio.Task[None] | None = None
        self._held = False
        self._is_stopping = False

    @property
    def hosts(self) -> tuple[str, ...]:
        """The hosts that have an agent, or are to have one, in the order in which they came."""
        return tuple(self._connections)

    def is_open(self, host: str) -> bool:
        """The host's agent has been started."""
        return host in self._connections and self._connections[host].is_open

    def has_begun(self, host: str) -> bool:
        """The host's agent has been told of the job."""
        return host in self._connections and self._connections[host].has_begun

    def add(self, host: str, transport: Transport) -> None:
        """Have an agent on this host, which has none; it is started by `open`."""
        self._connections[host] = AgentConnection(host, transport, self._tasks, self._show, self._note_end)

    async def open(self, host: str) -> None:
        """Start one agent, and listen to it from then on.

        Raises:
            LaunchError: it could not be started.
        """
        if self._patience_seconds is not None and (self._encouraging is None or self._encouraging.done()):
            waiting = self._encourage(self._patience_seconds)
            self._encouraging = self._tasks.create_task(waiting, name="keep waiting agents alive")
        await self._connections[host].open()

    def send(self, host: str, order: Order) -> None:
        """Send an order that has no worker; to a host that the job has left it is lost."""
        if host in self._connections:
            self._connections[host].send(order)

    async def hear(self, host: str) -> AgentMessage:
        """What a host's agent says next in answer to such an order, or of itself.

        Raises:
            LaunchError: it has ended, or the job has left it.
        """
        return await self._find(host).hear()

    async def tunnel(self, host: str, port: int) -> int:
        """The port of that host's loopback address that leads to this machine's `port`.

        Raises:
            LaunchError: there can be none.
        """
        return await self._find(host).tunnel(port)

    def begin(self, host: str, begin: Begin) -> None:
        """Tell a host's agent of the job, with the orders that came before."""
        self._connections[host].begin(begin, held=self._held, is_stopping=self._is_stopping)

    def order(self, effect: Launch | Terminate) -> None:
        """Send an order to the agent of the worker's host, once that has been told of the job."""
        self._connections[effect.worker.slot.host].order(effect)

    def withdraw(self, worker: Worker) -> None:
        """Forget the orders for a worker on a host whose agent has not been told of the job."""
        self._connections[worker.slot.host].withdraw(worker)

    def hold(self, *, held: bool) -> None:
        """Tell all agents that this launcher's silence is no death, or that it speaks again."""
        self._held = held
        for connection in self._connections.values():
            connection.hold(held=held, patience_seconds=self._patience_seconds)

    def stop(self) -> None:
        """Tell all agents, also those that come later, that a stop notice has come for the job."""
        self._is_stopping = True
        for connection in self._connections.values():
            if connection.has_begun:
                connection.send(Stop())

    def feed(self, host: str, data: bytes) -> None:
        """Send a piece of standard input to the worker on this host that reads it."""
        self.send(host, Input(data))

    def abandon(self, host: str) -> None:
        """Give up a host that is lost, without waiting; another agent may be started there."""
        connection = self._connections.pop(host)
        connection.abandon()
        self._close_later(connection, drains=False)

    def retire(self, host: str) -> None:
        """Let the agent of a host go that the job leaves, without waiting; another may be started there."""
        connection = self._connections.pop(host)
        connection.release(TEMPORARY_FAILURE)
        self._close_later(connection, drains=True)

    async def release(self, is_lost: Callable[[str], bool] = lambda _: False, exit_code: int = 0) -> None:
        """Let all agents go, and return when what their workers have written has been shown.

        exit_code: the job's.

        A reader that pauses is waited for; an agent that stays silent is not, beyond RELEASE_SECONDS; and a host that
        is lost is abandoned.
        """
        connections = tuple(self._connections.values())
        for connection in connections:
            connection.release(exit_code)
        await _drain(connections, is_lost)

    async def close(self) -> None:
        """End every agent that is left, and wait for its end.

        Raises:
            Exception: one cannot be ended; the others have been.
        """
        left = [connection.close() for connection in self._connections.values()]
        leaving = [connection.close(abandons=True) for connection in self._leaving]
        for result in await asyncio.gather(*left, *leaving, return_exceptions=True):
            if isinstance(result, BaseException):
                raise result

    def _find(self, host: str) -> AgentConnection:
        if host not in self._connections:
            raise HostLostEarlyError(host, "the job has left it")
        return self._connections[host]

    def _note_end(self, connection: AgentConnection, how: str) -> None:
        if self._connections.get(connection.host) is connection:
            self._lose(connection.host, how)

    def _close_later(self, connection: AgentConnection, *, drains: bool) -> None:
        self._leaving.add(connection)
        self._tasks.create_task(self._close(connection, drains=drains), name="close an agent")

    async def _close(self, connection: AgentConnection, *, drains: bool) -> None:
        if drains:
            await _drain((connection,), lambda _: False)
        await connection.close()
        self._leaving.discard(connection)

    async def _encourage(self, patience_seconds: float) -> None:
        """Tell the agents that have not been told of the job, again and again, that this launcher is there."""
        while waiting := [connection for connection in self._connections.values() if not connection.has_begun]:
            for connection in waiting:
                if connection.is_open and not self._held:
                    connection.send(Wait(patience_seconds))
            await asyncio.sleep(patience_seconds / _SIGNS_PER_PATIENCE)


async def _drain(connections: Collection[AgentConnection], is_lost: Callable[[str], bool]) -> None:
    """Wait until all that comes from released agents has been shown; see `AgentPool.release`."""
    waiting = {connection.listening for connection in connections if connection.listening is not None}
    pieces, patience_seconds = sum(connection.pieces for connection in connections), RELEASE_SECONDS
    while waiting:
        for connection in connections:
            if connection.listening is not None and is_lost(connection.host):
                connection.abandon()
        pause_seconds = min(_LOOK_SECONDS, patience_seconds)
        done, waiting = await asyncio.wait(waiting, timeout=pause_seconds, return_when=asyncio.FIRST_COMPLETED)
        came = sum(connection.pieces for connection in connections)
        if done or any(connection.showing for connection in connections) or came > pieces:
            pieces, patience_seconds = came, RELEASE_SECONDS
        elif (patience_seconds := patience_seconds - pause_seconds) <= 0:
            return
