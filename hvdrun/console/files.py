"""Writes the workers' output into files as well, two for each rank, as Horovod's --output-filename does."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from functools import partial
from pathlib import Path

from hvdrun.console.file_index import INDEX_NAME, FileIndex, IndexFile
from hvdrun.console.folding import Source
from hvdrun.console.marks import STREAM_NAMES, Marks, OutputMarker, read_local_clock
from hvdrun.console.partial_lines import IN_A_FILE_SECONDS, PartialLines
from hvdrun.console.writer import Writer
from hvdrun.errors import LaunchError
from hvdrun.startup.paths import open_appended
from rendezvous.core.messages import Launch
from rendezvous.core.model import Worker
from rendezvous.wire.orders import OutputStream

_Key = tuple[int, int, OutputStream]  # a rank, the number of its file, and the stream


class OutputFiles:
    """The folders `rank.<r>`, each with `stdout` and `stderr`; the rank has leading zeros, so that names sort.

    A line has the same mark as on the console. It goes to the rank that its worker has when the line is complete. Each
    worker has files of its own: the first one at a rank `stdout` and `stderr`, the next ones `stdout.1`, `stdout.2`.
    `index.json` tells which worker has written which. A job overwrites the files that it writes.

    Args:
        folder: what holds the folders.
        size: how many ranks there may be; the files of a higher rank are created when it writes.
        marks: what stands before each line.
        job: the name of the job.
        index: that of a former server of the job, whose files go on; a new one unless given.
        clock: the local time.
    """

    def __init__(
        self,
        folder: Path,
        size: int,
        marks: Marks,
        job: str = "",
        *,
        index: FileIndex | None = None,
        clock: Callable[[], datetime] = read_local_clock,
    ) -> None:
        self._folder = folder
        self._digits = len(str(max(0, size - 1)))
        self._marker = OutputMarker(marks)
        self._writer = Writer()
        self._clock = clock
        self.index = FileIndex(job) if index is None else index
        self._index_file = IndexFile(folder / INDEX_NAME, self._writer, self._render_index, self._note_written)
        self._descriptors: dict[_Key, int] = {}
        self._paths: dict[int, Path] = {}  # by descriptor
        self._round = self.index.newest_round
        self._partial_lines = PartialLines(self._flush)
        self._failed: dict[Path, OSError] = {}

    def create(self, ranks: int) -> None:
        """Create the empty files of the first ranks, and remove the index of an earlier job.

        Raises:
            LaunchError: that cannot be done.
        """
        for path in (self._name(rank, 0, stream) for rank in range(ranks) for stream in OutputStream):
            with _refuse(path):
                self._create(path)
        with _refuse(self._index_file.path):
            self._index_file.path.unlink(missing_ok=True)

    def note_launch(self, launch: Launch) -> None:
        """Give files to a worker that is started."""
        if launch.round is not None:
            self._round = max(self._round, launch.round.number)
        self._begin(launch.worker, launch.assignment.rank)

    def note_end(self, worker: Worker, returncode: int | None) -> None:
        """Note that a worker has ended, with this code where it is known. Its last output may come later."""
        if self.index.end(worker, returncode, self._clock()):
            self._index_file.note_change()
            self._release(worker)

    def note_ranks(self, members: Sequence[Worker]) -> None:
        """Note the ranks of a new generation: its members in their order."""
        for rank, worker in enumerate(members):
            self._begin(worker, rank)

    def note_lost_host(self, host: str) -> None:
        """Note that the workers of a lost host have ended, as far as is known."""
        for worker in self.index.find_running(host):
            self.note_end(worker, None)

    async def write(self, worker: Worker, rank: int, stream: OutputStream, data: bytes) -> None:
        """Take a worker's bytes, and write the lines that are now complete; waits while the disk is behind."""
        self._begin(worker, rank)
        lines = self._marker.feed(worker, rank, stream, data)
        self._put(worker, stream, lines)
        has_begun = self._marker.has_incomplete_line(worker, stream)
        self._partial_lines.note(Source(worker, stream), IN_A_FILE_SECONDS, has_ended=bool(lines), has_begun=has_begun)
        await self._writer.drain()

    def finish(self, worker: Worker) -> None:
        """End a worker's output: write its last line, if it was not complete."""
        for stream in OutputStream:
            self._partial_lines.call_off(Source(worker, stream))
            self._put(worker, stream, self._marker.finish(worker, stream))

    def forget(self, worker: Worker) -> None:
        """Drop a worker that another one has replaced."""
        self._marker.forget(worker)
        self._release(worker)

    def call_when_failing(
        self, callback: Callable[[Path, OSError], None], fail: Callable[[BaseException], None]
    ) -> None:
        """Call back, in the running event loop, for a file that cannot be written, and for an unexpected error."""
        self._writer.call_when_failing(
            lambda descriptor, error: callback(self._paths.get(descriptor, self._index_file.path), error), fail
        )

    def list_lost(self) -> Iterator[tuple[Path, OSError]]:
        """The files of which a part is lost, and why."""
        yield from self._failed.items()
        for descriptor in self._descriptors.values():
            if (error := self._writer.find_loss(descriptor)) is not None:
                yield self._paths[descriptor], error

    def end(self, limit_seconds: float | None) -> bool:
        """Write what is left, for at most `limit_seconds` (None: no limit); return whether nothing was dropped."""
        self._index_file.close()
        is_complete = self._writer.end(limit_seconds)
        self._index_file.discard()
        return is_complete

    async def close(self, limit_seconds: float | None) -> bool:
        """As `end`, without stopping the event loop."""
        self._partial_lines.call_off_all()
        self._index_file.close()
        is_complete = await self._writer.close(limit_seconds)
        self._index_file.discard()
        return is_complete

    def _begin(self, worker: Worker, rank: int) -> None:
        """Give a worker its files at a rank, unless it writes there already."""
        former = self.index.find(worker)
        if former is not None and former.rank == rank:
            return
        self._release(worker)
        is_new = self.index.begin(rank, worker, self._round, self._clock())
        self._index_file.note_change()
        entry = self.index.find(worker)
        if not is_new or entry is None:
            return
        for stream in OutputStream:
            with suppress(OSError):  # it is found again, and noted, when the worker writes
                self._create(self._name(rank, entry.number, stream))

    def _release(self, worker: Worker) -> None:
        """Close a worker's files; they are opened again if it writes."""
        entry = self.index.find(worker)
        if entry is None:
            return
        for stream in OutputStream:
            descriptor = self._descriptors.pop((entry.rank, entry.number, stream), None)
            if descriptor is not None:
                self._writer.release(descriptor, partial(self._note_written, self._paths[descriptor]))

    def _note_written(self, path: Path, error: OSError | None) -> None:
        if error is not None:
            self._failed[path] = error
        elif path == self._index_file.path:
            self._failed.pop(path, None)

    def _render_index(self) -> bytes:
        return self.index.render(
            lambda entry, stream: str(self._name(entry.rank, entry.number, stream).relative_to(self._folder))
        )

    def _name(self, rank: int, number: int, stream: OutputStream) -> Path:
        of_worker = f".{number}" if number else ""
        return self._folder / f"rank.{rank:0{self._digits}}" / f"{STREAM_NAMES[stream]}{of_worker}"

    def _flush(self, source: Source) -> None:
        self._put(source.worker, source.stream, self._marker.flush(*source))

    def _put(self, worker: Worker, stream: OutputStream, data: bytes) -> None:
        entry = self.index.find(worker)
        if data and entry is not None and (descriptor := self._open((entry.rank, entry.number, stream))) is not None:
            self._writer.put(descriptor, data)

    def _open(self, key: _Key) -> int | None:
        """The descriptor of a file that was created. None where it cannot be opened."""
        path = self._name(*key)
        if key not in self._descriptors and path not in self._failed:
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                descriptor = self._open_file(path)
            except OSError as error:
                self._failed[path] = error
            else:
                self._descriptors[key], self._paths[descriptor] = descriptor, path
        return self._descriptors.get(key)

    def _create(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        os.close(self._open_file(path, os.O_TRUNC))

    def _open_file(self, path: Path, flags: int = 0) -> int:
        return open_appended(path, flags, within=self._folder)


@contextmanager
def _refuse(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = f"{error.strerror or error}; name another folder."
        raise LaunchError(f"{str(path)!r} of --output-filename cannot be created: {reason}") from error
