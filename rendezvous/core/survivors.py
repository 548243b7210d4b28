"""The reports of all survivors of a generation, arranged for what is asked of them: thousands may be left.

An operation that is pending on one survivor may be done on another. Which of another's operations it is follows from
the set's ranks, the name and the place in the order: its index, where the one that waits has heard of its release, and
else any index beyond all that it has heard of.
"""

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import TypeAlias, TypeVar

from rendezvous.core.reports import CompletedOperation, PendingOperation, Report, Wish

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

    def find_user(self, rank: int, operation: PendingOperation) -> int | None:
        """Somebody who has done what is pending on this rank, and has gone on from there."""
        return self._find(self._uses[0], rank, operation)

    def find_answer(self, rank: int, operation: PendingOperation) -> bytes:
        """What the sequencer has answered to those who have done what is pending on this rank; b"" if nobody knows."""
        return self._find(self._answers, rank, operation) or b""

    def is_done_elsewhere(self, rank: int, operation: PendingOperation) -> bool:
        """Somebody has done what is pending on this rank."""
        return self._find(self._uses[0], rank, operation) is not None or (
            self._find(self._uses[1], rank, operation) is not None
        )

    def find_ahead(self, rank: int, operation: PendingOperation) -> int | None:
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
                    is_end = report.wish is Wish.RESIZE and operation.index == last
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
