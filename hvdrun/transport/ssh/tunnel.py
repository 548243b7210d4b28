"""Connections to a port on the far side of an ssh connection, carried to a port of this machine's loopback.

For agents that cannot connect to the launcher, which may stand behind an address translation.
"""

import asyncio
import contextlib

import paramiko

from hvdrun.transport.ssh.dial import Connection
from hvdrun.transport.ssh.failures import TunnelRefusedError
from hvdrun.transport.ssh.streams import Pump, Stream
from hvdrun.transport.ssh.threads import in_thread
from rendezvous.core.model import LOOPBACK

_CHUNK_BYTES = 64 * 1024
_MAX_CONNECTIONS = 64  # an agent needs a few; a stranger on its host must not fill this process
_REQUEST_SECONDS = 15.0


class Tunnels:
    """The tunnels of one ssh connection."""

    def __init__(self, host: str, connection: Connection, pump: Pump) -> None:
        self._host = host
        self._connection = connection
        self._pump = pump
        self._loop = asyncio.get_running_loop()
        self._ports: dict[int, int] = {}  # there -> here
        self._relays: set[asyncio.Task[None]] = set()
        self._asking = asyncio.Lock()  # paramiko keeps one answer at a time

    async def open(self, port: int) -> int:
        """Lead connections to a port that the server chooses, on its loopback, to this port here; the former.

        Raises:
            TunnelRefusedError: the server opens none.
        """
        client = self._connection.client
        try:
            async with self._asking, asyncio.timeout(_REQUEST_SECONDS):
                there = await in_thread(lambda: client.request_port_forward(LOOPBACK, 0, self._arrive))
        except TimeoutError as error:
            raise TunnelRefusedError(self._host, f"no answer within {_REQUEST_SECONDS:g} s") from error
        except (paramiko.SSHException, OSError, EOFError) as error:
            reason = "it denied the request" if client.is_active() else "the connection has ended"
            raise TunnelRefusedError(self._host, reason) from error
        self._ports[there] = port
        return there

    async def close(self) -> None:
        """End all connections."""
        for relay in self._relays:
            relay.cancel()
        await asyncio.gather(*self._relays, return_exceptions=True)

    def _arrive(self, channel: paramiko.Channel, origin: tuple[str, int], server: tuple[str, int]) -> None:
        """A connection has come. In paramiko's thread."""
        del origin
        try:
            self._loop.call_soon_threadsafe(self._start, channel, server[1])
        except RuntimeError:  # the loop has closed
            channel.close()

    def _start(self, channel: paramiko.Channel, there: int) -> None:
        port = self._ports.get(there)
        stream = self._pump.add(channel)
        if port is None or len(self._relays) >= _MAX_CONNECTIONS:
            stream.abandon()
            return
        relay = asyncio.create_task(_relay(stream, port))
        self._relays.add(relay)
        relay.add_done_callback(self._relays.discard)


async def _relay(stream: Stream, port: int) -> None:
    """Carry bytes both ways until both ends have ended."""
    try:
        reader, writer = await asyncio.open_connection(LOOPBACK, port)
    except OSError:
        stream.abandon()
        return
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(_carry_here(stream, writer))
            group.create_task(_carry_there(reader, stream))
        await stream.flush()
    except* OSError:  # one end has gone; so does the other
        pass
    finally:
        stream.abandon()
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def _carry_here(stream: Stream, writer: asyncio.StreamWriter) -> None:
    while data := await stream.read():
        writer.write(data)
        await writer.drain()
    writer.write_eof()


async def _carry_there(reader: asyncio.StreamReader, stream: Stream) -> None:
    while data := await reader.read(_CHUNK_BYTES):
        stream.write(data)
        await stream.drain()
    stream.end_writing()
