"""Which worker has written which files of --output-filename: what `index.json` says."""

import asyncio
import json
import os
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from itertools import count
from pathlib import Path

from hvdrun.console.writer import Writer
from rendezvous.core.model import Worker
from rendezvous.core.outcome import name_signal
from rendezvous.wire.orders import OutputStream

INDEX_NAME = "index.json"
_PAUSE_SECONDS = 0.2  # the start of many workers is one change


@dataclass(slots=True)
class Entry:
    """The files of one worker at one rank.

    number: how many workers had files at this rank before.
    round: the round with which the worker was started.
    begin, end: when it got the rank first and left it last; end: None while it has the rank.
    returncode: as waitpid returns it; None while it runs, and where it left the rank before its end.
    """

    rank: int
    number: int
    worker: Worker
    round: int
    begin: datetime
    end: datetime | None = None
    returncode: int | None = None


class FileIndex:
    """An entry for each worker at each rank that it has had, in the order in which they began.

    Args:
        job: the name of the job.
    """

    def __init__(self, job: str) -> None:
        self._job = job
        self._entries: dict[tuple[int, Worker], Entry] = {}
        self._counts: Counter[int] = Counter()
        self._newest: dict[Worker, Entry] = {}

    def begin(self, rank: int, worker: Worker, round_number: int, now: datetime) -> bool:
        """Note that a worker writes at this rank from now on; return whether its entry is new."""
        former = self._newest.get(worker)
        known = self._entries.get((rank, worker))
        entry = known or Entry(rank, self._counts[rank], worker, round_number, now)
        if former is not None:
            # A worker that has ended may be heard later, and then at the rank that it had got before.
            entry.round, entry.end, entry.returncode = former.round, former.end, former.returncode
            former.end, former.returncode = now, None
        self._newest[worker] = entry
        if known is not None:
            return False
        self._counts[rank] += 1
        self._entries[rank, worker] = entry
        return True

    def end(self, worker: Worker, returncode: int | None, now: datetime) -> bool:
        """Note that a worker has ended, with this code where it is known; return whether that was unknown."""
        entry = self._newest.get(worker)
        if entry is None or entry.end is not None:
            return False
        entry.end, entry.returncode = now, returncode
        return True

    def find(self, worker: Worker) -> Entry | None:
        """The newest entry of a worker; None for one that was never started."""
        return self._newest.get(worker)

    @property
    def newest_round(self) -> int:
        """The round with which the newest worker was started; 0 before the first one."""
        return max((entry.round for entry in self._entries.values()), default=0)

    def find_running(self, host: str) -> Iterator[Worker]:
        """The workers of a host that are not known to have ended."""
        for worker, entry in tuple(self._newest.items()):
            if worker.slot.host == host and entry.end is None:
                yield worker

    def render(self, name: Callable[[Entry, OutputStream], str]) -> bytes:
        """The bytes of index.json, a line for each entry; `name` tells the file of an entry and a stream."""
        rows = ",\n".join(json.dumps(_describe(entry, name)) for entry in self._entries.values())
        return f'{{"job": {json.dumps(self._job)}, "files": [\n{rows}\n]}}\n'.encode()


def _describe(entry: Entry, name: Callable[[Entry, OutputStream], str]) -> dict[str, object]:
    exit_code, signal = entry.returncode, None
    if entry.returncode is not None and entry.returncode < 0:
        exit_code, signal = None, name_signal(-entry.returncode)
    return {
        "rank": entry.rank,
        "stdout": name(entry, OutputStream.STDOUT),
        "stderr": name(entry, OutputStream.STDERR),
        "host": entry.worker.slot.host,
        "slot": entry.worker.slot.index,
        "incarnation": entry.worker.incarnation,
        "round": entry.round,
        "begin": entry.begin.isoformat(timespec="milliseconds"),
        "end": None if entry.end is None else entry.end.isoformat(timespec="milliseconds"),
        "exit_code": exit_code,
        "signal": signal,
    }


class IndexFile:
    """Replaces the file as a whole, a moment after each change.

    Args:
        path: the path of the file.
        writer: writes it.
        render: returns its bytes.
        note_written: is called with the path and the error, None where the file was replaced; perhaps in a thread.
    """

    def __init__(
        self,
        path: Path,
        writer: Writer,
        render: Callable[[], bytes],
        note_written: Callable[[Path, OSError | None], None],
    ) -> None:
        self.path = path
        self._writer = writer
        self._render = render
        self._note_written = note_written
        self._timer: asyncio.TimerHandle | None = None
        self._has_changed = False
        self._numbers = count()
        self._pending: Path | None = None  # the new file, until it takes the place of the old one

    def note_change(self) -> None:
        """Note that the content of the file has changed."""
        self._has_changed = True
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_PAUSE_SECONDS, self._run)

    def close(self) -> None:
        """Write the last change, if there is one; none follows."""
        if self._timer is not None:
            self._timer.cancel()
        if self._has_changed:
            self._write()

    def discard(self) -> None:
        """Remove the file that the writer, which has ended, has not completed."""
        if self._pending is not None:
            self._pending.unlink(missing_ok=True)

    def _run(self) -> None:
        self._timer = None
        if self._pending is None:
            self._write()
        else:
            self.note_change()

    def _write(self) -> None:
        self._has_changed = False
        new = self.path.with_name(f"{self.path.name}.{os.getpid()}.{next(self._numbers)}")
        try:
            new.unlink(missing_ok=True)  # left by a killed launcher of the same pid, as each in a container has
            descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        except OSError as error:
            self._note_written(self.path, error)
            return
        self._pending = new
        is_queued = self._writer.put(descriptor, self._render())
        self._writer.release(descriptor, lambda error: self._replace(new, error, is_complete=is_queued))

    def _replace(self, new: Path, error: OSError | None, *, is_complete: bool) -> None:
        try:
            if error is None and is_complete:
                new.replace(self.path)
            else:
                new.unlink(missing_ok=True)
        except OSError as failure:
            error = failure
        self._pending = None
        self._note_written(self.path, error)
