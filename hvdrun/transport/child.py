"""The ways to an agent through the pipes of a child process: the agent itself on this machine, or a command.

The command may be srun, an ssh of the user's choice, or a shell on this machine. Its standard input and output are
those of the shell that it starts on the host.
"""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path

from hvdrun.errors import LaunchError
from hvdrun.processes.child import OutputFile
from hvdrun.processes.folder import remove_orphans
from hvdrun.transport.failures import AgentStartError, NoTunnelError
from hvdrun.transport.start import RemoteAgent, add_last_words, find_mark, last_words
from hvdrun.transport.transport import MAX_AT_ONCE, read_messages
from rendezvous.wire import codec
from rendezvous.wire.orders import AgentMessage, Order

_START_SECONDS = 60.0  # for a login or a step of the scheduler, and for an agent on a busy host
_CLOSE_SECONDS = 8.0  # more than an agent takes to clear away; one that is killed leaves that to its watchdog
_END_SECONDS = 3.0  # for a command that was asked to end, and has to end what it started
_CHUNK_BYTES = 256 * 1024


class ChildTransport:
    """What the two ways have in common; see `Transport`.

    The child leads a session of its own, because a Ctrl-C is hvdrun's to hand on.
    """

    def __init__(self, host: str) -> None:
        self.host = host
        self._process: asyncio.subprocess.Process | None = None
        self._errors: OutputFile | None = None
        self._name = "its agent"  # of the child, in a sentence about its end
        self._first = b""  # of the agent's output

    def send(self, order: Order) -> None:
        """Send an order; see `Transport`."""
        self._write(codec.encode_order(order))

    def messages(self) -> AsyncIterator[AgentMessage]:
        """What the agent tells; see `Transport`."""
        return read_messages(self._read, self._first)

    async def wait(self) -> str:
        """Wait for the child's end; see `Transport`."""
        if self._process is None:
            return "it was never started"
        code = await self._process.wait()
        how = f"exit code {code}" if code >= 0 else f"signal {-code}"
        return add_last_words(f"{self._name} ended with {how}", self._said)

    @property
    def _said(self) -> bytes:
        """The end of the child's standard error."""
        return b"" if self._errors is None else self._errors.read_tail()

    async def _start(self, words: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        self._errors = OutputFile()
        try:
            self._process = await asyncio.create_subprocess_exec(
                *words,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=self._errors.fileno(),
                start_new_session=True,
                cwd="/",
                env=environment,
            )
        except BaseException:
            self._errors.close()
            raise

    def _write(self, data: bytes) -> None:
        if self._process is not None and self._process.stdin is not None and not self._process.stdin.is_closing():
            self._process.stdin.write(data)

    async def _read(self) -> bytes:
        if self._process is None or self._process.stdout is None:
            return b""
        return await self._process.stdout.read(_CHUNK_BYTES)

    def _signal(self, number: signal.Signals, *, group: bool) -> None:
        """Signal the child; with `group` also what it has started in its own process group."""
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                if group:
                    os.killpg(self._process.pid, number)
                else:
                    self._process.send_signal(number)

    async def _end(self, limits: Sequence[tuple[float, signal.Signals]], *, group: bool) -> None:
        """End the child's input and wait for its end; after each limit, in seconds, it gets the next signal."""
        if self._process is None or self._errors is None:
            return
        if self._process.stdin is not None:
            self._process.stdin.close()
        for seconds, number in limits:
            try:
                async with asyncio.timeout(seconds):
                    await self._discard_output(self._process)
                break
            except TimeoutError:
                self._signal(number, group=group)
        await self._discard_output(self._process)
        self._errors.close()

    async def _discard_output(self, process: asyncio.subprocess.Process) -> None:
        """Wait for the child's end: asyncio notices it only once all output was read."""
        while await self._read():
            pass
        await process.wait()


class LocalTransport(ChildTransport):
    """Starts the agent on this machine, with hvdrun's own interpreter."""

    async def open(self) -> None:
        """Start the agent; see `Transport`."""
        try:
            await self._start((sys.executable, "-P", "-m", "hvdrun.agent"))
        except OSError as error:
            raise LaunchError(f"the agent on {self.host} could not be started: {error}") from error

    async def tunnel(self, port: int) -> int:
        """The host is this machine; see `Transport`."""
        return port

    async def kill(self) -> None:
        """Kill the agent; its watchdog clears away. See `Transport`."""
        self._signal(signal.SIGKILL, group=False)

    async def close(self) -> None:
        """End the agent; see `Transport`."""
        await self._end([(_CLOSE_SECONDS, signal.SIGKILL)], group=False)
        if self._process is not None and self._process.returncode:  # its watchdog may have been killed too
            remove_orphans(os.environ)


class CommandTransport(ChildTransport):
    """Starts an agent by a command.

    words: the command, the shell command of the agent among them.
    gate: shared by all transports of a job, it bounds how many start at the same time.
    environment: the command's; None for that of this process.
    is_here: the command runs on this machine, where the agent reaches hvdrun without a tunnel.
    """

    def __init__(
        self,
        host: str,
        words: Sequence[str],
        agent: RemoteAgent,
        gate: asyncio.Semaphore | None = None,
        *,
        environment: Mapping[str, str] | None = None,
        is_here: bool = False,
        start_seconds: float = _START_SECONDS,
    ) -> None:
        super().__init__(host)
        self._words = tuple(words)
        self._agent = agent
        self._gate = gate or asyncio.Semaphore(MAX_AT_ONCE)
        self._environment = environment
        self._is_here = is_here
        self._start_seconds = start_seconds
        self._program = Path(self._words[0]).name
        self._name = f"its agent's {self._program}"

    async def open(self) -> None:
        """Start the command, and wait for the agent's first word; see `Transport`.

        Raises:
            LaunchError: one of the classes in `failures`.
        """
        try:
            async with self._gate, asyncio.timeout(self._start_seconds):
                await self._start_agent()
        except TimeoutError as error:
            how = f"no sign of it within {self._start_seconds:g} s"
            raise AgentStartError(self.host, how, last_words(self._said)) from error

    async def tunnel(self, port: int) -> int:
        """There is none to another machine; see `Transport`.

        Raises:
            NoTunnelError: the host is not this machine.
        """
        if self._is_here:
            return port
        raise NoTunnelError(self.host, self._program)

    async def kill(self) -> None:
        """Kill the command; see `Transport`. Its agent then has no orders any more, and ends."""
        if self._process is not None:
            self._signal(signal.SIGTERM, group=True)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_END_SECONDS):
                    await self._process.wait()
            self._signal(signal.SIGKILL, group=True)

    async def close(self) -> None:
        """End the agent; see `Transport`."""
        await self._end([(_CLOSE_SECONDS, signal.SIGTERM), (_END_SECONDS, signal.SIGKILL)], group=True)

    async def _start_agent(self) -> None:
        try:
            await self._start(self._words, self._environment)
        except OSError as error:
            how = f"{self._program} cannot be run"
            raise AgentStartError(self.host, how, error.strerror or str(error)) from error
        self._write(self._agent.encode_start())
        before, self._first = await find_mark(self._read)
        if not self._first and self._process is not None:
            code = await self._process.wait()
            await self.close()
            raise self._agent.explain(self.host, code, self._said, before)
