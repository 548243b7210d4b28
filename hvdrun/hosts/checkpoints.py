"""One job at a time uses a folder of checkpoints: its launcher holds a file lock, which ends with the process."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from hvdrun.errors import LaunchError
from hvdrun.startup.paths import exists, open_regular
from rendezvous.core.outcome import TEMPORARY_FAILURE

_LOCK = ".hvdrun.lock"


class CheckpointsInUseError(LaunchError):
    """Another job uses the folder.

    Cause: Another job writes to the folder of `--checkpoint`.
    Remedy: Wait for the other job, name another folder, or remove the lock where no job runs.
    """

    exit_code = TEMPORARY_FAILURE

    def __init__(self, lock: Path) -> None:
        super().__init__(
            f"another job uses the checkpoints in {lock.parent} (--checkpoint): start this one when that has ended, or "
            f"give it another folder; if there is no other job, remove {lock}."
        )


@contextmanager
def hold_checkpoints(folder: Path | None) -> Iterator[None]:
    """Lock this folder for one job; None for no folder.

    Without an effect if this machine lacks the folder, cannot write there, or cannot lock files.

    Raises:
        CheckpointsInUseError: another job uses it.
    """
    if folder is None:
        yield
        return

    lock, is_new, file = folder / _LOCK, not exists(folder), None
    try:
        folder.mkdir(exist_ok=True)
        file = _take(lock)
    except BlockingIOError as error:
        raise CheckpointsInUseError(lock) from error
    except OSError:
        # Rank 0 reports what is wrong with the folder.
        pass

    try:
        yield
    finally:
        if file is not None:
            with file, suppress(OSError):  # someone has removed it
                lock.unlink()
        if is_new:
            with suppress(OSError):  # a checkpoint is in it
                folder.rmdir()


def _take(lock: Path) -> BinaryIO:
    """Open and lock the file.

    Raises:
        BlockingIOError: another job holds the lock.
        OSError: the file cannot be created, or cannot be locked.
    """
    while True:
        file = open_regular(lock, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with suppress(FileNotFoundError):  # the job before has just removed it
                if os.path.samestat(os.fstat(file.fileno()), lock.stat()):
                    # The locked file has not been removed meanwhile.
                    return file
        except OSError:
            file.close()
            raise
        file.close()
