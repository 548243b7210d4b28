"""The transports whose agent is a child process, or has the pipes of one: the agent of this machine, or a command.

The command may be srun, an ssh of the user's choice, or a shell on this machine. Its standard input and output are
those of the shell that it starts on the host.
"""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from hvdrun.errors import LaunchError
from hvdrun.processes.folder import remove_orphans
from hvdrun.transport.start import RemoteAgent, add_last_words
from hvdrun.transport.transport import CLOSE_SECONDS, MAX_AT_ONCE, START_SECONDS, ShellTransport
from hvdrun.transport.transport_errors import AgentStartError, NoTunnelError
from rendezvous.core.outcome import describe_end

_PIPE_BYTES = 64 * 1024  # all that a pipe holds
_TAIL_BYTES = 16 * 1024
_TERMINATE_SECONDS = 3.0  # for a command that has got SIGTERM, and has to end what it started


class OutputTail:
    """Keeps the end of what a child writes, however much that is; belongs to one event loop."""

    def __init__(self) -> None:
        self._tail = b""
        self._reading, self._writing = os.pipe()
        os.set_blocking(self._reading, False)
        asyncio.get_running_loop().add_reader(self._reading, self._read)

    def fileno(self) -> int:
        """The descriptor to start the child with; this object keeps it."""
        return self._writing

    def read(self) -> bytes:
        """The end of what was written until this object was closed."""
        if self._reading >= 0:
            self._read()
        return self._tail

    def close(self) -> None:
        """Read no more."""
        if self._reading >= 0:
            self._read()
            asyncio.get_running_loop().remove_reader(self._reading)
            os.close(self._reading)
            os.close(self._writing)
            self._reading = -1

    def _read(self) -> None:
        with contextlib.suppress(BlockingIOError):  # no more has come yet
            self._tail = (self._tail + os.read(self._reading, _PIPE_BYTES))[-_TAIL_BYTES:]


class ChildTransport(ShellTransport):
    """What the two transports have in common; see `Transport`.

    The child leads a session: a Ctrl-C at the terminal reaches hvdrun alone, which passes it on.

    Args:
        host: the host of the agent.
        name: what a sentence about the child's end calls it.
        way: the program that the child runs.
    """

    def __init__(self, host: str, name: str, way: str) -> None:
        """Start nothing yet."""
        super().__init__(host, way)
        self._name = name
        self._process: asyncio.subprocess.Process | None = None
        self._errors: OutputTail | None = None

    async def wait(self) -> str:
        """Wait for the child's end; see `Transport`."""
        if self._process is None:
            return "it was never started"
        code = await self._wait_exit()
        return add_last_words(f"{self._name} {describe_end(code)}", self._stderr_tail)

    @property
    def _stderr_tail(self) -> bytes:
        if self._errors is None:
            return b""
        return self._errors.read()

    async def _wait_exit(self) -> int:
        if self._process is None:
            return -1
        return await self._process.wait()

    async def _start(self, words: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        self._errors = OutputTail()
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
        self._reader, self._writer = self._process.stdout, self._process.stdin

    def _signal(self, number: signal.Signals, *, group: bool) -> None:
        """Signal the child; with `group` also what it has started in its own process group."""
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):  # it ended meanwhile
                # The process' own send_signal may reap it first: asyncio then never learns its exit code.
                if group:
                    os.killpg(self._process.pid, number)
                else:
                    os.kill(self._process.pid, number)

    async def _end(self, limits: Sequence[tuple[float, signal.Signals]], *, group: bool) -> None:
        """End the child's input and wait for its end; after each limit, in seconds, it gets the next signal."""
        if self._process is None or self._errors is None:
            return

        if self._writer is not None:
            self._writer.close()
        for seconds, number in limits:
            try:
                async with asyncio.timeout(seconds):
                    await self._discard_output()
                break
            except TimeoutError:
                self._signal(number, group=group)

        try:
            async with asyncio.timeout(_TERMINATE_SECONDS):
                await self._discard_output()
        except TimeoutError:  # a process in another session, started by a prefix perhaps, keeps the output open
            self._process._transport.close()  # type: ignore[attr-defined]  # noqa: SLF001 - asyncio has no other way
        self._errors.close()

    async def _discard_output(self) -> None:
        """Wait for the child's end: asyncio notices it only when all output was read."""
        await self._read_to_end()
        await self._wait_exit()


