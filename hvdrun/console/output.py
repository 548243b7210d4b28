"""Prints the output of the workers: whole lines, each with its mark, and bytes otherwise unchanged.

An incomplete line (a prompt, a row of dots) is shown after a moment on a terminal, and after some seconds in a file.
"""

import asyncio
from collections.abc import Callable, Mapping

from hvdrun.console.files import OutputFiles
from hvdrun.console.folding import Source
from hvdrun.console.marks import OutputMarker
from hvdrun.console.partial_lines import IN_A_FILE_SECONDS, ON_A_TERMINAL_SECONDS, PartialLines
from hvdrun.console.start_line import StatusLine
from hvdrun.console.writer import Writer
from rendezvous.core.model import Worker
from rendezvous.wire.orders import OutputStream

FOLDING_SECONDS = 0.5  # that a traceback is held back
_LOOK_SECONDS = 0.002  # between two checks whether the writer has written

DESCRIPTORS: Mapping[OutputStream, int] = {OutputStream.STDOUT: 1, OutputStream.STDERR: 2}


class OutputPrinter:
    """Writes marked output to the streams of hvdrun, and erases the status line before.

    Args:
        marker: marks each line with its worker.
        writer: writes to the descriptors.
        descriptors: those of the streams of hvdrun.
        status: the status line; None where there is none.
        shows_at_once: the beginning of a line is shown as it comes: nothing may wait in a process that may be killed.
    """

    def __init__(
        self,
        marker: OutputMarker,
        writer: Writer,
        descriptors: Mapping[OutputStream, int],
        status: StatusLine | None = None,
        *,
        shows_at_once: bool = False,
    ) -> None:
        self._shows_at_once = shows_at_once
        self._waiting: list[Callable[[], None]] = []  # for what is held back
        self._marker = marker
        self._writer = writer
        self._descriptors = dict(descriptors)
        self._status = status
        self._partial_lines = PartialLines(self._flush)
        self._copy: OutputFiles | None = None
        self._folding: asyncio.TimerHandle | None = None

    def copy_to(self, copy: OutputFiles) -> None:
        """Copy all output from now on."""
        self._copy = copy

    async def write(self, worker: Worker, rank: int, stream: OutputStream, data: bytes) -> None:
        """Print the bytes of a worker when their lines are complete; waits while the reader of the output is behind.

        The beginning of a line that does not end is shown, too; see `PartialLines`.
        """
        lines = self._marker.feed(worker, rank, stream, data)
        self._put(stream, lines)
        if self._shows_at_once and not self._marker.holds(worker):
            self._put(stream, self._marker.flush(worker, stream))

        limit_seconds = IN_A_FILE_SECONDS
        if self._marker.is_on_a_terminal(stream):
            limit_seconds = ON_A_TERMINAL_SECONDS
        has_begun = self._marker.has_incomplete_line(worker, stream)
        is_held = self._marker.holds(worker)
        has_ended = bool(lines) or is_held
        self._partial_lines.note(Source(worker, stream), limit_seconds, has_ended=has_ended, has_begun=has_begun)

        if self._marker.must_release:
            self.release()
        elif is_held and self._folding is None:
            self._folding = asyncio.get_running_loop().call_later(FOLDING_SECONDS, self.release)

        if self._copy is not None:
            await self._copy.write(worker, rank, stream, data)
        await self._writer.drain()

    def finish(self, worker: Worker) -> None:
        """End a worker's output: print its last line, if it was not complete."""
        if self._copy is not None:
            self._copy.finish(worker)
        self.release()
        for stream in OutputStream:
            self._partial_lines.call_off(Source(worker, stream))
            self._put(stream, self._marker.finish(worker, stream))

    async def finish_task(self, worker: Worker) -> None:
        """End a worker's output for one task, and drop its last lines; return when all is written."""
        self.forget(worker)
        while self._writer.is_behind:  # noqa: ASYNC110 - the writer is a thread
            await asyncio.sleep(_LOOK_SECONDS)

    def note_typed_line(self) -> None:
        """Note that a line was typed on hvdrun's terminal: the cursor is at the beginning of the next line."""
        self._marker.note_typed_line()

    def finish_all(self) -> None:
        """End the output of all workers: `finish` each, the lowest rank first."""
        for worker in self._marker.list_unfinished():
            self.finish(worker)

    def forget(self, worker: Worker) -> None:
        """Finish and drop a worker: what follows is the output of another worker or task."""
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
        """Call back, in the running event loop, when a stream of hvdrun cannot be written.

        With BrokenPipeError its reader has gone, as with `hvdrun ... | head`; what the workers write there is dropped.
        `fail` takes an unexpected error, which ends all writing.
        """
        streams = {descriptor: stream for stream, descriptor in self._descriptors.items()}
        self._writer.call_when_failing(lambda descriptor, error: callback(streams[descriptor], error), fail)

    def find_loss(self, stream: OutputStream) -> OSError | None:
        """Why something could not be written to a stream of hvdrun; None while all was, or waits."""
        return self._writer.find_loss(self._descriptors[stream])

    async def close(self, limit_seconds: float | None) -> bool:
        """Write what is left, for at most `limit_seconds` (None: no limit); return whether nothing was dropped."""
        self.release()
        self._partial_lines.call_off_all()
        is_copied = self._copy is None or await self._copy.close(limit_seconds)
        return await self._writer.close(limit_seconds) and is_copied

    def _flush(self, source: Source) -> None:
        if self._marker.holds(source.worker) and self._marker.has_incomplete_line(*source):
            self.release()
        self._put(source.stream, self._marker.flush(*source))

    def call_when_released(self, done: Callable[[], None]) -> None:
        """Call when nothing is held back."""
        if self._folding is None:
            done()
        else:
            self._waiting.append(done)

    def release(self) -> None:
        """Show the tracebacks that were held back."""
        if self._folding is not None:
            self._folding.cancel()
            self._folding = None
        for stream, data in self._marker.release():
            self._put(stream, data)
        waiting, self._waiting = self._waiting, []
        for done in waiting:
            done()

    def _put(self, stream: OutputStream, data: bytes) -> None:
        if data and self._status is not None:
            self._status.erase()
        self._writer.put(self._descriptors[stream], data)
