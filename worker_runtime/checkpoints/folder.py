"""The folder of a job's checkpoints. Each checkpoint is complete or absent, and the two newest are kept.

A checkpoint is written under another name, synchronized to the disk, and renamed, so that a crash leaves the earlier
ones intact. It ends with a checksum of its content, by which damage is detected.
"""

import hashlib
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from io import BufferedIOBase
from pathlib import Path
from typing import BinaryIO

from worker_runtime.errors import CheckpointError

KEPT = 2
_NAME = re.compile(r"checkpoint-(\d{6,})\.pt")
_UNFINISHED = ".checkpoint.unfinished"
_MARK = b"hvdrun.1"  # between the content and its checksum
_FOOTER_BYTES = len(_MARK) + hashlib.sha256().digest_size
_PIECE_BYTES = 1 << 20


class CheckpointFolder:
    """A folder to which one job at a time writes.

    Args:
        path: the folder, which need not exist yet.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def write(self, write_content: Callable[[BinaryIO], None]) -> Path:
        """Add a checkpoint, and remove all but the two newest.

        Args:
            write_content: writes the content to a file, sequentially.

        Returns:
            The path of the checkpoint.

        Raises:
            CheckpointError: the checkpoint could not be written. Earlier checkpoints are intact.
        """
        unfinished = self._path / _UNFINISHED
        try:
            self._path.mkdir(parents=True, exist_ok=True)
            numbered = self._list()
            number = 1
            if numbered:
                number += numbered[0][0]
            path = self._path / f"checkpoint-{number:06d}.pt"

            try:
                _write_whole(unfinished, write_content)
                unfinished.rename(path)
            except BaseException:
                with suppress(OSError):  # the first error is raised
                    unfinished.unlink(missing_ok=True)
                raise
            _bring_to_disk(self._path)
            for _, old in numbered[KEPT - 1 :]:
                old.unlink(missing_ok=True)
        except OSError as error:
            raise self._explain(error) from error
        return path

    def check_writable(self) -> None:
        """Create the folder, and create and remove a file there.

        Raises:
            CheckpointError: one of these failed.
        """
        unfinished = self._path / _UNFINISHED
        try:
            self._path.mkdir(parents=True, exist_ok=True)
            unfinished.touch()
            unfinished.unlink()
        except OSError as error:
            raise self._explain(error) from None  # it says all that the user needs

    def find_newest_number(self) -> int:
        """The number of the newest checkpoint that this host sees, complete or not; 0 for none."""
        with suppress(OSError):  # this host sees none
            return max((number for number, _ in self._list()), default=0)
        return 0

    def find_newest(self, tell: Callable[[str], None]) -> Path | None:
        """The newest complete checkpoint; None if there are no checkpoints.

        This removes the unfinished file of a killed save.

        Args:
            tell: called with a message about each newer, damaged checkpoint.

        Raises:
            CheckpointError: all checkpoints are damaged, or the folder is not readable.
        """
        with suppress(OSError):  # the next save overwrites it
            (self._path / _UNFINISHED).unlink(missing_ok=True)

        try:
            paths = [path for _, path in self._list()]
        except OSError as error:
            raise CheckpointError(
                f"the checkpoints in {self._path} cannot be listed: {error.strerror or error}; give a folder that "
                "rank 0 may read"
            ) from error

        damages: list[str] = []
        for path in paths:
            damage = _find_damage(path)
            if not damage:
                for sentence in damages:
                    tell(f"{sentence}; continuing with the one before, {path.name}")
                return path
            damages.append(f"the checkpoint {path} {damage}")

        if damages:
            raise CheckpointError(
                f"{', and '.join(damages)}; there is no other checkpoint: to start again, remove them or give another "
                "folder"
            )
        return None

    def _explain(self, error: OSError) -> CheckpointError:
        return CheckpointError(
            f"no checkpoint can be written to {self._path}: {error.strerror or error}; free space there, or give a "
            "folder that rank 0 may write to"
        )

    def _list(self) -> list[tuple[int, Path]]:
        """The checkpoints with their numbers, the newest first."""
        with suppress(FileNotFoundError):  # no checkpoint was saved yet
            found = ((_NAME.fullmatch(path.name), path) for path in self._path.iterdir())
            return sorted(((int(match[1]), path) for match, path in found if match), reverse=True)
        return []


def tell_unsaved(folder: Path) -> None:
    """Tell the user that the script has saved nothing in the folder, unless an earlier one has."""
    with suppress(OSError):  # this user may not read it, nor may the script then
        if any(folder.glob("checkpoint-*")):
            return
    sentence = f"nothing was saved in {str(folder)!r} (--checkpoint): the script has no hvd.elastic.run"
    sys.stderr.write(f"hvdrun: {sentence}.\n")


class _SummedFile(BufferedIOBase):
    """Writes to a file, computes the checksum, and keeps the first error, in whose place torch raises another one.

    Args:
        file: the file.
    """

    def __init__(self, file: BinaryIO) -> None:
        super().__init__()
        self._file = file
        self.checksum = hashlib.sha256()
        self.error: OSError | None = None

    def writable(self) -> bool:
        return True

    def write(self, data: bytes | memoryview, /) -> int:  # type: ignore[override]  # any buffer
        self.checksum.update(data)
        try:
            return self._file.write(data)
        except OSError as error:
            self.error = self.error or error
            raise


def _write_whole(path: Path, write_content: Callable[[BinaryIO], None]) -> None:
    with path.open("wb") as file:
        summed = _SummedFile(file)
        try:
            write_content(summed)  # type: ignore[arg-type]  # it has what a writer needs
        except Exception as error:
            if summed.error is not None:
                raise summed.error from error
            raise
        file.write(_MARK + summed.checksum.digest())
        file.flush()
        os.fsync(file.fileno())


def _bring_to_disk(folder: Path) -> None:
    """Synchronize the names in a folder to the disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _find_damage(path: Path) -> str:
    """A description of a checkpoint's damage, to follow its name; "" if it is complete."""
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size - _FOOTER_BYTES
            if size < 0:
                return "is truncated"
            checksum = hashlib.sha256()
            for piece in _read(file, size):
                checksum.update(piece)
            if file.read() == _MARK + checksum.digest():
                return ""
            return "is damaged (its checksum does not match)"
    except OSError as error:
        return f"cannot be read ({error.strerror or error})"


def _read(file: BinaryIO, size: int) -> Iterator[bytes]:
    while size > 0 and (piece := file.read(min(size, _PIECE_BYTES))):
        size -= len(piece)
        yield piece
