"""The folder of a detached job: what the job is, its output, its lock and its end.

The launcher holds a lock of POSIX, which ends with it, and which its children do not inherit; the kernel names the
process that has it. So a folder without a lock and without an end is that of a launcher that was killed.
"""

import fcntl
import json
import os
import secrets
import shutil
import struct
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from hvdrun.jobs.record import JobRecord

JOURNAL = "journal"  # the folder of what another server of the job needs
KEPT_SECONDS = 30 * 24 * 3600.0
KEPT_BYTES = 10**9
_START_SECONDS = 3600.0  # a launcher takes its folder in less
_RECORD, _LOCK, _END = "job.json", "lock", "end.json"
_LAUNCH = "launch"  # in the folder of the journal
_CHECKSUM_BYTES = 8
_END_ROOM, _END_BYTES = ".end", 256  # the room of the end, taken at the start
_FLOCK = struct.Struct("hhqqi4x")  # the kernel's: type, whence, start, length, pid


@dataclass(frozen=True, slots=True)
class JobEnd:
    """How a job ended: hvdrun's exit code, and when, in seconds since 1970; after how long, where that is known."""

    exit_code: int
    time: float
    seconds: float | None = None


class JobFolder:
    """A folder whose name is that of its job.

    Args:
        path: of the folder, which need not exist.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = self._directory = -1

    @property
    def job(self) -> str:
        """The name of the job."""
        return self.path.name

    def create(self, record: JobRecord) -> None:
        """Create the folder under a hidden name; `lock` gives it its own.

        Raises:
            OSError: it cannot be created.
        """
        self._hidden.mkdir(mode=0o700)
        _write(self._hidden / _RECORD, record.encode().encode())
        _write(self._hidden / _END_ROOM, b" " * _END_BYTES)
        (self._hidden / _LOCK).touch(mode=0o600)

    def lock(self) -> None:
        """Lock it until this process ends, and give it its name.

        Raises:
            OSError: that cannot be done.
        """
        self._take(self._hidden)
        self._hidden.rename(self.path)

    def lock_again(self) -> None:
        """Lock the folder of a job that has begun, in place of the process that had the lock and has ended.

        Raises:
            OSError: that cannot be done; BlockingIOError: another process has the lock.
        """
        self._take(self.path)

    @contextmanager
    def locked_again(self) -> Iterator[None]:
        """Lock it as `lock_again` does, for the time of a `with` statement.

        Raises:
            OSError: that cannot be done; BlockingIOError: another process has the lock.
        """
        self.lock_again()
        try:
            yield
        finally:
            os.close(self._lock)
            os.close(self._directory)

    def _take(self, path: Path) -> None:
        self._lock = os.open(path / _LOCK, os.O_RDWR)
        try:
            fcntl.lockf(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock)
            raise
        self._directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        fcntl.flock(self._directory, fcntl.LOCK_SH)  # systemd leaves a locked directory in /var/tmp alone

    def write_launch(self, version: str, launch: bytes) -> None:
        """Keep what another server of the job needs of the command line, with hvdrun's version.

        Raises:
            OSError: it cannot be written.
        """
        (self.path / JOURNAL).mkdir(mode=0o700, exist_ok=True)
        _write(self.launch_path, b"%b\n%08x%b" % (version.encode(), zlib.crc32(launch), launch))

    @property
    def has_journal(self) -> bool:
        """A server of the job has begun a journal."""
        return any((self.path / JOURNAL).glob("*.db"))

    @property
    def launch_path(self) -> Path:
        """The file of `write_launch`."""
        return self.path / JOURNAL / _LAUNCH

    def read_launch(self) -> tuple[str, bytes] | None:
        """The version of hvdrun, and what another server needs; None where there is nothing to go on with.

        Raises:
            ValueError: it is damaged.
        """
        with suppress(OSError):  # the job has ended, or has begun without a journal
            version, _, rest = self.launch_path.read_bytes().partition(b"\n")
            checksum, launch = rest[:_CHECKSUM_BYTES], rest[_CHECKSUM_BYTES:]
            if int(checksum, 16) != zlib.crc32(launch):
                raise ValueError(checksum)
            return version.decode(), launch
        return None

    def end(self, exit_code: int) -> None:
        """Note that the job has ended, on a disk that may be full now."""
        record = self.read_record()
        seconds = None if record is None else record.age_seconds
        text = json.dumps({"exit_code": exit_code, "time": time.time(), "seconds": seconds})
        with suppress(OSError):  # the folder was removed
            room = self.path / _END_ROOM
            with room.open("r+b") as file:
                file.write(text.ljust(_END_BYTES).encode())
            room.replace(self.path / _END)

    def remove(self) -> None:
        """Remove it with all that is in it."""
        for path in (self.path, self.path.with_name(f".{self.job}")):
            shutil.rmtree(path, ignore_errors=True)

    def read_record(self) -> JobRecord | None:
        """What the job is; None where that cannot be read."""
        with suppress(OSError, ValueError, TypeError):  # it was removed meanwhile, or is damaged
            return JobRecord.decode((self.path / _RECORD).read_text(encoding="utf-8"))
        return None

    @property
    def age_seconds(self) -> float:
        """How long ago the job has begun."""
        record = self.read_record()
        return 0.0 if record is None else record.age_seconds

    def read_end(self) -> JobEnd | None:
        """How the job ended; None while it runs, and where nobody knows."""
        with suppress(OSError, ValueError, KeyError, TypeError):  # there is none
            found = json.loads((self.path / _END).read_text(encoding="utf-8"))
            return JobEnd(int(found["exit_code"]), float(found["time"]), found.get("seconds"))
        return None

    def find_launcher(self) -> int | None:
        """The pid of the launcher's process with the lock; 0 if it is in another container, None if there is none."""
        with suppress(OSError):  # it was removed meanwhile
            descriptor = os.open(self.path / _LOCK, os.O_RDWR)
            try:
                asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
                kind, _, _, _, pid = _FLOCK.unpack(fcntl.fcntl(descriptor, fcntl.F_GETLK, asked))
            finally:
                os.close(descriptor)
            if kind != fcntl.F_UNLCK:
                return max(int(pid), 0)
        return None

    def count_bytes(self) -> int:
        """How much of the disk it takes."""
        with suppress(OSError):  # a part was removed meanwhile
            return sum(entry.stat().st_size for entry in os.scandir(self.path))
        return 0

    def last_change(self) -> float:
        """When something was written last, in seconds since 1970."""
        with suppress(OSError, ValueError):  # a part was removed meanwhile
            return max(entry.stat().st_mtime for entry in os.scandir(self.path))
        return 0.0

    @property
    def _hidden(self) -> Path:
        return self.path.with_name(f".{self.path.name}")


def list_folders(place: Path) -> Iterator[JobFolder]:
    """The folders of jobs in this folder."""
    return _list(place, is_hidden=False)


def list_expired(place: Path, now: float) -> Iterator[JobFolder]:
    """The folders of ended jobs that are older than KEPT_SECONDS, or make all take more than KEPT_BYTES."""
    for folder in _list(place, is_hidden=True):
        if now - folder.last_change() > _START_SECONDS:  # its launcher was killed before it had locked the folder
            yield folder
    ended = [folder for folder in list_folders(place) if folder.find_launcher() is None]
    size = 0
    for folder in sorted(ended, key=JobFolder.last_change, reverse=True):
        size += folder.count_bytes()
        if size > KEPT_BYTES or now - folder.last_change() > KEPT_SECONDS:
            yield folder


def _list(place: Path, *, is_hidden: bool) -> Iterator[JobFolder]:
    with suppress(OSError):  # there are none
        for entry in os.scandir(place):
            if entry.name.startswith(".") == is_hidden:
                yield JobFolder(Path(entry.path))


def _write(path: Path, data: bytes) -> None:
    """Write a file as a whole, or not at all."""
    fresh = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    fresh.touch(mode=0o600)
    fresh.write_bytes(data)
    fresh.replace(path)
