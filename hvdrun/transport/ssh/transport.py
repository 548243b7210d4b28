"""The way to an agent on another machine: one ssh connection, whose one session is the agent."""

import asyncio
import contextlib
import functools
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from functools import partial

import paramiko

from hvdrun.processes.background import in_thread
from hvdrun.spec.jobspec import JobSpec
from hvdrun.transport import start
from hvdrun.transport.account import find_home
from hvdrun.transport.failures import AgentStartError
from hvdrun.transport.ssh.commands import MatchCommands
from hvdrun.transport.ssh.config import SshConfig
from hvdrun.transport.ssh.dial import Connection, dial
from hvdrun.transport.ssh.failures import BadSshConfigError, TunnelRefusedError
from hvdrun.transport.ssh.streams import Bridge, Pump, Stream
from hvdrun.transport.ssh.target import Target, resolve_target
from hvdrun.transport.ssh.tunnel import Tunnels
from hvdrun.transport.start import RemoteAgent, make_agent
from hvdrun.transport.transport import MAX_AT_ONCE, read_messages
from rendezvous.wire import codec
from rendezvous.wire.orders import AgentMessage, Order

_CLOSE_SECONDS = 8.0  # more than an agent takes to clear away; then the connection is closed, which ends it too
_DISCONNECT_SECONDS = 5.0
_WINDOW_BYTES = 512 * 1024  # of output on its way to us: what comes through a tunnel has to wait behind it


@dataclass(frozen=True, slots=True)
class Limits:
    """How long to wait: for a login, all attempts included, and for an agent that starts on a busy host."""

    connect_seconds: float = 30.0
    start_seconds: float = 60.0


