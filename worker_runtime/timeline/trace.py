"""The events of a timeline as JSON of Chrome's trace format, which Perfetto and chrome://tracing open.

Names and phases are Horovod's: each operation has a row, a "process" of the format. In it NEGOTIATE_ALLREDUCE lasts
from the first rank's request to the release, with a mark at each rank's request. ALLREDUCE lasts from the release to
the end; inside, the activity names who moved the data. Each rank has a row, too, in which its program waits for
results. Times are microseconds since the beginning of the file.

Source: "Trace Event Format", the documentation of the Chromium project.
"""

import json
from collections import OrderedDict
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

MOST_ROWS = 4096  # known at a time; an operation that comes again later gets another row of the same name
STEPS_ROW, RECOVERIES_ROW = "steps", "recoveries"  # of a rank
CHECKPOINT = "checkpoint"  # among its steps
_MICROSECONDS = 1e6
_OF_RANKS = -1  # in place of a process set: the rows of rank 0; then come those of the others


_quote = lru_cache(MOST_ROWS)(json.dumps)


class Arrivals(NamedTuple):
    """An operation was released: all its members have asked.

    process_set, name: the operation's set and full name.
    kind: "ALLREDUCE".
    released: when, in seconds of the monotonic clock.
    asked: the ranks, each with the time at which the sequencer had its request.
    """

    process_set: int
    name: str
    kind: str
    released: float
    asked: Sequence[tuple[int, float]]


class Run(NamedTuple):
    """An operation has ended on rank 0.

    released, started, ended: when it was released, when it began to communicate, and when it was done.
    activity: who moved the data: "GLOO_ALLREDUCE"; "" where there was nobody to move them to.
    dtypes, shapes: the dtypes and shapes of its tensors.
    """

    process_set: int
    name: str
    kind: str
    released: float
    started: float
    ended: float
    activity: str
    dtypes: Sequence[str]
    shapes: Sequence[Sequence[int]]


class Cycle(NamedTuple):
    """The sequencer has released operations. Horovod's cycle is a turn of its background thread."""

    at: float


class Wait(NamedTuple):
    """The program of a rank has waited for the result of an operation, or has spent time otherwise.

    name: the operation's full name, or the name of a part of the rank's time.
    began, ended: the times in seconds of rank 0's monotonic clock.
    row: "" for the row of the rank's waits; else the name of another of its rows.
    """

    rank: int
    name: str
    began: float
    ended: float
    row: str = ""


class Note(NamedTuple):
    """Something happened to the job, such as a change of its members."""

    at: float
    text: str


class Clock(NamedTuple):
    """By how much the times of a rank were shifted from now on, to be times of rank 0.

    offset_seconds: rank 0's monotonic clock minus that rank's, and the time of the fastest message so far, which is the
        error: the rank's times may be late by that.
    """

    rank: int
    offset_seconds: float


Event = Arrivals | Run | Cycle | Wait | Note | Clock


