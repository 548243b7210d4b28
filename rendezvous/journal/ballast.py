"""A file that only takes room: it is removed when the disk is full, so that a running job can still decide."""

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

BALLAST_BYTES = 8 << 20
_LEAST_FREE = 4  # of its size: it never fills a disk itself


@dataclass(frozen=True, slots=True)
class Ballast:
    """The file at one path."""

    path: Path

    def create(self) -> None:
        """Take the room, where there is plenty."""
        if self.path.exists():
            return
        with suppress(OSError):  # a journal without ballast is better than none
            room = os.statvfs(self.path.parent)
            if room.f_bavail * room.f_frsize < _LEAST_FREE * BALLAST_BYTES:
                return
            descriptor = os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
            try:
                os.posix_fallocate(descriptor, 0, BALLAST_BYTES)
            finally:
                os.close(descriptor)

    def release(self) -> bool:
        """Give the room back; whether there was any."""
        try:
            self.path.unlink()
        except OSError:
            return False
        return True
