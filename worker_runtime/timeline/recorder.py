"""Takes the events of a job on rank 0, and writes them into the timeline's file, in a thread of its own."""

import logging
import time
from collections.abc import Sequence
from pathlib import Path

from worker_runtime.timeline.event_queue import EventQueue
from worker_runtime.timeline.file import TimelineFile
from worker_runtime.timeline.trace import Arrivals, Clock, Cycle, Event, Note, Run, Trace, Wait

_LOG = logging.getLogger("hvd")


class Recorder:
    """Writes one timeline; its thread ends with `close`.

    Args:
        path: the file.
        job: the job's name.
        mark_cycles: mark when the sequencer has released operations.

    Raises:
        OSError: the file cannot be written.
    """

    def __init__(self, path: Path, job: str, *, mark_cycles: bool = False) -> None:
        self._path = path
        self._trace = Trace(time.monotonic(), time.time_ns() // 1000, job)
        self._file = TimelineFile(path, self._trace, job)
        self._mark_cycles = mark_cycles
        self._released: dict[tuple[int, str], float] = {}
        self._queue: EventQueue[Event] = EventQueue(self._write, self._warn)

    def note_arrivals(self, event: Arrivals) -> None:
        """Note a release, with the times at which the ranks had asked."""
        if any(rank == 0 for rank, _ in event.asked):  # else its end is not noted here
            self._released[event.process_set, event.name] = event.released
        if self._mark_cycles:
            self._queue.put(Cycle(event.released))
        self._queue.put(event)

    def find_release(self, process_set: int, name: str) -> float | None:
        """When the running operation of this name was released; None if its end was noted, or it is not known."""
        return self._released.get((process_set, name))

    def note_run(self, event: Run) -> None:
        """Note that an operation has ended; only the first time counts."""
        if self._released.pop((event.process_set, event.name), None) is not None:
            self._queue.put(event)

    def note_wait(self, event: Wait) -> None:
        """Note that the program of a rank has waited."""
        self._queue.put(event)

    def note_clock(self, event: Clock) -> None:
        """Note how the clock of a rank differs."""
        self._queue.put(event)

    def note(self, text: str) -> None:
        """Note that something has happened to the job."""
        self._queue.put(Note(time.monotonic(), text))

    def close(self) -> None:
        """Write what has come, and end."""
        self._queue.close()
        self._file.close()

    def _write(self, events: Sequence[Event], lost: int) -> None:
        rendered = [text for event in events for text in self._trace.render(event)]
        if lost:
            text = f"{lost} events are missing: they came faster than the disk"
            rendered += self._trace.render(Note(time.monotonic(), text))
        self._file.write(rendered)

    def _warn(self, error: OSError) -> None:
        reason = f"it cannot be written ({error.strerror}). The job continues."
        _LOG.warning("the timeline %s ends here: %s", self._path, reason)
