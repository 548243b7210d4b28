"""Writes the workers' output into files as well, two for each rank, as Horovod's --output-filename does."""

import errno
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

from hvdrun.console.marks import STREAM_NAMES, Marks, OutputMarker, Source
from hvdrun.console.partial_lines import IN_A_FILE_SECONDS, PartialLines
from hvdrun.console.writer import Writer
from hvdrun.errors import LaunchError
from rendezvous.core.messages import Launch
from rendezvous.core.model import Worker
from rendezvous.wire.orders import OutputStream


class OutputFiles:
    """The folders `rank.<r>`, each with `stdout` and `stderr`; the rank has leading zeros, so that names sort.

    A line has the same mark as on the console. It goes to the rank that its worker has when the line is complete: in an
    elastic job the file of a rank has the output of each worker that had this rank. A job overwrites the files. Where
    all workers are started again, round k has files of its own, `stdout.k` and `stderr.k`.

    Args:
        folder: what holds the folders.
        size: how many ranks there may be; the files of a higher rank are created when it writes.
        marks: what stands before each line.
        writer: a new one unless given.
    """

    def __init__(self, folder: Path, size: int, marks: Marks, writer: Writer | None = None) -> None:
        self._folder = folder
        self._digits = len(str(max(0, size - 1)))
        self._marker = OutputMarker(marks)
        self._writer = Writer() if writer is None else writer
        self._descriptors: dict[tuple[int, int, OutputStream], int] = {}  # by round, rank and stream
        self._round = 0
        self._rounds: dict[Worker, int] = {}
        self._ranks: dict[Worker, int] = {}
        self._partial_lines = PartialLines(self._flush)
        self._failed: dict[Path, OSError] = {}

    def create(self, ranks: int) -> None:
        """Create the empty files of the first ranks.

        Raises:
            LaunchError: they cannot be created.
        """
        for rank in range(ranks):
            for stream in OutputStream:
                path = self._name(0, rank, stream)
                try:
                    path.parent.mkdir(parents=True, exist_ok=True)
                    os.close(_open_output(path))
                except OSError as error:
                    reason = f"{error.strerror or error}: name another folder."
                    raise LaunchError(f"{str(path)!r} of --output-filename cannot be created: {reason}") from error

    def note_launch(self, launch: Launch) -> None:
        """A worker is started. The first one of a round closes the files of the last round but one."""
        if launch.round is not None and launch.round.number > self._round:
            self._round = launch.round.number
            for key in [key for key in self._descriptors if key[0] < self._round - 1]:
                self._writer.release(self._descriptors.pop(key), partial(self._note_released, self._name(*key)))
        self._rounds[launch.worker] = self._round

    def _note_released(self, path: Path, error: OSError | None) -> None:
        if error is not None:
            self._failed[path] = error

    async def write(self, worker: Worker, rank: int, stream: OutputStream, data: bytes) -> None:
        """Take a worker's bytes, and write the lines that are now complete; waits while the disk is behind."""
        self._ranks[worker] = rank
        lines = self._marker.feed(worker, rank, stream, data)
        self._put(worker, rank, stream, lines)
        has_begun = self._marker.waits(worker, stream)
        self._partial_lines.note(Source(worker, stream), IN_A_FILE_SECONDS, has_ended=bool(lines), has_begun=has_begun)
        await self._writer.drain()

    def finish(self, worker: Worker) -> None:
        """A worker has ended: write its last line, if it was not complete."""
        for stream in OutputStream:
            self._partial_lines.call_off(Source(worker, stream))
            self._put(worker, self._ranks.get(worker, 0), stream, self._marker.finish(worker, stream))

    def forget(self, worker: Worker) -> None:
        """Drop a worker that another one has replaced."""
        self._marker.forget(worker)
        self._ranks.pop(worker, None)
        self._rounds.pop(worker, None)

    def call_when_failing(
        self, callback: Callable[[Path, OSError], None], fail: Callable[[BaseException], None]
    ) -> None:
        """Call back, in the running event loop, for a file that cannot be written, and for an unexpected error."""
        self._writer.call_when_failing(lambda descriptor, error: callback(self._find(descriptor), error), fail)

    def list_lost(self) -> Iterator[tuple[Path, OSError]]:
        """The files of which a part is lost, and why."""
        yield from self._failed.items()
        for key, descriptor in self._descriptors.items():
            if (error := self._writer.lost_by(descriptor)) is not None:
                yield self._name(*key), error

    def end(self, limit_seconds: float | None) -> bool:
        """Write what is left, for at most `limit_seconds` (None: as long as it takes); whether nothing was dropped."""
        return self._writer.end(limit_seconds)

    async def close(self, limit_seconds: float | None) -> bool:
        """As `end`, without stopping the event loop."""
        self._partial_lines.call_off_all()
        return await self._writer.close(limit_seconds)

    def _name(self, number: int, rank: int, stream: OutputStream) -> Path:
        of_round = f".{number}" if number else ""
        return self._folder / f"rank.{rank:0{self._digits}}" / f"{STREAM_NAMES[stream]}{of_round}"

    def _find(self, descriptor: int) -> Path:
        return next(self._name(*key) for key, each in self._descriptors.items() if each == descriptor)

    def _flush(self, source: Source) -> None:
        self._put(source.worker, self._ranks.get(source.worker, 0), source.stream, self._marker.flush(*source))

    def _put(self, worker: Worker, rank: int, stream: OutputStream, data: bytes) -> None:
        if data and (descriptor := self._open((self._rounds.get(worker, self._round), rank, stream))) is not None:
            self._writer.put(descriptor, data)

    def _open(self, key: tuple[int, int, OutputStream]) -> int | None:
        """The descriptor of a file, which stays open for two rounds. None where it cannot be opened."""
        path = self._name(*key)
        if key not in self._descriptors and path not in self._failed:
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                self._descriptors[key] = _open_output(path)
            except OSError as error:
                self._failed[path] = error
        return self._descriptors.get(key)


def _open_output(path: Path) -> int:
    """The descriptor of an empty file of a rank.

    Raises:
        OSError: it cannot be opened; or a link to it is another user's, who would choose which file is emptied.
    """
    for place in (path.parent.parent, path.parent, path):
        with suppress(FileNotFoundError):  # it is created now
            known = place.lstat()
            if stat.S_ISLNK(known.st_mode) and known.st_uid not in (0, os.geteuid()):
                raise OSError(errno.ELOOP, f"{str(place)!r} is a link of another user")
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_NONBLOCK
    descriptor = os.open(path, flags, 0o666)  # a FIFO without a reader is an error, and does not block
    os.set_blocking(descriptor, True)
    return descriptor
