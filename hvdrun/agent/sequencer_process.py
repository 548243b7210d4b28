"""One sequencer process as its agent sees it: the port that it reports, the orders that it reads, and its end."""

import asyncio
import contextlib
from collections.abc import Callable

from hvdrun.processes import processes
from hvdrun.processes.child import Child, OutputFile
from rendezvous.core.outcome import describe_end
from rendezvous.errors import SequencerStartError
from rendezvous.wire.processes import STOP, Activation, read_port
from rendezvous.wire.waits import find_line

_REAP_SECONDS = 2.0  # between the end of a process' output and the report of its exit code


class SequencerEndedError(SequencerStartError):
    """The process ended before it reported its port; another way to start it may work."""


class SequencerNotRespondingError(SequencerStartError):
    """The process takes no orders, since it has ended or is about to end; another one may."""


class SequencerProcess(Child):
    """A child that runs the sequencer; belongs to one event loop.

    Args:
        stdin, stdout, errors: see `Child`.

    port: where it listens; 0 until it has reported that.
    has_served: it has got a generation.
    fault: why the agent has killed it; "" where it has not.
    """

    def __init__(self, stdin: int, stdout: int, errors: OutputFile) -> None:
        super().__init__(stdin, stdout, errors)
        self.port = 0
        self.has_served = False
        self.fault = ""
        self._reader: asyncio.StreamReader | None = None
        self._ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()  # how

    def note_end(self, code: int) -> None:
        """Record that it was reaped with this exit code."""
        if not self._ended.done():
            self._ended.set_result(self._explain_end(code))

    async def open(self, limit_seconds: float) -> None:
        """Wait until it listens.

        Raises:
            SequencerEndedError: it ended instead.
            SequencerStartError: it did not report its port within the limit.
        """
        try:
            async with asyncio.timeout(limit_seconds):
                self.port = await self._read_port()
        except TimeoutError:
            raise SequencerStartError(f"it did not report its port within {limit_seconds:g} s") from None

    async def follow(self, note: Callable[[str], None]) -> None:
        """Pass on what it reports of ranks that wait, until its end."""
        with contextlib.suppress(ValueError):  # a line that is too long is not the sequencer's
            while self._reader is not None and (line := await self._reader.readline()):
                report = find_line(line)
                if report is not None:
                    note(report)

    def activate(self, activation: Activation) -> None:
        """Have it serve this generation from now on.

        Raises:
            SequencerNotRespondingError: it has ended, or reads no orders.
        """
        self._order(activation.encode())
        self.has_served = True

    def stop(self) -> None:
        """Have it report a stop notice to the members; it may get this order several times.

        Raises:
            SequencerNotRespondingError: see `activate`.
        """
        self._order(STOP)

    def kill(self) -> None:
        """SIGKILL it, if it lives."""
        if not self._ended.done():
            super().kill()

    def describe_end(self) -> str:
        """Half a sentence: how it ended, with the last line that it wrote."""
        if self._ended.done():
            return self._ended.result()
        return "it has closed its standard output"

    def _order(self, line: bytes) -> None:
        if self._ended.done():
            raise SequencerNotRespondingError(self.describe_end())
        process = processes.look(self.pid)  # its members may notice its end first, and form the next generation
        if process is None or process.is_ending:
            raise SequencerNotRespondingError("it has ended")
        try:
            self.write(line)
        except OSError as error:  # it has ended, or its pipe is full, which a few lines cannot do
            raise SequencerNotRespondingError(f"it takes no orders: {error.strerror}") from None

    def _explain_end(self, code: int) -> str:
        if self.fault:
            return self.fault
        how = f"it {describe_end(code)}"
        last = self.read_last_line()
        if last:
            return f"{how} ({last})"
        return how

    async def _read_port(self) -> int:
        reader = self._reader = await self.open_reader()
        with contextlib.suppress(ValueError):  # a line that is too long is not the sequencer's
            while line := await reader.readline():
                port = read_port(line)
                if port is not None:
                    return port
            await asyncio.wait({self._ended}, timeout=_REAP_SECONDS)
            raise SequencerEndedError(self.describe_end())
        raise SequencerStartError("its output is not a port")
