"""What becomes of a job whose output cannot be written."""

import signal
from collections.abc import Callable
from pathlib import Path

from hvdrun.console.console import Console
from hvdrun.console.writer import is_passing
from hvdrun.errors import OUTPUT_LOST
from rendezvous.core.outcome import SIGNAL_OFFSET
from rendezvous.wire.orders import OutputStream

_NAMES = {OutputStream.STDOUT: "standard output", OutputStream.STDERR: "standard error"}


class OutputWatch:
    """Says what is wrong with hvdrun's streams, and ends a job whose reader has gone.

    Args:
        console: has the streams.
        stop: ends the job, with an exit code and the reason.
        fail: raises an error where the job waits.
    """

    def __init__(
        self, console: Console, stop: Callable[[int, str], None], fail: Callable[[BaseException], None]
    ) -> None:
        self._console = console
        self._stop = stop
        self._fail = fail

    def open(self) -> None:
        """Be told of errors from now on, in the running event loop."""
        self._console.output.call_when_failing(self._note, self._fail)
        if self._console.files is not None:
            self._console.files.call_when_failing(self._note_file, self._fail)

    def find_exit_code(self) -> int:
        """Of a job that has ended well: not 0 where its output could not be written, which is said."""
        errors = {stream: self._console.output.lost_by(stream) for stream in OutputStream}
        lost = {stream: error for stream, error in errors.items() if error and not isinstance(error, BrokenPipeError)}
        for stream, error in lost.items():
            self._console.notice(f"a part of the {_NAMES[stream]} is lost: {error.strerror}")
        files = [] if self._console.files is None else list(self._console.files.list_lost())
        for path, error in files[:1]:
            others = f", and of {len(files) - 1} more" if len(files) > 1 else ""
            self._console.notice(f"a part of {str(path)!r}{others} is lost: {error.strerror}")
        return OUTPUT_LOST if lost or files else 0

    def _note_file(self, path: Path, error: OSError) -> None:
        what = "it is tried again" if is_passing(error) else "what the worker writes there is lost"
        self._console.notice(f"{str(path)!r} cannot be written, {what}: {error.strerror}")

    def _note(self, stream: OutputStream, error: OSError) -> None:
        if not isinstance(error, BrokenPipeError):
            what = "it is tried again" if is_passing(error) else "what the workers write there is lost"
            self._console.notice(f"the {_NAMES[stream]} cannot be written, {what}: {error.strerror}")
        elif stream is OutputStream.STDOUT:  # as any program in a broken pipe would
            self._stop(SIGNAL_OFFSET + signal.SIGPIPE, "the reader of standard output has gone")