class Trace:
    """Renders events.

    Args:
        began: when the file begins, in seconds of the monotonic clock.
        began_microseconds: the same in microseconds since 1970.
        job: the job's name, which tells the files of one job from those of another.
    """

    def __init__(self, began: float, began_microseconds: int, job: str) -> None:
        self._began = began
        self._began_microseconds = began_microseconds
        self._job = job
        self._rows: OrderedDict[tuple[int, str], int] = OrderedDict()
        self._last_row = self._last_flow = 0

    def begin(self, part: int) -> list[str]:
        """The first events of a file.

        Args:
            part: 0 for the first file of the job, 1 for the next one.
        """
        self._rows.clear()  # each file can be read alone
        arguments = {"start_time_since_epoch_in_micros": self._began_microseconds, "job": self._job, "part": part}
        return [
            f'{{"name": "process_name", "ph": "M", "pid": 0, "args": {json.dumps(arguments)}}}',
            '{"name": "process_sort_index", "ph": "M", "pid": 0, "args": {"sort_index": 0}}',
        ]

    def render(self, event: Event) -> list[str]:
        """The JSON of an event: several objects of the format."""
        match event:
            case Arrivals():
                return self._render_arrivals(event)
            case Run():
                return self._render_run(event)
            case Wait():
                return self._render_wait(event)
            case Cycle(at):
                return [f'{{"name": "CYCLE_START", "ph": "i", "ts": {self._time(at)}, "pid": 0, "tid": 0, "s": "g"}}']
            case Clock(rank, seconds):
                arguments = {"rank": rank, "offset_seconds": seconds, "error": "late by the time of one message"}
                return [f'{{"name": "clock", "ph": "M", "pid": 0, "args": {json.dumps(arguments)}}}']
            case Note(at, text):
                name = json.dumps(text)
                return [f'{{"name": {name}, "ph": "i", "ts": {self._time(at)}, "pid": 0, "tid": 0, "s": "g"}}']

    def _render_arrivals(self, event: Arrivals) -> list[str]:
        events: list[str] = []
        row = self._find_row(event.process_set, event.name, events)
        in_order = sorted(event.asked, key=lambda each: each[1])
        first, last = in_order[0][1], in_order[-1][0]
        events.append(f'{{"name": "NEGOTIATE_{event.kind}", "ph": "B", "ts": {self._time(first)}, {row}}}')
        for rank, at in in_order:
            events.append(f'{{"name": "{rank}", "ph": "X", "ts": {self._time(at)}, "dur": 0, {row}}}')
        released = self._time(event.released)
        events.append(f'{{"ph": "E", "ts": {released}, {row}, "args": {{"last_rank": {last}}}}}')
        return events

    def _render_run(self, event: Run) -> list[str]:
        events: list[str] = []
        row = self._find_row(event.process_set, event.name, events)
        started, ended = self._time(event.started), self._time(event.ended)
        arguments = {
            "dtype": ", ".join(dict.fromkeys(event.dtypes)),
            "shape": ", ".join(str(list(shape)) for shape in event.shapes),
        }
        events.append(f'{{"name": "{event.kind}", "ph": "B", "ts": {self._time(event.released)}, {row}}}')
        if event.activity:
            events.append(f'{{"name": "{event.activity}", "ph": "B", "ts": {started}, {row}}}')
            events.append(f'{{"ph": "E", "ts": {ended}, {row}}}')
        events.append(f'{{"ph": "E", "ts": {ended}, {row}, "args": {json.dumps(arguments)}}}')
        return events

    def _render_wait(self, event: Wait) -> list[str]:
        is_recovery = event.row == RECOVERIES_ROW
        if event.ended <= self._began and not is_recovery:
            return []  # a rank has sent it too late for the timeline before
        events: list[str] = []
        row = self._find_row(_OF_RANKS - event.rank, event.row, events)
        began, ended = self._time(event.began), self._time(event.ended)
        name = _quote(event.name)
        whole = ""
        if is_recovery and event.began < self._began:  # rank 0 was lost, and another one continues
            whole = f', "args": {{"seconds": {event.ended - event.began:.6f}}}'
        events.append(f'{{"name": {name}, "ph": "X", "ts": {began}, "dur": {max(1, ended - began)}, {row}{whole}}}')
        if is_recovery:
            self._last_flow += 1
            flow = f'"name": {name}, "cat": {name}, "id": {self._last_flow}'
            steps = self._find_row(_OF_RANKS - event.rank, STEPS_ROW, events)
            events.append(f'{{{flow}, "ph": "s", "ts": {began}, {row}}}')
            events.append(f'{{{flow}, "ph": "f", "bp": "e", "ts": {ended}, {steps}}}')
        elif event.row == STEPS_ROW and event.name == CHECKPOINT and not event.rank:
            events += self.render(Note(event.ended, event.name))
        return events

    def _time(self, at: float) -> int:
        """Microseconds since the file begins; what began before begins with it."""
        return max(0, round((at - self._began) * _MICROSECONDS))

    def _find_row(self, process_set: int, name: str, events: list[str]) -> str:
        """The fields that name the row of an operation; its first use adds the events that describe it."""
        key = process_set, name
        row = self._rows.get(key)
        if row is None:
            self._last_row += 1
            row = self._rows[key] = self._last_row
            if len(self._rows) > MOST_ROWS:
                self._rows.popitem(last=False)
            shown = name
            if process_set <= _OF_RANKS:
                shown = f"rank {_OF_RANKS - process_set}"
                if name:
                    shown += f": {name}"
            elif process_set:
                shown = f"{name} (process set {process_set})"
            events += [
                f'{{"name": "process_name", "ph": "M", "pid": {row}, "args": {{"name": {json.dumps(shown)}}}}}',
                f'{{"name": "process_sort_index", "ph": "M", "pid": {row}, "args": {{"sort_index": {row}}}}}',
            ]
        else:
            self._rows.move_to_end(key)
        return f'"pid": {row}, "tid": 0'
