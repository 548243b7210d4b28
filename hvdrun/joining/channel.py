"""The TLS connection between an agent that joins by itself and its launcher, at either end.

The agent verifies the launcher by the certificate in its token, and only then sends the secret. TCP keepalive at each
side detects that the other one has vanished, and keeps the connection open in the routers between them.
"""

import asyncio
import os
import socket
import ssl
from collections.abc import Awaitable, Callable
from contextlib import ExitStack, suppress
from functools import partial
from typing import TYPE_CHECKING, cast

from hvdrun.errors import HvdrunError
from hvdrun.network.probe import close_server
from hvdrun.processes.background import BackgroundTasks, in_thread
from rendezvous.core.model import LOOPBACK
from rendezvous.errors import RendezvousError, WireError
from rendezvous.wire import codec
from rendezvous.wire.orders import SERVER_NAME, Credential

if TYPE_CHECKING:
    from hvdrun.agent.streams import OutputForwarder

PROOF_BYTES = 64 * 1024  # more than either side sends before the orders begin
WAITING_SECONDS = 15.0  # how soon a side that has vanished is detected, before the job begins there
HANDSHAKE_SECONDS = 10.0
LAST_OUTPUT_SECONDS = 366 * 24 * 3600.0  # the reader of hvdrun's output may pause; the connection ends with hvdrun
_LENGTH_BYTES = 4
_PROBES = 3
_LONGEST_PROBE_SECONDS = 30.0  # routers forget a silent connection after a few minutes
_MOST_PROBES = 127


class Channel(asyncio.StreamReaderProtocol):
    """One connection: read from `reader`, write to `transport`.

    is_open: the handshake was completed, and the connection has not ended.
    """

    def __init__(self) -> None:
        self.reader = asyncio.StreamReader()
        super().__init__(self.reader)
        self.transport: asyncio.Transport
        self.is_open = False
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._flow: OutputForwarder | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The handshake was done."""
        self.is_open = True
        super().connection_made(transport)
        self.transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection has ended; the reader gets an end of file, whatever the cause."""
        super().connection_lost(None)
        if self._flow is not None:
            self._flow.connection_lost(exc)
        self.is_open = False
        if not self.closed.done():
            self.closed.set_result(None)

    def pause_writing(self) -> None:
        """The other side is behind."""
        super().pause_writing()
        if self._flow is not None:
            self._flow.pause_writing()

    def resume_writing(self) -> None:
        """The other side has caught up."""
        super().resume_writing()
        if self._flow is not None:
            self._flow.resume_writing()

    def abort(self) -> None:
        """End it immediately, if it is open: asyncio of Python 3.11.2 fails on a closed transport."""
        if self.is_open:
            self.transport.abort()

    async def close(self) -> None:
        """Close it when all was sent, if it is open, and wait for its end."""
        if self.is_open:
            self.transport.close()
        await self.closed

    def follow(self, flow: "OutputForwarder") -> None:
        """Report flow control and the end of the connection to this forwarder as well."""
        self._flow = flow

    def keep_alive(self, seconds: float) -> None:
        """Probe the other side with TCP keepalive; without an answer for so long the connection ends."""
        plug = cast("socket.socket", self.transport.get_extra_info("socket"))
        pause_seconds = max(1, int(min(_LONGEST_PROBE_SECONDS, seconds / _PROBES)))
        plug.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        plug.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, pause_seconds)
        plug.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, pause_seconds)
        plug.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, min(_MOST_PROBES, max(1, int(seconds / pause_seconds))))

    def open_writer(self) -> asyncio.StreamWriter:
        """A stream writer for this connection."""
        return asyncio.StreamWriter(self.transport, self, None, asyncio.get_running_loop())

    async def read_frame(self) -> bytes:
        """The one message that comes before the orders.

        Raises:
            WireError: it is malformed, or too long.
            EOFError: the other side has closed the connection.
        """
        head = await self.reader.readexactly(_LENGTH_BYTES)
        length = int.from_bytes(head, "big")
        if length > PROOF_BYTES:
            raise WireError(f"a frame of {length} bytes")
        return next(iter(codec.FrameReader().feed(head + await self.reader.readexactly(length))))


def make_server_context(credential: Credential) -> ssl.SSLContext:
    """The TLS context of a launcher.

    `ssl` takes files alone. The two are pipes: nothing is written to a disk, and memfd_create is not needed.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    with ExitStack() as pipes:
        certificate, key = (_fill_pipe(pipes, text) for text in (credential.certificate, credential.private_key))
        context.load_cert_chain(f"/proc/self/fd/{certificate}", f"/proc/self/fd/{key}")
    return context


def _fill_pipe(pipes: ExitStack, text: bytes) -> int:
    """The reading end of a pipe that holds this text, which fits into the pipe's buffer; the stack closes it."""
    reader, writer = os.pipe()
    pipes.callback(os.close, reader)
    with os.fdopen(writer, "wb") as file:
        file.write(text)
    return reader


