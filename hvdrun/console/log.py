"""What hvdrun itself says, as records with time, level, host and job: those of --log-file and --log-format."""

import json
import socket
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from hvdrun.console.page import strip_controls
from hvdrun.console.writer import Writer
from hvdrun.spec.log_format import LogFileError, LogFormat
from hvdrun.startup.paths import open_appended
from rendezvous.core.messages import Level


@dataclass(frozen=True, slots=True)
class Record:
    """One sentence of hvdrun, or an error with its details.

    host: which the sentence is about, or comes from.
    details: more lines, as of the page after a failure.
    """

    time: datetime
    level: Level
    host: str
    job: str
    message: str
    details: tuple[str, ...] = ()

    def render(self, form: LogFormat) -> str:
        """One line of JSON, or a line of text for the message and each detail."""
        time = self.time.isoformat(timespec="milliseconds")
        if form is LogFormat.JSON:
            fields = {"time": time, "level": self.level, "host": self.host, "job": self.job, "message": self.message}
            details = {"details": self.details} if self.details else {}
            return json.dumps(fields | details) + "\n"
        lead = f"{time} {self.level.upper()} {self.host} {self.job}"
        lines = [self.message, *(f"  {detail}" for detail in self.details)]
        return "".join(f"{lead} {strip_controls(line)}\n" for line in lines)


class Log:
    """Makes records, and writes them to a file.

    Args:
        job: the name of the job.
        form: the format of the records.
        clock: the local time.
    """

    def __init__(self, job: str, form: LogFormat, clock: Callable[[], datetime]) -> None:
        self._job = job
        self._form = form
        self._clock = clock
        self._descriptor: int | None = None
        self._writer = Writer()
        self._path = Path()
        self._has_failed = False

    def open(self, path: Path) -> None:
        """Write the records from now on to the end of this file.

        Raises:
            LaunchError: it cannot be opened.
        """
        try:
            self._descriptor = open_appended(path)
        except OSError as error:
            raise LogFileError(path, error.strerror or str(error)) from error
        self._path = path

    def note(self, level: Level, host: str | None, message: str, *details: str) -> str | None:
        """Write the record of a sentence; without waiting, and not where a disk that does not answer is far behind.

        Where there is no file, returns the record if it takes the place of the sentence: one of JSON.

        host: None, or localhost, for this machine.
        """
        if self._descriptor is None and self._form is LogFormat.TEXT:
            return None
        if host is None or host == "localhost":
            host = socket.gethostname()
        record = Record(self._clock(), level, host, self._job, message, details).render(self._form)
        if self._descriptor is None:
            return record
        if not self._writer.is_full:
            self._writer.put(self._descriptor, record.encode(errors="backslashreplace"))
        return None

    def call_when_failing(self, say: Callable[[str], None], fail: Callable[[BaseException], None]) -> None:
        """Say once, in the running event loop, that the file cannot be written; `fail` takes an unexpected error."""

        def note(_: int, error: OSError) -> None:
            if not self._has_failed:
                self._has_failed = True
                say(f"{str(self._path)!r} cannot be written, and lacks what hvdrun says meanwhile: {error.strerror}")

        if self._descriptor is not None:
            self._writer.call_when_failing(note, fail)

    def end(self, limit_seconds: float | None) -> None:
        """Write what is left, for at most `limit_seconds` (None: as long as it takes)."""
        self._writer.end(limit_seconds)
