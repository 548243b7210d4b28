"""Reads the log of a detached job, while it grows and while its files change."""

import math
import os
import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from hvdrun.jobs.log import Piece, is_of_worker, list_logs, name_log, read_line
from hvdrun.jobs.shown import LogPosition, read_position
from rendezvous.wire.orders import OutputStream

_CHUNK_BYTES = 256 * 1024
_MARK = re.compile(rb"(?:\d{4}-\d\d-\d\dT[\d:.]+ )?\[(?P<ranks>\d+(?:-\d+)?(?:,\d+(?:-\d+)?)*)(?:@[^\]]*)?\] ")


class LogReader:
    """Gives each piece once, in order, over the files of the log.

    Args:
        folder: of the job.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._number = 0
        self._file: BinaryIO | None = None
        self._offset = 0  # where the next line begins
        self._rest = b""  # its beginning, where it is not complete
        self._is_held = False  # the next line may be written again
        self.unended: OutputStream | None = None  # where a line is shown whose end has not come

    def skip_to(self, last_bytes: int) -> bool:
        """Begin with the first whole line in the last so many bytes of the log; whether something was left out."""
        numbers = list_logs(self._folder)
        while numbers and last_bytes > 0:
            self._open(numbers.pop())
            if self._file is None:
                continue
            size = self._file.seek(0, os.SEEK_END)
            if size > last_bytes:
                self._file.seek(size - last_bytes)
                self._file.readline()
                self._offset = self._file.tell()
                return True
            last_bytes -= size
        return bool(numbers)

    def skip_all(self) -> None:
        """Begin with what comes from now on."""
        numbers = list_logs(self._folder)
        if numbers:
            self._open(numbers[-1])
        if self._file is not None:
            self._offset = self._file.seek(0, os.SEEK_END)

    def read(self, *, is_over: bool = True) -> Iterator[Piece]:
        """What has come since the last call.

        Args:
            is_over: no server of the job runs any more. Else the reader stops at the first line of a worker that
                another server might write again.
        """
        while True:
            position = None if is_over else read_position(self._folder)
            if self._file is not None:
                yield from self._read_file(self._file, position)
                if self._is_held:
                    return
            following = next((number for number in list_logs(self._folder) if number > self._number), None)
            if following is None:
                return
            if self._file is not None:
                yield from self._read_file(self._file, position)  # what was written before the next file began
                if self._is_held:
                    return
                if self._rest:
                    yield Piece(OutputStream.STDERR, self._rest)
            dropped = following - self._number - 1
            if dropped > 0:
                text = f"{dropped} files of the log were dropped before they were read"
                if dropped == 1:
                    text = "1 file of the log was dropped before it was read"
                yield Piece(OutputStream.STDERR, f"hvdrun: {text}.\n".encode())
            self._open(following)

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _open(self, number: int) -> None:
        self.close()
        self._offset, self._rest, self._is_held = 0, b"", False
        with suppress(FileNotFoundError):  # it was dropped, and counts as such with the next one
            self._file = name_log(self._folder, number).open("rb")
            self._number = number

    def _read_file(self, file: BinaryIO, position: LogPosition | None) -> Iterator[Piece]:
        """The new lines, up to one that a server might write again."""
        end = math.inf  # of what no server writes again
        if position is not None and self._number >= position.number:
            end = position.size if self._number == position.number else 0
        file.seek(self._offset)
        self._rest, self._is_held = b"", False
        while chunk := file.read(_CHUNK_BYTES):
            *lines, self._rest = (self._rest + chunk).split(b"\n")
            for line in lines:
                if self._offset >= end and is_of_worker(line):
                    self._is_held = True
                    return
                self._offset += len(line) + 1
                yield read_line(line + b"\n")


class RankFilter:
    """The lines of one rank, told by the marks before them.

    Args:
        rank: whose lines pass.
    """

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._begun = b""
        self._stream = OutputStream.STDOUT  # of what has begun

    def take(self, piece: Piece) -> Iterator[Piece]:
        """The line that the piece completes, if it is one of the rank: in the stream where it has begun."""
        if not self._begun:
            self._stream = piece.stream
        self._begun += piece.data
        if piece.data.endswith(b"\n"):
            line, self._begun = self._begun, b""
            if self._rank in read_ranks(line):
                yield Piece(self._stream, line)


def read_ranks(line: bytes) -> set[int]:
    """The ranks that a line's mark names, as `[3]`, `[3@server1]` or `[0-6,9]`."""
    match = _MARK.match(line)
    if match is None:
        return set()
    ranks: set[int] = set()
    for run in match["ranks"].split(b","):
        first, _, last = run.partition(b"-")
        ranks.update(range(int(first), int(last or first) + 1))
    return ranks


def show(piece: Piece) -> None:
    """Write a piece to the stream that it came from.

    Raises:
        OSError: it cannot be written.
    """
    stream = sys.stdout if piece.stream is OutputStream.STDOUT else sys.stderr
    if stream is not None:
        stream.buffer.write(piece.data)
        stream.buffer.flush()


def end_line(stream: OutputStream | None) -> None:
    """End a line that is shown in part, before a sentence on standard error.

    Args:
        stream: where it is shown; None if there is none.
    """
    is_before_it = stream is OutputStream.STDERR
    if stream is OutputStream.STDOUT and sys.stdout is not None:
        is_before_it = sys.stdout.isatty()
    if is_before_it:
        show(Piece(OutputStream.STDERR, b"\n"))
