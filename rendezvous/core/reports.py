"""What the survivors of a loss report, and what all of them do then: values, and an index for thousands of reports.

The rules that lead from reports to a verdict are in `verdict.py`.

An operation that is pending on one survivor may be completed on another. The set's ranks, the name and the place in the
order say which one it is. Its place is its index if the survivor that waits knows of its release, and else any index
above all that this survivor knows of.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import TypeAlias, TypeVar


class JoinReason(StrEnum):
    """What a worker that joins wants of the next generation."""

    BEGIN = "begin"  # it called `init()`: at first, or after `shutdown()`
    FORM = "form"  # it was interrupted before it was connected to the generation's others: it has done nothing in it
    CONTINUE = "continue"  # it was interrupted: its operations are suspended, and it can go on where it stands
    RESIZE = "resize"  # at a commit all have seen that the job may grow or shrink: it begins the function again
    RESTORE = "restore"  # an operation has failed for good: it has returned to its last commit, and begins again


@dataclass(frozen=True, slots=True)
class PendingOperation:
    """An operation that this worker has asked for and that is not done here.

    ranks: the members of its process set, by their ranks in the interrupted generation.
    name: as it travels, for example "allreduce.loss"; in its set no other pending operation of this rank has it.
    title: as messages call it, for example "allreduce 'loss'".
    number: which commit round this is, counted from 1 in its set; 0 for every other operation.
    index: its place in the generation's order, when it was released; None before.
    root: the rank whose data it needs, as a broadcast does; None where any survivors will do.
    obstacle: why it cannot be run again here, as the end of a sentence ("its tensor was changed in place"); "" when
        it can.
    """

    ranks: tuple[int, ...]
    name: str
    title: str
    number: int = 0
    index: int | None = None
    root: int | None = None
    obstacle: str = ""


@dataclass(frozen=True, slots=True)
class CompletedOperation:
    """One of the operations that were done last on this worker: its result may have been used.

    ranks, name, number: as of a pending one.
    index: its place in the generation's order.
    answer: what the sequencer has answered, where nothing else makes the result, and where it is short: whoever still
        waits can go on with it; b"" otherwise.
    """

    ranks: tuple[int, ...]
    name: str
    index: int
    number: int = 0
    answer: bytes = b""


@dataclass(frozen=True, slots=True)
class Report:
    """What a worker tells when it joins: a snapshot, after which nothing of the old generation becomes done here.

    error: what it has noticed by itself, in one sentence without a full stop; "" when it was only told.
    has_state: it is inside a function that begins again after an exception (`hvd.elastic.run`).
    pending: but not the optimizer's reductions that its next commit round would cover: they are made anew as a whole,
        unless that is done.
    seen: the highest index of a release that it has heard of; -1 for none.
    floor: `completed` lists all that were done here with this index or a higher one.
    needs_state: it was taken in later, and has not yet received the others' state: nobody may copy from it.
    commits: how often its program has committed its state, since it began.
    """

    reason: JoinReason = JoinReason.BEGIN
    error: str = ""
    has_state: bool = False
    pending: tuple[PendingOperation, ...] = ()
    completed: tuple[CompletedOperation, ...] = ()
    seen: int = -1
    floor: int = 0
    needs_state: bool = False
    commits: int = 0


class Decision(StrEnum):
    """What all members of a generation do when it is published."""

    BEGIN = "begin"  # start as they are: all have called `init()`
    RETRY = "retry"  # run again whatever is pending, but for what the verdict calls done; nobody notices
    RESIZE = "resize"  # what is pending raises HostsUpdatedInterrupt: begin the function again, with the state as it is
    RESTORE = "restore"  # what is pending raises HorovodInternalError: the same, with the state as at the last commit


@dataclass(frozen=True, slots=True)
class Done:
    """Done for all survivors that still wait for it: a commit round, or what some have done, and all can.

    ranks: the members of its process set, by their ranks in the old generation.
    number: of the commit round; 0 for all else.
    name: as it travels; "" for a commit round.
    answer: what the sequencer has answered to those who have done it; b"" for a barrier. Of a commit round, what those
        who have done it tell of it: that a stop notice had come before.
    """

    ranks: tuple[int, ...]
    number: int
    name: str = ""
    answer: bytes = b""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What all members of a generation do with what the one before has left; the same for all.

    survivors: of a RETRY: its members' ranks in the old generation, in the order of the new one.
    done: of a RETRY.
    removed_only: of a RESIZE: nobody has come, so that the state need not be synchronised.
    reason: one sentence without a full stop, for people.
    """

    decision: Decision
    survivors: tuple[int, ...] = ()
    done: tuple[Done, ...] = ()
    removed_only: bool = False
    reason: str = ""


Ranks: TypeAlias = tuple[int, ...]
FoundT = TypeVar("FoundT")
_Found: TypeAlias = dict[tuple[int, str], dict[int, FoundT]]  # by set and name: by index, what is looked for
_Uses: TypeAlias = _Found[int]  # somebody who has done it


