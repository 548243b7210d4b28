"""Takes the events of rank 0, and writes them in a thread of its own.

A note costs an append to a queue. The thread writes what has come every 50 ms, and sleeps while nothing comes.
"""

import logging
import os
import threading
import time
from collections import deque
from pathlib import Path

from worker_runtime.timeline.file import TimelineFile
from worker_runtime.timeline.trace import Arrivals, Cycle, Event, Note, Run, Trace

WRITE_SECONDS = 0.05
MOST_WAITING = 200_000  # events; a disk that is slower than the job loses the rest, which is noted in the file
_END_SECONDS = 10.0  # for the last events, where the disk hangs
_LOG = logging.getLogger("hvd")


class Recorder:
    """Writes one timeline; its thread ends with `close`.

    Args:
        path: the file.
        job: the job's name.
        mark_cycles: mark when the sequencer has sent releases.

    Raises:
        OSError: the file cannot be written.
    """

    def __init__(self, path: Path, job: str, *, mark_cycles: bool = False) -> None:
        self._path = path
        self._trace = Trace(time.monotonic(), time.time_ns() // 1000, job)
        self._file = TimelineFile(path, self._trace, job)
        self._mark_cycles = mark_cycles
        self._queue: deque[Event] = deque()
        self._lost = 0
        self._owner = os.getpid()
        self._released: dict[tuple[int, str], float] = {}
        self._has_come = threading.Event()
        self._is_closing = threading.Event()
        self._thread = threading.Thread(target=self._write_on, name="hvd-timeline", daemon=True)
        self._thread.start()

    def note_arrivals(self, event: Arrivals) -> None:
        """Note a release, with the times at which the ranks had asked."""
        self._released[event.process_set, event.name] = event.released
        if self._mark_cycles:
            self._put(Cycle(event.released))
        self._put(event)

    def find_release(self, process_set: int, name: str) -> float | None:
        """When the running operation of this name was released; None if its end was noted, or it is not known."""
        return self._released.get((process_set, name))

    def note_run(self, event: Run) -> None:
        """Note that an operation has ended; only the first time counts."""
        if self._released.pop((event.process_set, event.name), None) is not None:
            self._put(event)

    def note(self, text: str) -> None:
        """Note that something has happened to the job."""
        self._put(Note(time.monotonic(), text))

    def close(self) -> None:
        """Write what has come, and end."""
        if os.getpid() != self._owner:
            return
        self._is_closing.set()
        self._has_come.set()
        self._thread.join(_END_SECONDS)

    def _put(self, event: Event) -> None:
        if len(self._queue) >= MOST_WAITING:
            self._lost += 1
            return
        self._queue.append(event)
        if not self._has_come.is_set():
            self._has_come.set()

    def _write_on(self) -> None:
        try:
            while not self._is_closing.is_set():
                self._has_come.wait()
                self._is_closing.wait(WRITE_SECONDS)
                self._has_come.clear()
                self._write()
            self._write()
        except OSError as error:
            _LOG.warning(
                "the timeline %s ends here: it cannot be written (%s). The job continues.", self._path, error.strerror
            )
            self._queue = deque(maxlen=0)
        finally:
            self._file.close()

    def _write(self) -> None:
        lost, self._lost = self._lost, 0
        if lost:
            self._queue.append(Note(time.monotonic(), f"{lost} events are missing: they came faster than the disk"))
        queue = self._queue
        rendered: list[str] = []
        for _ in range(len(queue)):
            rendered += self._trace.render(queue.popleft())
        if rendered:
            self._file.write(rendered)
