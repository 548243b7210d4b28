"""Shows the workers' output: whole lines, each with its mark, bytes otherwise untouched.

On a terminal a line that has begun (a prompt, a row of dots) is shown soon, though its end has not come.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping
from datetime import datetime
from itertools import count
from typing import NamedTuple, Protocol

from hvdrun.console.interrupts import InterruptFilter
from hvdrun.console.lines import MAX_LINE_BYTES, LineSplitter, Tail
from hvdrun.console.marks import Marks
from hvdrun.console.status import StatusLine
from hvdrun.console.writer import Writer
from rendezvous.core.model import Worker
from rendezvous.wire.orders import OutputStream

PARTIAL_LINE_SECONDS = 0.1  # after which the beginning of a line is shown
_LOOK_SECONDS = 0.002  # between two looks whether the writer has written
_ERASE_LINE = b"\x1b[K"

DESCRIPTORS: Mapping[OutputStream, int] = {OutputStream.STDOUT: 1, OutputStream.STDERR: 2}

STREAM_NAMES: Mapping[OutputStream, str] = {OutputStream.STDOUT: "stdout", OutputStream.STDERR: "stderr"}


class _Source(NamedTuple):
    worker: Worker
    stream: OutputStream


def _read_local_clock() -> datetime:
    return datetime.now().astimezone()


class OutputMarker:
    """Turns the workers' bytes into marked lines, without writing them, and remembers each worker's last lines.

    A worker's rank may change with each generation: a line has the one that its worker had when it was completed.

    Args:
        marks: what stands before each line.
        terminals: the streams that are shown on a terminal. There, what comes after another worker's progress bar
            (a line that ended with a carriage return) first erases it.
        coloured: the streams in which marks have colours.
        clock: the local time.
    """

    def __init__(
        self,
        marks: Marks,
        *,
        terminals: Collection[OutputStream] = (),
        coloured: Collection[OutputStream] = (),
        clock: Callable[[], datetime] = _read_local_clock,
        max_line_bytes: int = MAX_LINE_BYTES,
    ) -> None:
        self._marks = marks
        self._terminals = frozenset(terminals)
        self._coloured = frozenset(coloured)
        self._clock = clock
        self._max_line_bytes = max_line_bytes
        self._splitters: dict[_Source, LineSplitter] = {}
        self._tails: dict[_Source, Tail] = {}
        self._ranks: dict[Worker, int] = {}  # of those with a splitter, the last that was told
        self._bar: _Source | None = None  # whose progress bar the cursor stands on
        self._begun: dict[_Source, int] = {}  # how much of an unfinished line is shown
        self._open: _Source | None = None  # behind whose unfinished line the cursor stands
        self._numbers = count()
        self._filters: dict[_Source, InterruptFilter] = {}
        self._hides_interrupts = False

    def hide_interrupts(self) -> None:
        """From now on tracebacks of KeyboardInterrupt on standard error are left out."""
        self._hides_interrupts = True

    def feed(self, worker: Worker, rank: int, stream: OutputStream, data: bytes) -> bytes:
        """Take the next bytes of a worker's stream; return the lines that are now complete, marked."""
        source = _Source(worker, stream)
        self._ranks[worker] = rank
        splitter = self._splitters.get(source)
        if splitter is None:
            splitter = self._splitters[source] = LineSplitter(self._max_line_bytes)
        return self._mark(source, self._hide(source, splitter.feed(data)))

    def waits(self, worker: Worker, stream: OutputStream) -> bool:
        """A line has begun that `flush` would show."""
        splitter = self._splitters.get(_Source(worker, stream))
        return stream in self._terminals and splitter is not None and splitter.is_inside_a_line

    def flush(self, worker: Worker, stream: OutputStream) -> bytes:
        """Return what has come of a line on a terminal that has no end yet, and was not shown; marked, if it is new."""
        if not self.waits(worker, stream):
            return b""
        source = _Source(worker, stream)
        text = self._splitters[source].unfinished
        begun, self._begun[source] = self._begun.get(source, 0), len(text)
        return self._show(source, text[begun:]) if len(text) > begun else b""

    def note_typed_line(self) -> None:
        """What was typed has ended the line on the terminal."""
        self._open = None

    def finish(self, worker: Worker, stream: OutputStream) -> bytes:
        """A worker's stream has ended: return its last line where it was not complete, marked, a newline added."""
        source = _Source(worker, stream)
        splitter = self._splitters.pop(source, None)
        if splitter is None:
            return b""
        lines = self._hide(source, splitter.finish())
        held = self._filters.pop(source, None)
        return self._mark(source, lines if held is None else [*lines, *held.finish()])

    def list_unfinished(self) -> tuple[Worker, ...]:
        """The workers that have written and were not finished, in the order of their ranks."""
        workers = {source.worker for source in self._splitters}
        return tuple(sorted(workers, key=lambda worker: (self._ranks[worker], worker)))

    def forget(self, worker: Worker) -> None:
        """Nobody will ask what this one wrote, nor will it write any more."""
        self._ranks.pop(worker, None)
        for stream in OutputStream:
            self._splitters.pop(_Source(worker, stream), None)
            self._begun.pop(_Source(worker, stream), None)
            self._tails.pop(_Source(worker, stream), None)

    def leave_line(self, stream: OutputStream, source: _Source | None = None) -> bytes:
        """What to write to a stream before a line of `source` (None: hvdrun's own), so that it begins a line.

        A progress bar is erased, and a line that has begun is ended.
        """
        if stream not in self._terminals:
            return b""
        leaves_bar, leaves_line = (at not in {None, source} for at in (self._bar, self._open))
        if leaves_bar:
            self._bar = None
        if leaves_line:
            self._open = None
        return _ERASE_LINE if leaves_bar else b"\n" if leaves_line else b""

    def tail(self, worker: Worker) -> tuple[str, ...]:
        """A worker's last lines of both of its streams, in the order in which they came; see `Tail`."""
        tails = [tail for stream in OutputStream if (tail := self._tails.get(_Source(worker, stream))) is not None]
        lines = sorted((line for tail in tails for line in tail.list_lines()), key=lambda line: line.number)
        return tuple(line.text.decode(errors="replace").rstrip("\r\n") for line in lines)

    def _hide(self, source: _Source, lines: list[bytes]) -> list[bytes]:
        if not self._hides_interrupts or source.stream is not OutputStream.STDERR:
            return lines
        shown = int(source in self._begun)  # of the first line the beginning is shown already
        return [*lines[:shown], *self._filters.setdefault(source, InterruptFilter()).feed(lines[shown:])]

    def _mark(self, source: _Source, lines: list[bytes]) -> bytes:
        if not lines:
            return b""
        self._tails.setdefault(source, Tail(self._numbers)).add(lines)
        return self._show(source, *lines, begun=self._begun.pop(source, 0))

    def _show(self, source: _Source, *lines: bytes, begun: int = 0) -> bytes:
        """The lines, marked; of the first one `begun` bytes are shown already. The last one may have no end."""
        rank, host = self._ranks[source.worker], source.worker.slot.host
        coloured, stream = source.stream in self._coloured, STREAM_NAMES[source.stream]
        mark = self._marks.render(rank, host, self._clock(), coloured=coloured, stream=stream)
        before = self.leave_line(source.stream, source)
        lead = b"" if self._open == source else mark
        if source.stream in self._terminals:
            self._bar = source if lines[-1].endswith(b"\r") else None
            self._open = None if lines[-1].endswith((b"\r", b"\n")) else source
        return before + lead + mark.join(lines)[begun:]