class SshTransport:
    """Starts an agent on another machine; see `Transport`.

    resolve: finds out where the host's name leads; it may block, and runs in a thread.
    gate: shared by all transports of a job, it bounds how many log in at the same time.
    """

    def __init__(
        self,
        host: str,
        resolve: Callable[[], Target],
        agent: RemoteAgent,
        gate: asyncio.Semaphore | None = None,
        limits: Limits | None = None,
    ) -> None:
        self.host = host
        self._resolve = resolve
        self._agent = agent
        self._gate = gate or asyncio.Semaphore(MAX_AT_ONCE)
        self._limits = limits or Limits()
        self._connection: Connection | None = None
        self._pump: Pump | None = None
        self._stream: Stream | None = None
        self._bridge: Bridge | None = None
        self._tunnels: Tunnels | None = None
        self._first = b""  # of the agent's output
        self._closing = False

    async def open(self) -> None:
        """Log in and start the agent; see `Transport`.

        Raises:
            LaunchError: one of the classes in `failures`.
        """
        async with self._gate:
            target = await in_thread(self._resolve)
            limit = target.connect_timeout_seconds or self._limits.connect_seconds
            self._connection = await dial(target, limit)
        try:
            async with asyncio.timeout(self._limits.start_seconds):
                await self._start(self._connection)
        except TimeoutError as error:
            said = start.last_words(self._bridge.errors) if self._bridge is not None else ""
            raise AgentStartError(self.host, f"no sign of it within {self._limits.start_seconds:g} s", said) from error

    def send(self, order: Order) -> None:
        """Send an order; see `Transport`."""
        if self._stream is not None:
            self._stream.write(codec.encode_order(order))

    def messages(self) -> AsyncIterator[AgentMessage]:
        """What the agent tells; see `Transport`."""
        return read_messages(self._read, self._first)

    async def wait(self) -> str:
        """Wait for the agent's end; see `Transport`."""
        if self._stream is None or self._bridge is None or self._connection is None:
            return "it was never started"
        await self._bridge.closed.wait()
        self._stream.check()
        code = self._bridge.exit_code
        if code >= 0:
            how = f"its agent ended with exit code {code}"
        elif self._connection.client.is_active() or self._closing:
            how = "its agent was killed by a signal"
        else:
            how = "its ssh connection was lost"
        return start.add_last_words(how, self._bridge.errors)

    async def tunnel(self, port: int) -> int:
        """Let the host reach a port of this machine's loopback; the port on its own loopback that leads here.

        Ends with this transport.

        Raises:
            TunnelRefusedError: the ssh server opens none.
        """
        if self._tunnels is None:
            raise TunnelRefusedError(self.host, "there is no connection to it")
        return await self._tunnels.open(port)

    async def kill(self) -> None:
        """Close the connection; see `Transport`."""
        if self._connection is not None:
            self._closing = True
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_DISCONNECT_SECONDS):
                    await in_thread(functools.partial(_disconnect, self._connection, self._pump))

    async def close(self) -> None:
        """End the agent; see `Transport`."""
        if self._connection is None:
            return
        try:
            if self._stream is not None and self._bridge is not None and self._first:
                await self._end(self._stream, self._bridge)
            if self._tunnels is not None:
                await self._tunnels.close()
        finally:
            await self.kill()

    async def _start(self, connection: Connection) -> None:
        session = await self._open_session(connection)
        self._pump = Pump(self._fail)
        self._tunnels = Tunnels(self.host, connection, self._pump, self._fail)
        self._stream, self._bridge = self._pump.open_stream(session)
        self._stream.write(self._agent.encode_start())
        before, self._first = await start.find_mark(self._stream.read)
        if not self._first:
            await self._bridge.closed.wait()
            raise self._agent.explain(self.host, self._bridge.exit_code, self._bridge.errors, before)

    async def _open_session(self, connection: Connection) -> paramiko.Channel:
        def work() -> paramiko.Channel:
            session = connection.client.open_session(_WINDOW_BYTES, timeout=self._limits.start_seconds)
            session.settimeout(self._limits.start_seconds)
            session.exec_command(self._agent.command())
            return session

        try:
            return await in_thread(work)
        except (paramiko.SSHException, OSError, EOFError) as error:
            raise AgentStartError(self.host, "the ssh server opened no session", str(error)) from error

    async def _read(self) -> bytes:
        return b"" if self._stream is None else await self._stream.read()

    async def _end(self, stream: Stream, bridge: Bridge) -> None:
        """End the agent's input, and wait for its end."""
        stream.end_writing()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_SECONDS):
                while await stream.read():
                    pass
                await bridge.closed.wait()
                stream.check()

    def _fail(self, error: BaseException) -> None:
        """Raise an unexpected error of a task or a thread where the agent is listened to."""
        if self._stream is not None:
            self._stream.fail(error)


def _disconnect(connection: Connection, pump: Pump | None) -> None:
    connection.close()
    if pump is not None:
        pump.stop()


class SshTransports:
    """Makes the transports of one job; its ssh configuration is read once, when the first of them is opened."""

    def __init__(self) -> None:
        self._gate = asyncio.Semaphore(MAX_AT_ONCE)
        self._commands = MatchCommands()
        self._config: SshConfig | None = None
        self._reading = threading.Lock()

    def make(self, host: str, spec: JobSpec) -> SshTransport:
        """The transport to a host; it is not open, and nothing is known of where the host's name leads."""
        return SshTransport(host, partial(self._resolve, host, spec), make_agent(spec), self._gate)

    def close(self) -> None:
        """End the commands of the ssh configuration that still run."""
        self._commands.close()

    def _resolve(self, host: str, spec: JobSpec) -> Target:
        """Blocks while files are read and commands of `Match exec` run."""
        return resolve_target(
            host,
            config=self._read_config(host),
            user=spec.remote.users.get(host),
            port=spec.remote.ssh_port,
            identity_file=spec.remote.ssh_identity_file,
            accept_new=spec.remote.ssh_accept_new,
        )

    def _read_config(self, host: str) -> SshConfig:
        with self._reading:
            if self._config is None:
                try:
                    self._config = SshConfig.read(find_home(), commands=self._commands)
                except ValueError as error:
                    raise BadSshConfigError(host, str(error)) from error
            return self._config
