"""What a timeline says: which collectives were slow, and for which ranks the others waited; pure.

The others wait for the last rank of a collective: from the request of the last but one to its own.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from statistics import quantiles
from typing import Any

_MOST_KEPT = 10_000  # durations of one collective, for its percentiles
_MICROSECONDS = 1e6
_NEGOTIATE = "NEGOTIATE_"
_RANK = "rank "


@dataclass(slots=True)
class Collective:
    """All collectives of one name.

    count: how many there were.
    running: the sum of their seconds from release to end, on rank 0. durations: those of the first ones.
    waiting: the sum of their seconds from the first rank's request to the release.
    """

    name: str
    count: int = 0
    running: float = 0.0
    waiting: float = 0.0
    durations: list[float] = field(default_factory=list)

    def percentile(self, percent: int) -> float:
        """The seconds that so many percent of them do not exceed."""
        if len(self.durations) < 2:  # noqa: PLR2004 - of one there is no distribution
            return sum(self.durations)
        return quantiles(self.durations, n=100, method="inclusive")[percent - 1]


@dataclass(slots=True)
class Straggler:
    """A rank as the last one.

    last: in how many collectives it was. waited: the seconds in which only it was missing.
    """

    rank: int
    last: int = 0
    waited: float = 0.0


@dataclass(slots=True)
class Summary:
    """What was found.

    seconds: from the first event to the last one. ranks: that took part.
    waits: by rank, the seconds in which its program waited for results.
    collectives: by name. stragglers: by rank. notes: what happened to the job, with the second of it.
    """

    seconds: float = 0.0
    ranks: set[int] = field(default_factory=set)
    waits: dict[int, float] = field(default_factory=lambda: defaultdict(float))
    collectives: dict[str, Collective] = field(default_factory=dict)
    stragglers: dict[int, Straggler] = field(default_factory=dict)
    notes: list[tuple[float, str]] = field(default_factory=list)

    @property
    def released(self) -> int:
        """How many collectives had all their ranks."""
        return sum(straggler.last for straggler in self.stragglers.values())


class Reader:
    """Adds up the events of a timeline.

    summary: what was found so far.
    """

    def __init__(self) -> None:
        self.summary = Summary()
        self._names: dict[int, str] = {}
        self._ranks: dict[int, int] = {}  # by row: whose waits it has
        self._begun: dict[int, list[tuple[str, float]]] = defaultdict(list)  # by row: what has begun, and when
        self._asked: dict[int, list[tuple[float, int]]] = defaultdict(list)
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
            except (KeyError, TypeError, ValueError):  # not an event of ours
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
                self.summary.waits[self._ranks[row]] += float(event["dur"]) / _MICROSECONDS
            case "X":  # the request of a rank, by its number
                self._asked[row].append((at, int(event["name"])))
            case "E":
                self._end(row, at)
            case "i" if event["name"] != "CYCLE_START":
                self.summary.notes.append((at, str(event["name"])))

    def _describe(self, row: int, arguments: dict[str, Any]) -> None:
        if "name" in arguments:
            name = self._names[row] = str(arguments["name"])
            if name.startswith(_RANK) and name.removeprefix(_RANK).isdecimal():
                self._ranks[row] = int(name.removeprefix(_RANK))
        elif (began := arguments.get("start_time_since_epoch_in_micros")) is not None:
            if self._base is None:
                self._base = int(began)
            self._offset = (int(began) - self._base) / _MICROSECONDS

    def _end(self, row: int, at: float) -> None:
        name, began = self._begun[row].pop()
        collective = self.summary.collectives.setdefault(self._names[row], Collective(self._names[row]))
        if name.startswith(_NEGOTIATE):
            collective.waiting += at - began
            self._note_last(sorted(self._asked.pop(row, [])))
        elif not self._begun[row]:  # the whole operation, not one of its parts
            collective.count += 1
            collective.running += at - began
            if len(collective.durations) < _MOST_KEPT:
                collective.durations.append(at - began)

    def _note_last(self, asked: list[tuple[float, int]]) -> None:
        if not asked:
            return
        self.summary.ranks.update(rank for _, rank in asked)
        if len(asked) > 1:
            at, rank = asked[-1]
            straggler = self.summary.stragglers.setdefault(rank, Straggler(rank))
            straggler.last += 1
            straggler.waited += at - asked[-2][0]
