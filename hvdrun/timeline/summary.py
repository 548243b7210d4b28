"""What a timeline says: which collectives were slow, and for which ranks the others waited; pure.

The others wait for the last rank of a collective: from the request of the last but one to its own. A rank that waits
for a result waits for others until the release, and then for the communication. What a program does not wait for is
hidden behind its own work.
"""

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from statistics import quantiles
from typing import Any

_MOST_KEPT = 10_000  # durations of one collective, for its percentiles
_MICROSECONDS = 1e6
_MOST_RELEASES = 1024  # of one name; the waits of other ranks come later than the next releases
_LEAST_STEPS = 10  # of which percentiles say something
_NEGOTIATE = "NEGOTIATE_"
_OF_SET = re.compile(r" \(process set \d+\)$")
_ROW = re.compile(r"rank (?P<rank>\d+)(?:: (?P<kind>.+))?$")  # of a rank: its waits, or what its time was spent on
_STEP = re.compile(r"step \d+")
_WAITING = re.compile(r"waiting(?: for rank (?P<rank>\d+))?$")
_WAIT, _RUNNING = "waiting", "running"
_GENERATION = re.compile(r"generation (\d+): \d+ ranks?$")


@dataclass(slots=True)
class Collective:
    """All collectives of one name.

    count: how many there were.
    running: the sum of their seconds from release to end, on rank 0. durations: those of the first ones.
    waiting: the sum of their seconds from the first rank's request to the release.
    intervals: the seconds from each of the first ones to the next. ended: when the last one ended.
    """

    name: str
    count: int = 0
    running: float = 0.0
    waiting: float = 0.0
    durations: list[float] = field(default_factory=list)
    intervals: list[float] = field(default_factory=list)
    ended: float | None = None

    def note(self, began: float, ended: float) -> None:
        """One of them has ended."""
        self.count += 1
        self.running += ended - began
        if len(self.durations) < _MOST_KEPT:
            self.durations.append(ended - began)
            if self.ended is not None:
                self.intervals.append(ended - self.ended)
        self.ended = ended


def find_percentile(seconds: list[float], percent: int) -> float:
    """The seconds that so many percent of these do not exceed; 0 of none."""
    if len(seconds) < 2:  # noqa: PLR2004 - of one there is no distribution
        return sum(seconds)
    return quantiles(seconds, n=100, method="inclusive")[percent - 1]


@dataclass(slots=True)
class Straggler:
    """A rank as the last one.

    last: in how many collectives it was. waited: the seconds in which only it was missing.
    """

    rank: int
    last: int = 0
    waited: float = 0.0


@dataclass(slots=True)
class RankTime:
    """The times of the program of one rank, in seconds.

    waited: for results, until their release. received: for results, from their release on.
    steps: one time for each of its first steps. parts: of all steps, by name; none where it has not noted them.
    waited_for: by the rank that was the last. recoveries: one time for each.
    communication: in which collectives ran, until the last event of this rank.
    """

    waited: float = 0.0
    received: float = 0.0
    steps: list[float] = field(default_factory=list)
    parts: dict[str, float] = field(default_factory=dict)
    waited_for: dict[int, float] = field(default_factory=dict)
    recoveries: list[float] = field(default_factory=list)
    communication: float = 0.0

    @property
    def hidden(self) -> float:
        """The seconds of communication that its program did not wait for."""
        return max(0.0, self.communication - self.exposed)

    @property
    def waiting(self) -> float:
        """The seconds in which it was blocked by other ranks."""
        return self.parts.get(_WAIT, 0.0) if self.parts else self.waited

    @property
    def exposed(self) -> float:
        """The seconds in which it was blocked by communication, which was not hidden behind its own work."""
        return self.parts.get(_RUNNING, 0.0) if self.parts else self.received

    def add(self, name: str, seconds: float) -> None:
        """Add a step, or a part of one."""
        if _STEP.match(name):
            if len(self.steps) < _MOST_KEPT:
                self.steps.append(seconds)
            return
        waiting = _WAITING.match(name)
        if waiting is not None:
            name = _WAIT
            if waiting["rank"] is not None:
                rank = int(waiting["rank"])
                self.waited_for[rank] = self.waited_for.get(rank, 0.0) + seconds
        self.parts[name] = self.parts.get(name, 0.0) + seconds


@dataclass(frozen=True, slots=True)
class Change:
    """The members changed, as after a loss.

    at: the second of the last result before. seconds: from then to the first release after.
    """

    generation: int
    at: float
    seconds: float


@dataclass(slots=True)
class Summary:
    """What the events of a timeline add up to.

    seconds: from the first event to the last one. ranks: those that took part.
    communication: the seconds in which collectives ran on rank 0.
    rank_times: by rank. collectives: by name. stragglers: by rank.
    changes: of the members. notes: what happened to the job, with the second of it.
    """

    seconds: float = 0.0
    ranks: set[int] = field(default_factory=set)
    communication: float = 0.0
    rank_times: dict[int, RankTime] = field(default_factory=lambda: defaultdict(RankTime))
    changes: list[Change] = field(default_factory=list)
    collectives: dict[str, Collective] = field(default_factory=dict)
    stragglers: dict[int, Straggler] = field(default_factory=dict)
    notes: list[tuple[float, str]] = field(default_factory=list)

    @property
    def released(self) -> int:
        """How many collectives had all their ranks."""
        return sum(straggler.last for straggler in self.stragglers.values())

    @property
    def waited(self) -> float:
        """The seconds in which only one rank was missing."""
        return sum(straggler.waited for straggler in self.stragglers.values())

    def list_steps(self) -> dict[int | None, list[float]]:
        """The seconds of steps, by rank.

        Where the ranks have not noted their steps, None has the times from one result to the next of the collective
        that ran longest.
        """
        steps: dict[int | None, list[float]] = {
            rank: each.steps for rank, each in self.rank_times.items() if each.steps
        }
        if steps:
            return steps
        repeated = [each for each in self.collectives.values() if len(each.intervals) >= _LEAST_STEPS]
        if not repeated:
            return {}
        return {None: max(repeated, key=lambda each: each.running).intervals}


