"""Which messages of its agents a detached job has shown, so that another server of the job shows none of them twice.

An agent's messages are numbered, and it keeps them until they are acknowledged. They are acknowledged when they are in
the log. A server that is killed may have written some into the log that it has not acknowledged. So the numbers are
kept with the place in the log: what workers have written behind it comes again, and is removed. Who reads the log of a
job that runs stops there, and so sees nothing twice.

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
class Place:
    """How far the log has what the agents' messages say, and nothing of later ones.

    number: of the file. size: how many of its bytes.
    numbers: of the last messages that were shown, by the agents' identities.
    turn: counts the records.
    """

    number: int = 0
    size: int = 0
    numbers: Mapping[str, int] = field(default_factory=dict)
    turn: int = 0

    def encode(self) -> bytes:
        """As a line that is checked when it is read."""
        text = json.dumps([self.turn, self.number, self.size, dict(self.numbers)]).encode()
        return b"%08x %b\n" % (zlib.crc32(text), text)

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """The inverse.

        Raises:
            ValueError: it is damaged.
        """
        checksum, _, text = data.partition(b"\n")[0].partition(b" ")
        if int(checksum, 16) != zlib.crc32(text):
            raise ValueError(data[:_LEAST_BYTES])
        turn, number, size, numbers = json.loads(text)
        return cls(number, size, numbers, turn)


class Shown:
    """Keeps how far the agents' messages were shown.

    Args:
        folder: of the job.
        locate: the log's present file, and how long it is.
    """

    def __init__(self, folder: Path, locate: Callable[[], tuple[int, int]]) -> None:
        self._locate = locate
        former = read_place(folder)
        self._turn = 0 if former is None else former.turn
        mode = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC
        self._descriptors = [os.open(folder / name, mode, 0o600) for name in _NAMES]
        if former is None:
            self.note({})

    def note(self, numbers: Mapping[str, int]) -> None:
        """The log has the messages of each agent up to its number. For the thread that writes the log."""
        self._turn += 1
        number, size = self._locate()
        record = Place(number, size, numbers, self._turn).encode()
        os.pwrite(self._descriptors[self._turn % len(_NAMES)], record.ljust(_LEAST_BYTES), 0)

    def close(self) -> None:
        """Close the files."""
        for descriptor in self._descriptors:
            os.close(descriptor)


def read_place(folder: Path) -> Place | None:
    """How far the messages were shown; None where nothing was kept."""
    found = []
    for name in _NAMES:
        with suppress(OSError, ValueError, TypeError):  # it was not written, or not to its end
            found.append(Place.decode((folder / name).read_bytes()))
    return max(found, key=lambda place: place.turn, default=None)


def remove_unacknowledged(folder: Path) -> None:
    """Remove from the log what workers have written behind the last acknowledged message: it comes again.

    A line without an end goes, too: the server was killed while it wrote that, and perhaps it does not say whose it is.

    Raises:
        OSError: the log cannot be written.
    """
    place = read_place(folder) or Place()
    for each in list_logs(folder):
        if each < place.number:
            continue
        path = name_log(folder, each)
        with path.open("r+b") as log:
            log.seek(place.size if each == place.number else 0)
            begin = log.tell()
            kept = [line for line in log if line.endswith(b"\n") and not is_of_worker(line)]
            log.truncate(begin)  # first: who reads it sees no half of a line
            log.seek(begin)
            log.write(b"".join(kept))