class LocalTransport(ChildTransport):
    """Starts the agent on this machine, with hvdrun's own interpreter.

    Args:
        host: this machine, as the job names it.
    """

    def __init__(self, host: str) -> None:
        super().__init__(host, "its agent", sys.executable)

    async def open(self) -> None:
        """Start the agent; see `Transport`."""
        try:
            await self._start((sys.executable, "-P", "-m", "hvdrun.agent"))
        except OSError as error:
            raise LaunchError(
                f"the agent on {self.host} could not be started: {error}. Check that this file exists, and that the "
                "limits of this machine allow another process (ulimit -a)."
            ) from error

    async def tunnel(self, port: int) -> int:
        """The host is this machine; see `Transport`."""
        return port

    async def kill(self) -> None:
        """Kill the agent; its watchdog cleans up. See `Transport`."""
        self._signal(signal.SIGKILL, group=False)

    async def close(self) -> None:
        """End the agent; see `Transport`."""
        await self._end([(CLOSE_SECONDS, signal.SIGKILL)], group=False)
        # The agent's watchdog may have been killed too.
        if self._process is not None and self._process.returncode:
            remove_orphans(os.environ)


class CommandTransport(ChildTransport):
    """Starts an agent by a command.

    Args:
        host: its name in the job.
        words: the command; the shell command of the agent is among them.
        agent: what the command starts.
        gate: shared by all transports of a job; limits how many start at the same time.
        environment: the command's; None for that of this process.
        is_here: the command runs on this machine, where the agent reaches hvdrun without a tunnel.
        start_seconds: the time limit for the start of the agent.
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
        start_seconds: float = START_SECONDS,
    ) -> None:
        way = Path(words[0]).name
        super().__init__(host, f"its agent's {way}", way)
        self._words = tuple(words)
        self._agent = agent
        self._gate = gate or asyncio.Semaphore(MAX_AT_ONCE)
        self._environment = environment
        self._is_here = is_here
        self._start_seconds = start_seconds

    async def open(self) -> None:
        """Start the command, and wait until the agent runs; see `Transport`.

        Raises:
            LaunchError: one of the classes in `transport_errors`.
        """
        async with self._gate, self._limit_start(self._start_seconds):
            try:
                await self._start(self._words, self._environment)
            except OSError as error:
                how, said = f"{self._way} cannot be run", error.strerror or str(error)
                remedy = f"Install {self._way} on this machine, or name another command with --rsh"
                raise AgentStartError(self.host, how, said, remedy) from error
            await self._start_agent(self._agent)

    async def tunnel(self, port: int) -> int:
        """Only this machine can be reached by a pipe; see `Transport`.

        Raises:
            NoTunnelError: the host is not this machine.
        """
        if self._is_here:
            return port
        raise NoTunnelError(self.host, self._way)

    async def kill(self) -> None:
        """Kill the command; see `Transport`. Its agent then gets no more orders, and ends."""
        if self._process is not None:
            self._signal(signal.SIGTERM, group=True)
            with contextlib.suppress(TimeoutError):  # then SIGKILL follows
                async with asyncio.timeout(_TERMINATE_SECONDS):
                    await self._wait_exit()
            self._signal(signal.SIGKILL, group=True)

    async def close(self) -> None:
        """End the agent; see `Transport`."""
        await self._end([(CLOSE_SECONDS, signal.SIGTERM), (_TERMINATE_SECONDS, signal.SIGKILL)], group=True)