class Reader:
    """Adds up the events of a timeline.

    summary: what was found so far.
    """

    def __init__(self) -> None:
        self.summary = Summary()
        self._names: dict[int, str] = {}
        self._ranks: dict[int, tuple[int, str | None]] = {}  # by row: whose it is, and of which kind; None: its waits
        self._begun: dict[int, list[tuple[str, float]]] = defaultdict(list)  # by row: what has begun, and when
        self._asked: dict[int, list[tuple[float, int]]] = defaultdict(list)
        self._released: dict[str, list[float]] = defaultdict(list)  # by operation: the last releases
        self._covered = 0.0  # communication until then is added up
        self._ended = 0.0  # of the last operation
        self._generation = 0  # the newest one
        self._change: tuple[int, float] | None = None  # a generation has begun, and when the last result came
        self._base: int | None = None  # microseconds since 1970 of the first part
        self._offset = 0.0

    def read(self, events: Iterable[dict[str, Any]]) -> None:
        """Add the events of one part."""
        self._names.clear()
        self._ranks.clear()
        self._begun.clear()
        self._asked.clear()
        for event in events:
            try:
                self._add(event)
            except (AttributeError, LookupError, TypeError, ValueError):  # not an event of ours
                continue

    def _add(self, event: dict[str, Any]) -> None:
        row, kind = int(event["pid"]), event["ph"]
        if kind == "M":
            self._describe(row, event.get("args", {}))
            return

        at = float(event["ts"]) / _MICROSECONDS + self._offset
        self.summary.seconds = max(self.summary.seconds, at)
        match kind:
            case "B":
                self._begun[row].append((str(event["name"]), at))
            case "X" if row in self._ranks:
                # What began before the file has its whole length besides.
                seconds = event.get("args", {}).get("seconds", float(event["dur"]) / _MICROSECONDS)
                self._note_span(*self._ranks[row], str(event["name"]), at, float(seconds))
            case "X":  # the request of a rank, by its number
                self._asked[row].append((at, int(event["name"])))
            case "E":
                self._end(row, at)
            case "i" if event["name"] != "CYCLE_START":
                self._note(str(event["name"]), at)

    def _describe(self, row: int, arguments: dict[str, Any]) -> None:
        if "name" in arguments:
            name = self._names[row] = str(arguments["name"])
            if (of_rank := _ROW.match(name)) is not None:
                self._ranks[row] = int(of_rank["rank"]), of_rank["kind"]
        elif (began := arguments.get("start_time_since_epoch_in_micros")) is not None:
            if self._base is None:
                self._base = int(began)
            self._offset = (int(began) - self._base) / _MICROSECONDS

    def _end(self, row: int, at: float) -> None:
        name, began = self._begun[row].pop()
        collective = self.summary.collectives.setdefault(self._names[row], Collective(self._names[row]))
        if name.startswith(_NEGOTIATE):
            collective.waiting += at - began
            self._note_release(_OF_SET.sub("", collective.name), at)
            self._note_last(sorted(self._asked.pop(row, [])))
            if self._change is not None:
                generation, since = self._change
                self.summary.changes.append(Change(generation, since, at - since))
                self._change = None
        elif not self._begun[row]:  # the whole operation, not one of its parts
            collective.note(began, at)
            self._ended = max(self._ended, at)
            self.summary.communication += max(0.0, at - max(began, self._covered))
            self._covered = max(self._covered, at)

    def _note_release(self, name: str, at: float) -> None:
        released = self._released[name]
        released.append(at)
        if len(released) > 2 * _MOST_RELEASES:
            del released[:_MOST_RELEASES]

    def _note(self, text: str, at: float) -> None:
        self.summary.notes.append((at, text))
        generation = _GENERATION.match(text)
        if generation is None:
            return
        former, self._generation = self._generation, int(generation[1])
        # A recording that was stopped and started again begins with the same generation.
        if self._ended and self._generation != former:
            self._change = self._generation, self._ended

    def _note_span(self, rank: int, kind: str | None, name: str, began: float, seconds: float) -> None:
        """Note that a rank has waited, taken a step or done a part of one, recovered, or filled a bucket."""
        times, ended = self.summary.rank_times[rank], began + seconds
        times.communication = self.summary.communication
        match kind:
            case None:
                released = next((each for each in reversed(self._released[name]) if each <= ended), ended)
                times.received += ended - max(began, released)
                times.waited += max(0.0, min(ended, released) - began)
            case "steps":
                times.add(name, seconds)
            case "recoveries":
                times.recoveries.append(seconds)
            case _:
                pass

    def _note_last(self, asked: list[tuple[float, int]]) -> None:
        if not asked:
            return
        self.summary.ranks.update(rank for _, rank in asked)
        if len(asked) > 1:
            at, rank = asked[-1]
            straggler = self.summary.stragglers.setdefault(rank, Straggler(rank))
            straggler.last += 1
            straggler.waited += at - asked[-2][0]
