"""A file that only reserves space: it is removed when the disk is full, so that a running job can still write."""

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

BALLAST_BYTES = 8 << 20
LEAST_FREE_BYTES = 4 * BALLAST_BYTES  # it never fills a disk itself


@dataclass(frozen=True, slots=True)
class Ballast:
    """The file with the reserved space."""

    path: Path

    def create(self) -> bool:
        """Reserve the space, where there is plenty; returns whether it is reserved."""
        if self.path.exists():
            return True
        with suppress(OSError):  # a journal without ballast is better than none
            disk = os.statvfs(self.path.parent)
            if disk.f_bavail * disk.f_frsize < LEAST_FREE_BYTES:
                return False
            descriptor = os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
            try:
                os.posix_fallocate(descriptor, 0, BALLAST_BYTES)
            except OSError:
                self.path.unlink(missing_ok=True)
                raise
            finally:
                os.close(descriptor)
            return True
        return False

    def release(self) -> bool:
        """Give the space back; returns whether any was reserved."""
        try:
            self.path.unlink()
        except OSError:
            return False
        return True
