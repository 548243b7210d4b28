"""The output of a job: that of its workers, the sentences of hvdrun, and the page that says why the job failed."""

import os
import select
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from hvdrun.console.file_index import FileIndex
from hvdrun.console.files import OutputFiles
from hvdrun.console.log import Log
from hvdrun.console.marks import Marks, OutputMarker, read_local_clock
from hvdrun.console.output import DESCRIPTORS, OutputPrinter
from hvdrun.console.page import Page, compose_page, render_annotation, render_page
from hvdrun.console.start_line import StartLine, StartNotice, StatusLine
from hvdrun.console.writer import Writer, is_passing
from hvdrun.errors import OUTPUT_LOST
from hvdrun.spec.log_format import LogFormat
from rendezvous.core.messages import Level
from rendezvous.core.outcome import SIGNAL_OFFSET
from rendezvous.core.state import StartProgress
from rendezvous.wire.orders import OutputStream

_NAMES = {OutputStream.STDOUT: "standard output", OutputStream.STDERR: "standard error"}


class Console:
    """Prints everything through one writer, so that lines do not mix and keep their order.

    Args:
        level: the least level of the sentences that are printed.
        marks: the marks before lines.
        job: the name of the job.
        folds: equal tracebacks of several workers are shown once.
        log_format: the format of the records in the file of `keep_log`; without that, JSON takes the place of hvdrun's
            own lines.
        descriptors: where the streams go; hvdrun's own.
        writer: writes them; a new one unless given.
        environment: where NO_COLOR, TERM and GITHUB_ACTIONS are looked up.
    """

    def __init__(
        self,
        *,
        level: Level = Level.INFO,
        marks: Marks,
        job: str = "",
        folds: bool = False,
        log_format: LogFormat = LogFormat.TEXT,
        descriptors: Mapping[OutputStream, int] = DESCRIPTORS,
        writer: Writer | None = None,
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        self._level = level
        self._marks = marks
        self.job = job
        self._log = Log(job, log_format, read_local_clock)
        self._errors = descriptors[OutputStream.STDERR]
        self._is_in_actions = environment.get("GITHUB_ACTIONS") == "true"
        self._writer = Writer() if writer is None else writer

        terminals = [stream for stream, descriptor in descriptors.items() if os.isatty(descriptor)]
        is_dumb = environment.get("TERM") == "dumb"
        coloured = terminals
        # See no-color.org.
        if environment.get("NO_COLOR") or is_dumb:
            coloured = []
        self._is_coloured = OutputStream.STDERR in coloured
        can_redraw = OutputStream.STDERR in terminals and not is_dumb

        self._status = None
        if can_redraw:
            self._status = StatusLine(self._writer, self._errors, coloured=self._is_coloured)

        files = {stream: _identify(descriptor) for stream, descriptor in descriptors.items()}
        self._marker = OutputMarker(marks, terminals=terminals, files=files, coloured=coloured, folds=folds)
        self.files: OutputFiles | None = None
        self.output = OutputPrinter(
            self._marker, self._writer, descriptors, self._status, shows_at_once=writer is not None
        )

    def keep_output(self, folder: Path, size: int, ranks: int, index: FileIndex | None = None) -> None:
        """Write the workers' output into files too; see `OutputFiles`.

        Args:
            folder: the folder of the files.
            size: how many ranks there may be.
            ranks: how many there are at the start.
            index: of a former server of the job, whose files go on.

        Raises:
            LaunchError: the files cannot be created.
        """
        self.files = OutputFiles(folder, size, self._marks, self.job, index=index)
        if index is None:
            self.files.create(ranks)
        self.output.copy_to(self.files)

    def keep_log(self, path: Path) -> None:
        """Write what hvdrun says into a file too; see `Log`.

        Raises:
            LaunchError: it cannot be opened.
        """
        self._log.open(path)

    def notice(self, text: str, level: Level = Level.INFO, host: str | None = None) -> None:
        """Print a sentence for every user, on stderr, in one line.

        host: which the sentence is about, or comes from; None for this machine.
        """
        line = " ".join(text.splitlines())
        if level.reaches(self._level):
            self._tell(self._log.note(level, host, line), f"hvdrun: {line}\n")

    def verbose(self, text: str, host: str | None = None) -> None:
        """Print a sentence only with -v."""
        self.notice(text, Level.DEBUG, host)

    def report(self, message: str, *details: str) -> bool:
        """Write the error that ends hvdrun into the log; return whether its record takes the place of the message."""
        record = self._log.note(Level.ERROR, None, message, *details)
        if record is not None:
            self._tell(record, "")
        return record is not None

    def hide_interrupts(self) -> None:
        """Leave tracebacks of KeyboardInterrupt out from now on; not with -v."""
        if self._level is not Level.DEBUG:
            self._marker.hide_interrupts()

    def page(self, page: Page) -> None:
        """Print why the job failed, on stderr."""
        if self._is_in_actions:
            self._write(render_annotation(page))  # GitHub reads it only at the beginning of a line
        message, *details = (text.strip() for text, _ in compose_page(page))
        host = None if page.worker is None else page.worker.slot.host
        record = self._log.note(Level.ERROR, host, message.removeprefix("hvdrun: "), *details)
        self._tell(record, render_page(page, coloured=self._is_coloured))

    def make_start_line(self, look: Callable[[], StartProgress | None], limit_seconds: float) -> StartLine:
        """The live line of a start, which does nothing unless stderr is a terminal; see `StartLine`."""
        return StartLine(self._status, look, limit_seconds=limit_seconds)

    def make_start_notice(
        self, count_ready: Callable[[], int], size: int, hosts: Sequence[str], *, is_watched: bool
    ) -> StartNotice:
        """The lines about a start for a person who waits for a function; see `StartNotice`."""
        return StartNotice(self.notice if is_watched else None, count_ready, size, hosts)

    def watch(self, stop: Callable[[int, str], None], fail: Callable[[BaseException], None]) -> None:
        """Print, in the running event loop, which output cannot be written, and stop a job whose reader has gone.

        Args:
            stop: stops the job, with an exit code and the reason.
            fail: raises an unexpected error where the job waits.
        """

        def note(stream: OutputStream, error: OSError) -> None:
            if not isinstance(error, BrokenPipeError):
                self._report_failure(f"the {_NAMES[stream]}", "the workers write", error)
            elif stream is OutputStream.STDOUT:
                # As any program in a broken pipe would.
                stop(SIGNAL_OFFSET + signal.SIGPIPE, "the reader of standard output has gone")

        self.output.call_when_failing(note, fail)
        self._log.call_when_failing(partial(self.notice, level=Level.ERROR), fail)
        if self.files is not None:
            self.files.call_when_failing(
                lambda path, error: self._report_failure(repr(str(path)), "the worker writes", error), fail
            )

    def report_lost_output(self) -> int:
        """Print which output of a job that has ended is lost; return the exit code for that, 0 if none is lost."""
        errors = {stream: self.output.find_loss(stream) for stream in OutputStream}
        lost = {stream: error for stream, error in errors.items() if error and not isinstance(error, BrokenPipeError)}
        for stream, error in lost.items():
            self.notice(f"a part of the {_NAMES[stream]} is lost: {error.strerror}", Level.ERROR)
        files = []
        if self.files is not None:
            files = list(self.files.list_lost())
        for path, error in files[:1]:
            others = f", and of {len(files) - 1} more" if len(files) > 1 else ""
            self.notice(f"a part of {str(path)!r}{others} is lost: {error.strerror}", Level.ERROR)
        if lost or files:
            return OUTPUT_LOST
        return 0

    def end(self, limit_seconds: float | None) -> bool:
        """Write what is left, for at most `limit_seconds` (None: no limit); return whether nothing was dropped."""
        self.output.release()
        if self._status is not None:
            self._status.erase()
        if self.files is not None:
            self.files.end(limit_seconds)
        self._log.end(limit_seconds)
        return self._writer.end(limit_seconds)

    def _report_failure(self, place: str, written: str, error: OSError) -> None:
        """Print that output cannot be written; `report_lost_output` says at the end whether some is lost.

        Message: the standard output cannot be written, it is tried again: REASON
        Message: the standard output cannot be written, what the workers write there is lost: REASON
        Message: a part of the standard output is lost: REASON
        Cause: The disk is full or has a fault, or a signal came while a reader paused (a full pipe). The same is said
            of the standard error, and of files of `--output-filename`.
        Remedy: Free space there, or let the reader read. The job goes on, and ends with 74 where its workers end with
            0 and output is lost.
        """
        what = "it is tried again" if is_passing(error) else f"what {written} there is lost"
        self.notice(f"{place} cannot be written, {what}: {error.strerror}", Level.ERROR)

    def _tell(self, record: str | None, text: str) -> None:
        """Print the record, or where there is none the text."""
        if self._status is not None:
            self._status.erase()
        if record is None:
            record = self._marks.render_own(text, read_local_clock())
        self._write(record)

    def _write(self, text: str) -> None:
        data = self._marker.leave_line(OutputStream.STDERR) + text.encode(errors="backslashreplace")
        if not self._writer.put(self._errors, data):
            _write_at_once(self._errors, data)


def _identify(descriptor: int) -> tuple[int, int]:
    """The same for descriptors of one file or pipe, as after 2>&1."""
    status = os.fstat(descriptor)
    return status.st_dev, status.st_ino


def _write_at_once(descriptor: int, data: bytes) -> None:
    """Write what can be written without waiting; a failure can no longer be reported."""
    poller = select.poll()
    poller.register(descriptor, select.POLLOUT)
    with suppress(OSError):  # nobody reads it
        if poller.poll(0):
            os.write(descriptor, data)
