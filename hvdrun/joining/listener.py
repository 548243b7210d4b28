"""The launcher's listener, which authenticates agents by the token.

A client that has not authenticated, a stranger, has a limited time, and nothing is printed about it. While there are
too many strangers, no connection is accepted. When none of them proceeds, the oldest is closed.
"""

import asyncio
import hmac
import socket
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from hvdrun.joining.channel import HANDSHAKE_SECONDS, LAST_OUTPUT_SECONDS, Channel, make_server_context
from hvdrun.joining.token import Token
from hvdrun.processes.background import BackgroundTasks, in_thread
from hvdrun.version import __version__
from rendezvous.errors import RendezvousError
from rendezvous.server.file_limit import count_connections
from rendezvous.wire import codec
from rendezvous.wire.orders import Admission, AgentAdmitted, AgentJoin, Credential

MAX_STRANGERS = 256  # at the same time, unless few files may be open
_SHARE = 3  # strangers get one third of the connections that an address of the rendezvous may have
_STANDSTILL_SECONDS = 1.0
_BACKLOG = 1024  # agents of a large job connect in the same moment
_RETRY_SECONDS = 1.0  # when this process has no room for another file
_LAST_WORDS_SECONDS = 5.0  # for an answer to leave

Receive = Callable[[AgentJoin, Channel], Awaitable[AgentAdmitted]]


def count_strangers() -> int:
    """How many strangers there may be, so that files are left for the rendezvous and for the agents that join."""
    return min(MAX_STRANGERS, count_connections() // _SHARE)


class JoinListener:
    """Listens at one address; belongs to one event loop.

    Args:
        token: the token that an agent must have.
        credential: the listener's, issued by the token's authority.
        receive: answers an agent that has authenticated; may take any time.
        tasks: accept and answer agents; they end before `close` is called.
        limit_seconds: the time limit for the handshake of one agent.
    """

    def __init__(
        self,
        token: Token,
        credential: Credential,
        receive: Receive,
        tasks: BackgroundTasks,
        *,
        limit_seconds: float = HANDSHAKE_SECONDS,
    ) -> None:
        self._token = token
        self._receive = receive
        self._tasks = tasks
        self._limit_seconds = limit_seconds
        self._context = make_server_context(credential)
        self._socket: socket.socket | None = None
        self._strangers: dict[asyncio.Task[Any], None] = {}  # the oldest first

    async def open(self, address: str, port: int) -> int:
        """Listen; returns the port.

        Raises:
            OSError: the address cannot be used.
        """
        look_up = partial(socket.getaddrinfo, address, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, *_, at = (await in_thread(look_up))[0]
        self._socket = socket.create_server(at[:2], family=family, backlog=_BACKLOG)
        self._socket.setblocking(False)  # noqa: FBT003 - socket's signature
        self._tasks.create_task(self._accept(self._socket), name="accept agents")
        return int(self._socket.getsockname()[1])

    def close(self) -> None:
        """Stop listening."""
        if self._socket is not None:
            self._socket.close()

    async def _accept(self, listening: socket.socket) -> None:
        while True:
            try:
                connection, _ = await asyncio.get_running_loop().sock_accept(listening)
            except OSError:
                await asyncio.sleep(_RETRY_SECONDS)
                continue
            task = self._tasks.create_task(self._authenticate(connection), name="authenticate an agent")
            self._strangers[task] = None
            task.add_done_callback(partial(self._settle, connection))
            while len(self._strangers) >= count_strangers():
                moved, _ = await asyncio.wait(
                    self._strangers, timeout=_STANDSTILL_SECONDS, return_when=asyncio.FIRST_COMPLETED
                )
                if not moved:
                    next(iter(self._strangers)).cancel()

    def _settle(self, connection: socket.socket, task: asyncio.Task[bool]) -> None:
        """Close a connection that was not admitted; its task may have been cancelled before it ran."""
        self._strangers.pop(task, None)
        if task.cancelled() or task.exception() is not None or not task.result():
            connection.close()

    async def _authenticate(self, connection: socket.socket) -> bool:
        """Serve one connection from the first byte to the answer; returns whether it belongs to an admitted agent."""
        channel = Channel()
        admitted = False
        try:
            async with asyncio.timeout(self._limit_seconds):
                await asyncio.get_running_loop().connect_accepted_socket(
                    lambda: channel,
                    connection,
                    ssl=self._context,
                    ssl_handshake_timeout=self._limit_seconds,
                    ssl_shutdown_timeout=LAST_OUTPUT_SECONDS,
                )
                join = codec.decode_frame(AgentJoin, await channel.read_frame())

            answer = await self._answer(join, channel)
            channel.transport.write(codec.encode_frame(answer))
            admitted = answer.admission is Admission.ACCEPTED
            if not admitted:
                channel.transport.close()
                await asyncio.wait({channel.closed}, timeout=_LAST_WORDS_SECONDS)
        except (OSError, EOFError, RendezvousError):
            # The peer has gone, was too slow, or speaks another protocol.
            pass
        finally:
            if not admitted:
                channel.abort()
        return admitted

    async def _answer(self, join: AgentJoin, channel: Channel) -> AgentAdmitted:
        """The answer to this agent; without the right secret it shows nothing about the job."""
        if not hmac.compare_digest(join.secret, self._token.secret):
            return _refuse(
                "its token has another secret: give it the token file that this job has written or was started with."
            )
        if join.version != __version__:
            return _refuse(
                f"it is hvdrun {join.version}, and the job runs with hvdrun {__version__}: install the same on all "
                "hosts."
            )
        # Only a new agent needs a valid token: with 0 slots an agent that has joined calls the rendezvous.
        if join.slots and self._token.has_expired():
            return _refuse(
                f"its token expired at {self._token.describe_expiry()}: start the job with a new one "
                "(`hvdrun token FILE`)."
            )

        if (task := asyncio.current_task()) is not None:
            self._strangers.pop(task, None)
        return await self._receive(join, channel)


def _refuse(reason: str) -> AgentAdmitted:
    return AgentAdmitted(Admission.REFUSED, reason)