class Survivors:
    """What the survivors have reported.

    Args:
        size: of the interrupted generation.
        reports: by rank in it.
    """

    def __init__(self, size: int, reports: Mapping[int, Report]) -> None:
        self.size = size
        self.reports = dict(sorted(reports.items()))
        self._numbers: dict[Ranks, int] = {}
        self._numbers_by_identity: dict[int, int] = {}  # most ranks are one and the same tuple, and long
        self._members: dict[int, list[int]] = {}
        self._lost: dict[int, int | None] = {}
        self._ahead: dict[int, list[int]] = {}
        self._least: dict[int, int] = {}

    def list_pending(self) -> Iterator[tuple[int, PendingOperation]]:
        """What is pending, with whom; by rank."""
        for rank, report in self.reports.items():
            for operation in report.pending:
                yield rank, operation

    def list_completed_rounds(self) -> Iterator[tuple[int, CompletedOperation]]:
        """The commit rounds that were seen committed, with who has seen it."""
        for rank, report in self.reports.items():
            for operation in report.completed:
                if operation.number:
                    yield rank, operation

    def list_members(self, ranks: Ranks) -> list[int]:
        """Who is left of a set."""
        number = self._number(ranks)
        if number not in self._members:
            self._members[number] = [rank for rank in ranks if rank in self.reports]
        return self._members[number]

    def find_lost(self, ranks: Ranks) -> int | None:
        """The first member of a set that is gone; None where all are left."""
        number = self._number(ranks)
        if number not in self._lost:
            self._lost[number] = next((rank for rank in ranks if rank not in self.reports), None)
        return self._lost[number]

    def is_everybody(self, ranks: Ranks) -> bool:
        """It is the global set, which goes on with whoever is left."""
        return len(ranks) == self.size

    def find_round(self, rank: int, ranks: Ranks) -> int:
        """The highest number of a commit round of this set that this rank has asked for, done or not; 0 for none."""
        return self._rounds.get((self._number(ranks), rank), 0)

    def find_least_round(self, ranks: Ranks) -> int:
        """The highest commit round that every survivor of the set has asked for."""
        number = self._number(ranks)
        if number not in self._least:
            self._least[number] = min((self.find_round(rank, ranks) for rank in self.list_members(ranks)), default=0)
        return self._least[number]

    def find_completer(self, rank: int, operation: PendingOperation) -> int | None:
        """Somebody who has done what is pending on this rank, and has gone on from there."""
        return self._find(self._uses[0], rank, operation)

    def find_answer(self, rank: int, operation: PendingOperation) -> bytes:
        """What the sequencer has answered to those who have done what is pending on this rank; b"" if nobody knows."""
        return self._find(self._answers, rank, operation) or b""

    def is_completed_elsewhere(self, rank: int, operation: PendingOperation) -> bool:
        """Somebody has done what is pending on this rank."""
        return self._find(self._uses[0], rank, operation) is not None or (
            self._find(self._uses[1], rank, operation) is not None
        )

    def find_out_of_window(self, rank: int, operation: PendingOperation) -> int | None:
        """A member that is so far ahead that it does not know any more whether it has done this; None for none."""
        number = self._number(operation.ranks)
        if number not in self._ahead:
            members = sorted(self.list_members(operation.ranks), key=lambda member: -self.reports[member].floor)
            self._ahead[number] = members[:2]
        first = next((member for member in self._ahead[number] if member != rank), None)
        least = self.reports[rank].seen + 1 if operation.index is None else operation.index
        return first if first is not None and self.reports[first].floor > least else None

    def _find(self, found: _Found[FoundT], rank: int, operation: PendingOperation) -> FoundT | None:
        by_index = found.get((self._number(operation.ranks), operation.name))
        if by_index is None:
            return None
        if operation.index is not None:
            return by_index.get(operation.index)
        last = max(by_index)
        return by_index[last] if last > self.reports[rank].seen else None

    @cached_property
    def _answers(self) -> _Found[bytes]:
        """Those that are known, by what they answer."""
        answers: _Found[bytes] = {}
        for report in self.reports.values():
            for operation in report.completed:
                if operation.answer:
                    place = self._number(operation.ranks), operation.name
                    answers.setdefault(place, {})[operation.index] = operation.answer
        return answers

    @cached_property
    def _uses(self) -> tuple[_Uses, _Uses]:
        """What was done whose namesake is pending somewhere: by those who went on, and by those whom it sent back.

        Who has begun again at a resize was told so by the operation that it has done last.
        """
        names = {operation.name for _, operation in self.list_pending()}
        uses: tuple[_Uses, _Uses] = ({}, {})
        for rank, report in self.reports.items():
            last = max((operation.index for operation in report.completed), default=-1)
            for operation in report.completed:
                if operation.name in names:
                    is_end = report.reason is JoinReason.RESIZE and operation.index == last
                    uses[is_end].setdefault((self._number(operation.ranks), operation.name), {}).setdefault(
                        operation.index, rank
                    )
        return uses

    @cached_property
    def _rounds(self) -> dict[tuple[int, int], int]:
        """By set and rank, the highest commit round that was asked for."""
        rounds: dict[tuple[int, int], int] = {}
        for rank, report in self.reports.items():
            asked: tuple[PendingOperation | CompletedOperation, ...] = (*report.pending, *report.completed)
            for operation in asked:
                if operation.number:
                    place = self._number(operation.ranks), rank
                    rounds[place] = max(rounds.get(place, 0), operation.number)
        return rounds

    def _number(self, ranks: Ranks) -> int:
        """A number for a set."""
        number = self._numbers_by_identity.get(id(ranks))
        if number is None:
            number = self._numbers.setdefault(ranks, len(self._numbers))
            self._numbers_by_identity[id(ranks)] = number
        return number
