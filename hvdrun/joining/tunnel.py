"""The way of an agent's own calls to the rendezvous through the launcher's door, where no other port can be reached.

It begins at a port of the loopback address on the agent's host. Each connection there knocks at the door as the agent
did, and is led to the rendezvous, with which the agent then speaks mutual TLS as over any network.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

from hvdrun.errors import HvdrunError
from hvdrun.joining.channel import Channel
from rendezvous.core.model import LOOPBACK
from rendezvous.errors import RendezvousError

MAX_CONNECTIONS = 16  # at the same time; an agent needs one or two
_CHUNK_BYTES = 64 * 1024


class TunnelEnd:
    """Where it begins; belongs to one event loop.

    knock: opens a connection through the door; a number where that needs none.
    """

    def __init__(self, knock: Callable[[], Awaitable[Channel | int]]) -> None:
        self._knock = knock
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self.port = 0

    async def open(self) -> None:
        """Listen on a free port of the loopback address.

        Raises:
            OSError: that cannot be.
        """
        self._server = await asyncio.start_server(self._take, LOOPBACK, 0)
        self.port = int(self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        """Listen no more, and end every connection."""
        if self._server is not None:
            self._server.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._connections) >= MAX_CONNECTIONS:
            writer.transport.abort()
            return
        task = asyncio.create_task(self._lead(reader, writer))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def _lead(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection; where it cannot be led on it ends, and the caller tries again."""
        channel: Channel | int = 0
        try:
            with suppress(OSError, EOFError, RendezvousError, HvdrunError):
                channel = await self._knock()
            if isinstance(channel, Channel):
                await _join((reader, writer), channel)
        finally:
            writer.transport.abort()


async def lead_inside(channel: Channel, port: int) -> None:
    """Lead what comes from a host to a port of this machine's loopback address, and back, until either end closes."""
    try:
        reader, writer = await asyncio.open_connection(LOOPBACK, port)
    except OSError:
        channel.abort()
        return
    await _join((reader, writer), channel)


async def _join(stream: tuple[asyncio.StreamReader, asyncio.StreamWriter], channel: Channel) -> None:
    """Pass on what comes at either end, until one of them ends; then both do."""
    (reader, writer), outward = stream, channel.open_writer()
    passing = {
        asyncio.create_task(_pass(reader, outward)),
        asyncio.create_task(_pass(channel.reader, writer)),
    }
    try:
        await asyncio.wait(passing, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in passing:
            task.cancel()
        await asyncio.gather(*passing, return_exceptions=True)
        writer.transport.abort()
        channel.abort()


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while chunk := await reader.read(_CHUNK_BYTES):
        writer.write(chunk)
        await writer.drain()