def make_client_context(authority: bytes) -> ssl.SSLContext:
    """The TLS context of an agent, which accepts the launcher of its token alone."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_verify_locations(cadata=authority.decode())
    return context


async def dial(address: str, port: int, context: ssl.SSLContext) -> Channel:
    """Connect to a launcher.

    Raises:
        OSError: no server listens there; an SSLCertVerificationError: it is not the launcher of the token.
    """
    # asyncio would look the name up in a thread that it joins: a silent name server would delay this program's end.
    found = await in_thread(partial(socket.getaddrinfo, address, port, type=socket.SOCK_STREAM))
    *others, last = dict.fromkeys(str(address[0]) for *_, address in found)
    for each in others:
        with suppress(ConnectionError, TimeoutError):  # the next is tried, and the failure of the last is raised
            return await _dial(each, port, context)
    return await _dial(last, port, context)


async def _dial(address: str, port: int, context: ssl.SSLContext) -> Channel:
    _, channel = await asyncio.get_running_loop().create_connection(
        Channel,
        address,
        port,
        ssl=context,
        server_hostname=SERVER_NAME,
        ssl_handshake_timeout=HANDSHAKE_SECONDS,
        ssl_shutdown_timeout=LAST_OUTPUT_SECONDS,
    )
    return channel


MAX_CONNECTIONS = 16  # at the same time, through the tunnel; an agent needs one or two
_CHUNK_BYTES = 64 * 1024


class TunnelEnd:
    """The agent's end of the tunnel to the rendezvous; belongs to one event loop.

    Args:
        connect: opens a connection to the launcher; returns an exit code where the job needs no more agents.
        tasks: forward the connections.
    """

    def __init__(self, connect: Callable[[], Awaitable[Channel | int]], tasks: BackgroundTasks) -> None:
        self._connect = connect
        self._server: asyncio.Server | None = None
        self._tasks = tasks
        self._connections = 0
        self._is_closed = False
        self.port = 0

    async def open(self) -> None:
        """Listen on a free port of the loopback address.

        Raises:
            OSError: no port can be bound.
        """
        self._server = await asyncio.start_server(self._take, LOOPBACK, 0)
        self.port = int(self._server.sockets[0].getsockname()[1])

    def close(self) -> None:
        """Stop listening, and refuse a connection that asyncio has accepted and not handed over yet."""
        self._is_closed = True
        if self._server is not None:
            close_server(self._server)

    def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._is_closed or self._connections >= MAX_CONNECTIONS:
            writer.transport.abort()
            return
        self._connections += 1
        task = self._tasks.create_task(self._forward_call(reader, writer), name="forward a call to the rendezvous")

        def note_end(_: asyncio.Task[None]) -> None:  # also of a task that was cancelled before it ran
            self._connections -= 1
            writer.transport.abort()

        task.add_done_callback(note_end)

    async def _forward_call(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward one connection; where the launcher cannot be reached it ends, and the caller tries again."""
        channel: Channel | int = 0
        with suppress(OSError, EOFError, RendezvousError, HvdrunError):  # the caller tries again
            async with asyncio.timeout(HANDSHAKE_SECONDS):  # a launcher that is stopped completes the handshake alone
                channel = await self._connect()
        if isinstance(channel, Channel):
            await _forward((reader, writer), channel)


def forward_inside(channel: Channel, port: int, tasks: BackgroundTasks) -> None:
    """Forward a connection from a host to a port of this machine's loopback address, until either end closes."""

    async def forward() -> None:
        with suppress(OSError):  # the agent tries again
            await _forward(await asyncio.open_connection(LOOPBACK, port), channel)

    task = tasks.create_task(forward(), name="forward an agent to the rendezvous")
    task.add_done_callback(lambda _: channel.abort())  # also of a task that was cancelled before it ran


async def _forward(stream: tuple[asyncio.StreamReader, asyncio.StreamWriter], channel: Channel) -> None:
    """Forward both ways, until one end closes; then close the other."""
    (reader, writer), outward = stream, channel.open_writer()
    try:
        async with BackgroundTasks() as tasks:
            out = tasks.create_task(_copy(reader, outward), name="forward what comes from inside")
            back = tasks.create_task(_copy(channel.reader, writer), name="forward what comes from outside")
            await asyncio.wait({out, back}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        writer.transport.abort()
        channel.abort()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):  # a lost connection has ended
        while chunk := await reader.read(_CHUNK_BYTES):
            writer.write(chunk)
            await writer.drain()
