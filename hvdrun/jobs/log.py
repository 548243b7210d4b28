"""The output of a detached job, in files of a form that log collectors know: that of Kubernetes' container runtimes.

Each line has the time, the stream, F or P, and the text: `2026-01-31T03:44:51.530012Z stdout F [0] step 7`. P is for a
text that does not end its line. So the bytes are kept as they are. What other code of the process has written there, as
a traceback, has no such beginning, and counts as standard error.

The files are `log.1`, `log.2` and so on. When one has LOG_BYTES the next one begins, and so it does with another server
of the job. The newest ones stay: KEPT_LOGS of that size, or more that are smaller.
"""

import os
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from hvdrun.console.marks import STREAM_NAMES
from hvdrun.console.writer import Writer
from rendezvous.wire.orders import OutputStream

LOG_BYTES = 16 * 1024 * 1024
KEPT_LOGS = 8
OWN_LINE = b"hvdrun: "
# Also behind a time, and as a record of --log-format json.
_OWN = re.compile(
    rb'(?:\d{4}-\d\d-\d\dT[\d:.]+ )?hvdrun: |\{"time": "[^"]+", "level": "[a-z]+", "host": "[^"]*", "job": "'
)
_LINE = re.compile(rb"\S+Z (?P<stream>stdout|stderr) (?P<kind>[FP]) (?P<text>.*)", re.DOTALL)
_STREAMS = {name.encode(): stream for stream, name in STREAM_NAMES.items()}
_MODE = os.O_WRONLY | os.O_CREAT | os.O_APPEND


def frame(stream: OutputStream, data: bytes, now: datetime) -> bytes:
    """The lines of the log for these bytes."""
    lead = f"{now.astimezone(UTC):%Y-%m-%dT%H:%M:%S.%f}Z {STREAM_NAMES[stream]} ".encode()
    framed = []
    for line in _split(data):
        if line.endswith(b"\n"):
            framed.append(lead + b"F " + line)
        else:
            framed.append(lead + b"P " + line + b"\n")
    return b"".join(framed)


def _split(data: bytes) -> Iterator[bytes]:
    """The lines, which only a line feed ends."""
    *lines, rest = data.split(b"\n")
    yield from (line + b"\n" for line in lines)
    if rest:
        yield rest


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes of a stream; the last ones of a line, unless the line goes on."""

    stream: OutputStream
    data: bytes


def read_line(line: bytes) -> Piece:
    """The bytes that a line of the log has; it ends with its line feed."""
    match = _LINE.fullmatch(line.removesuffix(b"\n"))
    if match is None:
        return Piece(OutputStream.STDERR, line)
    end = b"\n" if match["kind"] == b"F" else b""
    return Piece(_STREAMS[match["stream"]], match["text"] + end)


def is_of_worker(line: bytes) -> bool:
    """A line of the log that a worker has written, and not hvdrun."""
    match = _LINE.fullmatch(line.removesuffix(b"\n"))
    return match is not None and not is_own(Piece(_STREAMS[match["stream"]], match["text"]))


def is_own(piece: Piece) -> bool:
    """A line that hvdrun has written, or the beginning of one."""
    return piece.stream is OutputStream.STDERR and _OWN.match(piece.data) is not None


def name_log(folder: Path, number: int) -> Path:
    """The path of a file of the log."""
    return folder / f"log.{number}"


def list_logs(folder: Path) -> list[int]:
    """The numbers of the files that are there, in their order."""
    with suppress(OSError):  # the folder was removed
        names = (entry.name.partition("log.")[2] for entry in os.scandir(folder))
        return sorted(int(name) for name in names if name.isdecimal())
    return []


class LogWriter(Writer):
    """Writes the streams of hvdrun into the files of the log.

    Args:
        folder: of the files. A new one begins, also where an earlier server of the job has written some.
        descriptors: of hvdrun's streams; they are the file from now on.
        clock: the time.
        most_bytes: of a file.
        kept: how many files of that size stay.
    """

    def __init__(
        self,
        folder: Path,
        descriptors: dict[int, OutputStream],
        clock: Callable[[], datetime],
        *,
        most_bytes: int = LOG_BYTES,
        kept: int = KEPT_LOGS,
    ) -> None:
        super().__init__()
        self._folder = folder
        self._streams = descriptors
        self._clock = clock
        self._most_bytes = most_bytes
        self._kept = kept
        self._unended: OutputStream | None = None  # whose line the console ends before a line of another stream
        self._number = max(list_logs(folder), default=0)
        self._begin_file()

    def locate(self) -> tuple[int, int]:
        """The number of the present file, and how many bytes it has. For the thread that writes."""
        return self._number, os.fstat(next(iter(self._streams))).st_size

    def put(self, descriptor: int, data: bytes) -> bool:
        """See `Writer`."""
        stream = self._streams.get(descriptor)
        if stream is not None and data:
            now, end = self._clock(), b""
            if self._unended not in {None, stream} and data.startswith(b"\n"):
                end, data = frame(self._unended, b"\n", now), data[1:]
            self._unended = None if data[-1:] in {b"", b"\n", b"\r"} else stream
            data = end + frame(stream, data, now)
        return super().put(descriptor, data)

    def _write(self, descriptor: int, data: bytes, wake: int) -> None:
        """Begin a file where the last one is full."""
        if descriptor in self._streams:
            with suppress(OSError):  # the disk is full: the old file goes on
                if os.fstat(descriptor).st_size >= self._most_bytes:
                    self._begin_file()
        super()._write(descriptor, data, wake)

    def _find_file(self, descriptor: int) -> int:
        """All streams of hvdrun are one file."""
        return min(self._streams) if descriptor in self._streams else descriptor

    def _begin_file(self) -> None:
        fresh = os.open(name_log(self._folder, self._number + 1), _MODE, 0o600)
        self._number += 1
        for descriptor in self._streams:
            os.dup2(fresh, descriptor)
        self._torn.difference_update(self._streams)
        os.close(fresh)
        self._drop_old()

    def _drop_old(self) -> None:
        """Drop the files before which as much as may stay has been written."""
        newer_bytes = 0
        for number in reversed(list_logs(self._folder)[:-1]):
            path = name_log(self._folder, number)
            with suppress(OSError):  # the folder was removed
                if newer_bytes >= (self._kept - 1) * self._most_bytes:
                    path.unlink()
                else:
                    newer_bytes += path.stat().st_size
