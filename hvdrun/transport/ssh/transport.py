"""The transport over ssh: one connection to another machine, whose one session is the agent."""

import asyncio
import contextlib
import socket
from collections.abc import Callable, Iterator
from functools import partial

import paramiko

from hvdrun.processes.background import in_thread
from hvdrun.spec.jobspec import JobSpec
from hvdrun.transport.ssh.channels import ForwardedChannel, Forwarder, Tunnels
from hvdrun.transport.ssh.config import SshConfig
from hvdrun.transport.ssh.dial import Connection, dial
from hvdrun.transport.ssh.ssh_errors import SshError, TunnelRefusedError
from hvdrun.transport.ssh.target import Target, resolve_target
from hvdrun.transport.start import RemoteAgent, add_last_words, make_agent
from hvdrun.transport.transport import CLOSE_SECONDS, MAX_AT_ONCE, START_SECONDS, ShellTransport
from hvdrun.transport.transport_errors import AgentStartError, advise_to_try
from hvdrun.transport.user import find_home

_CONNECT_SECONDS = 30.0  # for a login, all attempts included
_DISCONNECT_SECONDS = 5.0
_LOSS_SECONDS = 1.0
_LOOK_SECONDS = 0.5  # between two looks whether a connection has ended
_WINDOW_BYTES = 512 * 1024  # of output that may be in transit; a tunnel's bytes wait behind it


