"""One sequencer process as its agent holds it: what it reads, the port it tells, and how it ended.

The agent reaps all its children itself and tells this object of the end; the last line of its standard error says why.
"""

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable
from typing import Self

from hvdrun.processes import processes
from hvdrun.processes.child import OutputFile, kill_child
from rendezvous.errors import SequencerStartError
from rendezvous.wire.processes import STOP, Activation, read_port

_REAP_SECONDS = 2.0  # between the end of a process' output and the news of its end


class SequencerEndedError(SequencerStartError):
    """The process ended before it told its port; another way to start it may do."""


class SequencerDeafError(SequencerStartError):
    """The process takes no orders: it has ended, or is about to; another one may do."""


class SequencerProcess:
    """Owns the descriptors of one process; belongs to one event loop.

    pid: 0 until it is known.
    port: where it listens; 0 until that is known.
    has_served: it was told of a generation.
    fault: why it was put down, if it was.
    """

    def __init__(self, stdin: int, stdout: int, errors: OutputFile) -> None:
        self.pid = 0
        self.port = 0
        self.has_served = False
        self.fault = ""
        self._stdin = stdin
        self._errors = errors
        self._output = os.fdopen(stdout, "rb", buffering=0)
        self._transport: asyncio.ReadTransport | None = None
        self._ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()  # how
        os.set_blocking(stdin, False)

    @classmethod
    async def start(cls, spawn: Callable[[tuple[int, int, int]], Awaitable[int]]) -> Self:
        """Start one.

        Args:
            spawn: starts the process with these standard streams, which stay the caller's, and returns its pid.

        Raises:
            Exception: what `spawn` raised; nothing is left then.
        """
        with contextlib.ExitStack() as theirs, contextlib.ExitStack() as ours:
            reading, stdin = os.pipe()
            theirs.callback(os.close, reading)
            ours.callback(os.close, stdin)
            stdout, writing = os.pipe()
            ours.callback(os.close, stdout)
            theirs.callback(os.close, writing)
            errors = OutputFile()
            ours.callback(errors.close)
            process = cls(stdin, stdout, errors)
            ours.pop_all()
            try:
                process.pid = await spawn((reading, writing, errors.fileno()))
            except BaseException:
                process.close()
                raise
        return process

    def note_end(self, status: int) -> None:
        """It was reaped with this status, which is as waitpid tells it."""
        if not self._ended.done():
            self._ended.set_result(self._explain_end(os.waitstatus_to_exitcode(status)))

    async def open(self, limit_seconds: float) -> None:
        """Wait until it listens.

        Raises:
            SequencerEndedError: it ended instead.
            SequencerStartError: it did not say where within the limit.
        """
        try:
            async with asyncio.timeout(limit_seconds):
                self.port = await self._read_port()
        except TimeoutError:
            raise SequencerStartError(f"it did not tell its port within {limit_seconds:g} s") from None

    def activate(self, activation: Activation) -> None:
        """Have it serve this generation from now on.

        Raises:
            SequencerDeafError: it has ended, or does not listen to its agent any more.
        """
        self._order(activation.encode())
        self.has_served = True

    def stop(self) -> None:
        """Have it tell the members that a stop notice has come for the job; it may be told several times.

        Raises:
            SequencerDeafError: see `activate`.
        """
        self._order(STOP)

    def kill(self) -> None:
        """End it at once, if it lives."""
        if not self._ended.done():
            kill_child(self.pid)

    def describe_end(self) -> str:
        """How it ended, with the last that it wrote: half a sentence."""
        return self._ended.result() if self._ended.done() else "it has closed its standard output"

    def close(self) -> None:
        """Give the descriptors back, which ends the process if it lives and is well."""
        if self._transport is not None:
            self._transport.close()
        self._output.close()
        os.close(self._stdin)
        self._errors.close()

    def _order(self, line: bytes) -> None:
        if self._ended.done():
            raise SequencerDeafError(self.describe_end())
        process = processes.look(self.pid)  # its members may hear of its end first, and form the next generation
        if process is None or process.is_ending:
            raise SequencerDeafError("it has ended")
        try:
            os.write(self._stdin, line)
        except OSError as error:  # it has ended, or its pipe is full, which a few lines cannot do
            raise SequencerDeafError(f"it takes no orders: {error.strerror}") from None

    def _explain_end(self, code: int) -> str:
        if self.fault:
            return self.fault
        how = f"it ended with exit code {code}" if code >= 0 else f"it ended with signal {-code}"
        last = self._errors.read_last_line()
        return f"{how} ({last})" if last else how

    async def _read_port(self) -> int:
        reader = asyncio.StreamReader()
        loop = asyncio.get_running_loop()
        self._transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), self._output)
        with contextlib.suppress(ValueError):  # a line without an end is not its
            while line := await reader.readline():
                port = read_port(line)
                if port is not None:
                    return port
            await asyncio.wait({self._ended}, timeout=_REAP_SECONDS)
            raise SequencerEndedError(self.describe_end())
        raise SequencerStartError("what it writes is not a port")