class Copy(Protocol):
    """What gets the workers' output too, as `OutputFiles` does; the methods are those of `OutputPrinter`."""

    async def write(self, worker: Worker, rank: int, stream: OutputStream, data: bytes) -> None:
        """Take the next bytes of a worker's stream."""

    def finish(self, worker: Worker) -> None:
        """Take notice that a worker has ended."""

    def forget(self, worker: Worker) -> None:
        """Take notice that another one has taken this worker's place."""

    async def close(self, limit_seconds: float | None) -> bool:
        """Write what is left."""


class OutputPrinter:
    """Writes marked output to hvdrun's own streams; a status line, where there is one, goes away for it."""

    def __init__(
        self,
        marker: OutputMarker,
        writer: Writer,
        descriptors: Mapping[OutputStream, int],
        status: StatusLine | None = None,
    ) -> None:
        self._marker = marker
        self._writer = writer
        self._descriptors = dict(descriptors)
        self._status = status
        self._flushes: dict[_Source, asyncio.TimerHandle] = {}
        self._copy: Copy | None = None

    def copy_to(self, copy: Copy) -> None:
        """Give it all that comes from now on as well."""
        self._copy = copy

    async def write(self, worker: Worker, rank: int, stream: OutputStream, data: bytes) -> None:
        """Show a worker's bytes, once their lines are complete; waits while whoever reads hvdrun's output is behind.

        On a terminal the beginning of a line is shown after PARTIAL_LINE_SECONDS.
        """
        self._put(stream, self._marker.feed(worker, rank, stream, data))
        source = _Source(worker, stream)
        if source not in self._flushes and self._marker.waits(worker, stream):
            loop = asyncio.get_running_loop()
            self._flushes[source] = loop.call_later(PARTIAL_LINE_SECONDS, self._flush, source)
        if self._copy is not None:
            await self._copy.write(worker, rank, stream, data)
        await self._writer.drain()

    def finish(self, worker: Worker) -> None:
        """A worker has ended and all its output was given: show its last line where it was not complete."""
        if self._copy is not None:
            self._copy.finish(worker)
        for stream in OutputStream:
            self._call_off(_Source(worker, stream))
            self._put(stream, self._marker.finish(worker, stream))

    async def finish_task(self, worker: Worker) -> None:
        """A worker has said all that belongs to a task: return when it is written. Its last lines begin anew."""
        self.forget(worker)
        while self._writer.is_behind:  # noqa: ASYNC110 - the writer is a thread
            await asyncio.sleep(_LOOK_SECONDS)

    def note_typed_line(self) -> None:
        """A line was typed on hvdrun's terminal: the cursor stands at the beginning of the next."""
        self._marker.note_typed_line()

    def finish_all(self) -> None:
        """All workers have ended and all output was given; lowest rank first."""
        for worker in self._marker.list_unfinished():
            self.finish(worker)

    def forget(self, worker: Worker) -> None:
        """What follows is another's, or belongs to another task: show what is left of it, and do not remember it."""
        self.finish(worker)
        self._marker.forget(worker)
        if self._copy is not None:
            self._copy.forget(worker)

    def tail(self, worker: Worker) -> tuple[str, ...]:
        """A worker's last lines, for the page that says what failed."""
        return self._marker.tail(worker)

    def call_when_failing(
        self, callback: Callable[[OutputStream, OSError], None], fail: Callable[[BaseException], None]
    ) -> None:
        """Ask to be told, in the running event loop, when a stream of hvdrun cannot be written.

        With BrokenPipeError its reader has gone, as with `hvdrun ... | head`; what the workers write there is dropped.
        `fail` is told of an unexpected error, which ends all writing.
        """
        streams = {descriptor: stream for stream, descriptor in self._descriptors.items()}
        self._writer.call_when_failing(lambda descriptor, error: callback(streams[descriptor], error), fail)

    def lost_by(self, stream: OutputStream) -> OSError | None:
        """Why something could not be written to a stream of hvdrun; None while all was, or waits."""
        return self._writer.lost_by(self._descriptors[stream])

    async def close(self, limit_seconds: float | None) -> bool:
        """Write what is left, for at most `limit_seconds` (None: as long as it takes); whether nothing was dropped."""
        for source in tuple(self._flushes):
            self._call_off(source)
        is_copied = self._copy is None or await self._copy.close(limit_seconds)
        return await self._writer.close(limit_seconds) and is_copied

    def _flush(self, source: _Source) -> None:
        del self._flushes[source]
        self._put(source.stream, self._marker.flush(*source))

    def _call_off(self, source: _Source) -> None:
        timer = self._flushes.pop(source, None)
        if timer is not None:
            timer.cancel()

    def _put(self, stream: OutputStream, data: bytes) -> None:
        if data and self._status is not None:
            self._status.erase()
        self._writer.put(self._descriptors[stream], data)
