"""Which messages of its agents a detached job has shown, so that another server of the job shows none of them twice.

An agent's messages are numbered, and it keeps them until they are acknowledged. They are acknowledged when they are in
the log. A server that is killed may have written some into the log that it has not acknowledged. So the numbers are
kept with the position in the log. What workers have written behind it comes again, and is removed. A reader of the log
of a job that runs stops there, and sees nothing twice.

The record is in one of two files in turn, with a checksum: a process that is killed may have written half of one.
"""

import json
import os
import zlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from hvdrun.jobs.log import is_of_worker, list_logs, name_log

_NAMES = ("shown.0", "shown.1")
_LEAST_BYTES = 4096  # of a record; the rest of it is blank


@dataclass(frozen=True, slots=True)
class LogPosition:
    """How far into the log the messages that are acknowledged reach.

    number: of the file. size: in bytes, from the beginning of that file.
    numbers: of the last messages that were shown, by the agents' identities.
    turn: counts the records; the highest is the newest.
    """

    number: int = 0
    size: int = 0
    numbers: Mapping[str, int] = field(default_factory=dict)
    turn: int = 0

    def encode(self) -> bytes:
        """The position as a line with its checksum."""
        text = json.dumps([self.turn, self.number, self.size, dict(self.numbers)]).encode()
        return b"%08x %b\n" % (zlib.crc32(text), text)

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """The position in the line of `encode`.

        Raises:
            ValueError: it is damaged.
        """
        checksum, _, text = data.partition(b"\n")[0].partition(b" ")
        if int(checksum, 16) != zlib.crc32(text):
            raise ValueError(data[:_LEAST_BYTES])
        turn, number, size, numbers = json.loads(text)
        return cls(number, size, numbers, turn)


class Shown:
    """Keeps on disk how far the agents' messages were shown.

    Args:
        folder: of the job.
        locate: the number of the log's present file, and how many bytes it has.
    """

    def __init__(self, folder: Path, locate: Callable[[], tuple[int, int]]) -> None:
        self._locate = locate
        former = read_position(folder)
        self._turn = 0 if former is None else former.turn
        mode = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC
        self._descriptors = [os.open(folder / name, mode, 0o600) for name in _NAMES]
        if former is None:
            self.note({})

    def note(self, numbers: Mapping[str, int]) -> None:
        """Note that the log has each agent's messages up to its number. For the thread that writes the log."""
        self._turn += 1
        number, size = self._locate()
        record = LogPosition(number, size, numbers, self._turn).encode()
        os.pwrite(self._descriptors[self._turn % len(_NAMES)], record.ljust(_LEAST_BYTES), 0)

    def close(self) -> None:
        """Close the files."""
        for descriptor in self._descriptors:
            os.close(descriptor)


def read_position(folder: Path) -> LogPosition | None:
    """How far the messages were shown; None where nothing was kept."""
    found = []
    for name in _NAMES:
        with suppress(OSError, ValueError, TypeError):  # it was not written, or not to its end
            found.append(LogPosition.decode((folder / name).read_bytes()))
    return max(found, key=lambda position: position.turn, default=None)


def remove_unacknowledged(folder: Path) -> None:
    """Remove from the log what workers have written behind the last acknowledged message: it comes again.

    A line without an end goes, too: the server was killed while it wrote that, and perhaps it does not say whose it is.

    Raises:
        OSError: the log cannot be written.
    """
    position = read_position(folder) or LogPosition()
    for each in list_logs(folder):
        if each < position.number:
            continue
        path = name_log(folder, each)
        with path.open("r+b") as log:
            log.seek(position.size if each == position.number else 0)
            begin = log.tell()
            kept = [line for line in log if line.endswith(b"\n") and not is_of_worker(line)]
            log.truncate(begin)  # first: who reads it sees no half of a line
            log.seek(begin)
            log.write(b"".join(kept))