class SshTransport(ShellTransport):
    """Starts an agent on another machine; see `Transport`.

    Args:
        host: its name in the job.
        resolve: finds out where the host's name leads; may block, and runs in a thread.
        agent: what is started there.
        gate: shared by all transports of a job; limits how many log in at the same time.
        start_seconds: the time limit for the start of the agent.
    """

    def __init__(
        self,
        host: str,
        resolve: Callable[[], Target],
        agent: RemoteAgent,
        gate: asyncio.Semaphore | None = None,
        *,
        start_seconds: float = START_SECONDS,
    ) -> None:
        super().__init__(host, "ssh")
        self._resolve = resolve
        self._agent = agent
        self._gate = gate or asyncio.Semaphore(MAX_AT_ONCE)
        self._start_seconds = start_seconds
        self._connection: Connection | None = None
        self._forwarder: Forwarder | None = None
        self._session: ForwardedChannel | None = None
        self._tunnels: Tunnels | None = None
        self._end: socket.socket | None = None  # of the session's socket pair; the stream has the other one
        self._closing = False
        self._failure: BaseException | None = None

    async def open(self) -> None:
        """Log in and start the agent; see `Transport`.

        Raises:
            LaunchError: one of the classes in `ssh_errors`.
        """
        with self._reporting():
            client = await self._log_in()
            async with self._limit_start(self._start_seconds):
                await self._open_session(client)
                await self._start_agent(self._agent)

    async def wait(self) -> str:
        """Wait for the agent's end; see `Transport`."""
        if self._connection is None or self._session is None:
            return "it was never started"
        code = await self._wait_exit()
        client = self._connection.client
        # Paramiko ends the channels of a lost connection before the connection.
        if code < 0 and self._session.was_cut:
            await in_thread(partial(client.join, _LOSS_SECONDS))
        if code >= 0:
            how = f"its agent ended with exit code {code}"
        elif client.is_active() or self._closing:
            how = "its agent was killed by a signal"
        else:
            how = "its ssh connection was lost"
        return add_last_words(how, self._stderr_tail)

    async def tunnel(self, port: int) -> int:
        """Let the host connect to a port of this machine's loopback; the port of its own loopback that leads here.

        Ends with this transport.

        Raises:
            TunnelRefusedError: the ssh server opens none.
        """
        if self._tunnels is None:
            raise TunnelRefusedError(self.host, "there is no connection to it")
        return await self._tunnels.open(port)

    async def reopen_tunnel(self, port: int, remote: int) -> None:
        """Log in, and open a tunnel that a former connection had, for an agent that runs.

        Args:
            port: of this machine.
            remote: of the host.

        Raises:
            LaunchError: one of the classes in `ssh_errors`.
        """
        with self._reporting():
            client = await self._log_in()
            forwarder = self._forwarder = Forwarder(self._fail)
            self._tunnels = Tunnels(self.host, client, forwarder, self._fail)
            await self._tunnels.open(port, remote)

    async def wait_lost(self) -> None:
        """Wait until the connection of a tunnel that was opened again has ended.

        Raises:
            Exception: an unexpected error of one of its tasks or threads.
        """
        while self._connection is not None and self._connection.client.is_active():
            if self._failure is not None:
                raise self._failure
            await asyncio.sleep(_LOOK_SECONDS)

    async def kill(self) -> None:
        """Close the connection; see `Transport`."""
        if self._connection is not None:
            self._closing = True
            with contextlib.suppress(TimeoutError):  # its thread does not delay the end of hvdrun
                async with asyncio.timeout(_DISCONNECT_SECONDS):
                    await in_thread(partial(_disconnect, self._connection, self._forwarder))

    async def close(self) -> None:
        """End the agent; see `Transport`."""
        writer, self._writer = self._writer, None
        async with contextlib.AsyncExitStack() as ends:  # each end follows, also where this is cancelled
            if self._end is not None:
                ends.enter_context(self._end)
            if isinstance(writer, asyncio.StreamWriter):
                ends.push_async_callback(_abort, writer)
            if self._tunnels is not None:
                ends.push_async_callback(self._tunnels.close)
            ends.push_async_callback(self.kill)
            if writer is not None and self._first:
                writer.write_eof()
                await self._wait_end()

    @property
    def needs_ssh_agent(self) -> bool:
        """The ssh agent alone has the key for another login."""
        return self._connection is not None and self._connection.needs_ssh_agent

    @property
    def _stderr_tail(self) -> bytes:
        if self._session is None:
            return b""
        return self._session.errors

    async def _wait_exit(self) -> int:
        if self._session is None or self._reader is None:
            return -1
        await self._session.wait_closed()
        if (error := self._reader.exception()) is not None:
            raise error
        return self._session.exit_code

    @contextlib.contextmanager
    def _reporting(self) -> Iterator[None]:
        """Raise a lack of this machine as an error of the host.

        Raises:
            SshError: this machine cannot open a connection.
        """
        try:
            yield
        except OSError as error:
            reason = error.strerror or error
            raise SshError(
                self.host, f"this machine cannot open an ssh connection to the host {self.host!r}: {reason}."
            ) from error

    async def _log_in(self) -> paramiko.Transport:
        async with self._gate:
            target = await in_thread(self._resolve)
            self._connection = await dial(target, target.connect_timeout_seconds or _CONNECT_SECONDS)
        return self._connection.client

    async def _open_session(self, client: paramiko.Transport) -> None:
        """Connect this transport's stream with a session that runs the agent's shell."""

        def work() -> paramiko.Channel:
            session = client.open_session(_WINDOW_BYTES, timeout=self._start_seconds)
            session.settimeout(self._start_seconds)
            session.exec_command(self._agent.command())
            return session

        try:
            channel = await in_thread(work)
        except (paramiko.SSHException, OSError, EOFError) as error:
            how = "the ssh server opened no session"
            raise AgentStartError(self.host, how, str(error), advise_to_try(self._way)) from error
        ours, self._end = socket.socketpair()
        self._end.setblocking(False)  # noqa: FBT003 - socket's signature
        self._reader, self._writer = await asyncio.open_connection(sock=ours)
        self._forwarder = Forwarder(self._fail)
        self._tunnels = Tunnels(self.host, client, self._forwarder, self._fail)
        self._session = self._forwarder.add(channel, self._end)

    async def _wait_end(self) -> None:
        with contextlib.suppress(TimeoutError):  # then the connection is closed
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._read_to_end()
                await self._wait_exit()

    def _fail(self, error: BaseException) -> None:
        """Raise an unexpected error of a task or a thread where the messages are read, or the end is awaited."""
        self._failure = error
        if self._reader is not None:
            self._reader.set_exception(error)  # type: ignore[arg-type]  # it takes any


async def _abort(writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()  # the orders that are left are lost
    await writer.wait_closed()


def _disconnect(connection: Connection, forwarder: Forwarder | None) -> None:
    connection.close()
    if forwarder is not None:
        forwarder.stop()


class SshTransports:
    """Creates the transports of one job."""

    def __init__(self) -> None:
        self._gate = asyncio.Semaphore(MAX_AT_ONCE)
        self._config = SshConfig(find_home())

    def make(self, host: str, spec: JobSpec) -> SshTransport:
        """The transport to a host, not open yet; the host's name is resolved when it opens."""
        return SshTransport(host, partial(self._resolve, host, spec), make_agent(spec), self._gate)

    def close(self) -> None:
        """Stop the look-ups in the ssh configuration."""
        self._config.close()

    def _resolve(self, host: str, spec: JobSpec) -> Target:
        """Resolve a host's name; blocks while commands of `Match exec` run."""
        return resolve_target(
            host,
            config=self._config,
            user=spec.remote.users.get(host),
            port=spec.remote.ssh_port,
            identity_file=spec.remote.ssh_identity_file,
            accept_new=spec.remote.ssh_accept_new,
        )
