"""The file of a timeline: an array of JSON that is complete after each write, and that grows in parts.

A write overwrites the end of the array, by one call of the kernel. Where the process is killed in it, the last events
are cut off, and all that came before can be read.

One job never overwrites its own parts: after FILE come FILE.1, FILE.2 and so on, where a part is full, and where
another rank 0 continues. The file of an earlier job is overwritten.
"""

import errno
import json
import os
import stat
from collections.abc import Sequence
from pathlib import Path

from worker_runtime.timeline.trace import Trace

PART_BYTES = 256 * 1024 * 1024
MOST_PARTS = 16  # of one job; then the second oldest is removed: the first has the job's beginning
_BEGIN, _SEPARATOR, _END = b"[\n", b",\n", b"\n]"
_HEAD_BYTES = 4096  # the first event is shorter


class TimelineFile:
    """The parts of one job's timeline, as one rank 0 writes them.

    Args:
        path: the first part.
        trace: renders the first events of each part.
        job: the job's name.
        part_bytes: the size at which a part is full.

    part: the number of the present part; 0 is the first.

    Raises:
        OSError: the file cannot be written.
    """

    def __init__(self, path: Path, trace: Trace, job: str, part_bytes: int = PART_BYTES) -> None:
        self._path = path
        self._trace = trace
        self._job = job
        self._part_bytes = part_bytes
        self._descriptor = -1
        self._end = 0
        self.part = -1
        self._open_next()

    def write(self, events: Sequence[str]) -> None:
        """Append events.

        Raises:
            OSError: they cannot be written.
        """
        if self._end > self._part_bytes:
            self._append([f'{{"name": "continues in {self._name(self.part + 1).name}", "ph": "M", "pid": 0}}'])
            self._open_next()
        self._append(events)

    def close(self) -> None:
        """Close the file, which is complete."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def _append(self, events: Sequence[str]) -> None:
        begin = _SEPARATOR
        if not self._end:
            begin = _BEGIN
        data = begin + _SEPARATOR.join(event.encode() for event in events)
        left = memoryview(data + _END)
        at = self._end
        while left:
            written = os.pwrite(self._descriptor, left, at)
            left, at = left[written:], at + written
        self._end += len(data)

    def _open_next(self) -> None:
        self.close()
        self.part += 1
        while find_job(self._name(self.part)) == self._job:
            self.part += 1
        self._descriptor = open_regular(self._name(self.part), os.O_WRONLY | os.O_CREAT)
        os.ftruncate(self._descriptor, 0)
        self._end = 0
        if self.part >= MOST_PARTS:
            self._remove(self.part - MOST_PARTS + 1)
        self._append(self._trace.begin(self.part))

    def _remove(self, part: int) -> None:
        path = self._name(part)
        if find_job(path) == self._job:
            path.unlink()

    def _name(self, part: int) -> Path:
        return name_part(self._path, part)


def open_regular(path: Path, flags: int) -> int:
    """The descriptor of a file; of no other thing, such as a pipe, which would block.

    Raises:
        OSError: it cannot be opened, or is no file.
    """
    descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is no file", str(path))
    return descriptor


def name_part(path: Path, part: int) -> Path:
    """The path of a part; 0 is the first."""
    if part:
        return path.with_name(f"{path.name}.{part}")
    return path


def find_job(path: Path) -> str | None:
    """The job whose timeline is in this file; None if it has none, or cannot be read."""
    try:
        with os.fdopen(open_regular(path, os.O_RDONLY), "rb") as file:
            first = file.read(_HEAD_BYTES).partition(_BEGIN)[2].partition(_SEPARATOR)[0]
        return str(json.loads(first)["args"]["job"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
