"""Connections to a port on the far side of an ssh connection, carried to a port of this machine's loopback.

For agents that cannot connect to the launcher, which may stand behind an address translation.
"""

import asyncio
import contextlib
import socket
from collections.abc import Callable

import paramiko

from hvdrun.processes.background import in_thread, supervise
from hvdrun.transport.ssh.dial import Connection
from hvdrun.transport.ssh.failures import TunnelRefusedError
from hvdrun.transport.ssh.streams import Pump
from rendezvous.core.model import LOOPBACK

_MAX_CONNECTIONS = 64  # with the session; an agent needs a few, and a stranger on its host must not fill this process
_REQUEST_SECONDS = 15.0


class Tunnels:
    """The tunnels of one ssh connection.

    fail: takes an unexpected error of a task.
    """

    def __init__(self, host: str, connection: Connection, pump: Pump, fail: Callable[[BaseException], None]) -> None:
        self._fail = fail
        self._host = host
        self._connection = connection
        self._pump = pump
        self._loop = asyncio.get_running_loop()
        self._ports: dict[int, int] = {}  # there -> here
        self._connecting: set[asyncio.Task[None]] = set()
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
        """Begin no more; those that there are end with the connection."""
        for connecting in self._connecting:
            connecting.cancel()
        await asyncio.gather(*self._connecting, return_exceptions=True)

    def _arrive(self, channel: paramiko.Channel, origin: tuple[str, int], server: tuple[str, int]) -> None:
        """A connection has come. In paramiko's thread."""
        del origin
        try:
            self._loop.call_soon_threadsafe(self._start, channel, server[1])
        except RuntimeError:  # the loop has closed
            channel.close()

    def _start(self, channel: paramiko.Channel, there: int) -> None:
        task = asyncio.create_task(self._connect(channel, self._ports.get(there)), name="lead a connection of a tunnel")
        self._connecting.add(supervise(task, self._fail))
        task.add_done_callback(self._connecting.discard)

    async def _connect(self, channel: paramiko.Channel, port: int | None) -> None:
        """Lead a connection to the port here; where nobody listens, end it."""
        end = socket.socket(type=socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        is_connected = False
        try:
            if port is not None and len(self._pump) + len(self._connecting) <= _MAX_CONNECTIONS:
                with contextlib.suppress(OSError):
                    await self._loop.sock_connect(end, (LOOPBACK, port))
                    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    self._pump.add(channel, end)
                    is_connected = True
        finally:
            if not is_connected:
                end.close()
                await in_thread(channel.close)
