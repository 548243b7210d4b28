"""What survivors report after a loss, the decision that answers them, and an index for thousands of reports.

The rules that lead from reports to a decision are in `decision.py`.

An operation that is pending on one survivor may be completed on another. The ranks of its process set, its name and its
place in the order identify it. The place is the operation's index, if the survivor has received its release; else any
index above those that the survivor has received.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import TypeAlias, TypeVar


class JoinReason(StrEnum):
    """Why a worker joins."""

    BEGIN = "begin"  # it called `init()`: for the first time, or after `shutdown()`
    FORM = "form"  # it was interrupted before it was connected to the other members: it has done nothing yet
    CONTINUE = "continue"  # it was interrupted: its operations are suspended, and it can continue from there
    RESIZE = "resize"  # at a commit all members have seen that the job may grow or shrink: it calls its function again
    RESTORE = "restore"  # an operation has failed: it has restored its last commit, and calls its function again


@dataclass(frozen=True, slots=True)
class PendingOperation:
    """An operation that this worker has submitted and that is not completed on it.

    ranks: the members of its process set, by their ranks in the interrupted generation.
    name: its name on the wire, for example "allreduce.loss"; unique among the rank's pending operations of its set.
    title: its name in messages, for example "allreduce 'loss'".
    number: which commit round this is, counted from 1 in its set; 0 for every other operation.
    index: its place in the generation's order; None before its release.
    root: the rank whose data it needs, as a broadcast does; None if any survivors suffice.
    obstacle: why it cannot be repeated, as the end of a sentence ("its tensor was changed in place"); "" if it can.
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
    """One of the operations that this worker completed last: its result may have been used.

    ranks, name, number: see PendingOperation.
    index: its place in the generation's order.
    response: the sequencer's, if it is short and alone makes the result: a survivor that still waits can use it.
        Else b"".
    """

    ranks: tuple[int, ...]
    name: str
    index: int
    number: int = 0
    response: bytes = b""


@dataclass(frozen=True, slots=True)
class Report:
    """What a worker reports when it joins. No operation of the old generation completes on it later.

    error: an error that it has found itself, in one sentence without a full stop; "" if it was interrupted.
    has_state: it is inside a function that is called again after an exception (`hvd.elastic.run`).
    pending: without the optimizer's reductions that its next commit round would cover: unless that round is done, they
        are all repeated.
    seen: the highest index of a release that it has received; -1 for none.
    floor: `completed` lists every operation completed here with this index or a higher one.
    needs_state: it was added later, and has not received the others' state yet: no worker may copy from it.
    commits: how often its program has called `state.commit()` since its start.
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


_OF_A_STEP = ("allreduce.", "reducescatter.", "alltoall.")  # what is broadcast or gathered may prepare the training


def trains(report: Report) -> bool:
    """The worker has begun to train: it has submitted a commit round, or what belongs to a step."""
    submitted: tuple[PendingOperation | CompletedOperation, ...] = (*report.pending, *report.completed)
    return any(
        operation.number or operation.name.removeprefix("grouped_").startswith(_OF_A_STEP) for operation in submitted
    )


class Action(StrEnum):
    """What all members of a generation do when it is published."""

    BEGIN = "begin"  # start as they are: all have called `init()`
    RETRY = "retry"  # repeat the pending operations that are not listed as done; the program does not notice
    RESIZE = "resize"  # pending operations raise HostsUpdatedInterrupt: call the function again with the present state
    RESTORE = "restore"  # pending operations raise HorovodInternalError: call it again with the last committed state


@dataclass(frozen=True, slots=True)
class Done:
    """An operation that counts as done on the survivors that still wait for it.

    ranks: the members of its process set, by their ranks in the old generation.
    number: the number of the commit round; 0 for any other operation.
    name: its name on the wire; "" for a commit round.
    response: the sequencer's to those that have completed it; b"" for a barrier. For a commit round, it says that
        a stop notice had come before.
    """

    ranks: tuple[int, ...]
    number: int
    name: str = ""
    response: bytes = b""


@dataclass(frozen=True, slots=True)
class RecoveryDecision:
    """What all members of a generation do with the operations that the last one left pending; the same for all.

    survivors: for RETRY: the members' ranks in the old generation, in the order of the new one.
    done: for RETRY: the operations that are not repeated.
    removed_only: for RESIZE: no worker was added, so the state need not be synchronised.
    reason: one sentence without a full stop, for the user.
    """

    action: Action
    survivors: tuple[int, ...] = ()
    done: tuple[Done, ...] = ()
    removed_only: bool = False
    reason: str = ""


Ranks: TypeAlias = tuple[int, ...]
FoundT = TypeVar("FoundT")
_Found: TypeAlias = dict[tuple[int, str], dict[int, FoundT]]  # by set and name, then by index
_Uses: TypeAlias = _Found[int]  # a rank that has completed it


class Survivors:
    """An index of the survivors' reports.

    Args:
        size: the size of the interrupted generation.
        reports: by rank in it.
    """

    def __init__(self, size: int, reports: Mapping[int, Report]) -> None:
        self.size = size
        self.reports = dict(sorted(reports.items()))
        self._numbers: dict[Ranks, int] = {}
        self._numbers_by_identity: dict[int, int] = {}  # most sets are the same long tuple, which is slow to hash
        self._members: dict[int, list[int]] = {}
        self._lost: dict[int, int | None] = {}
        self._ahead: dict[int, list[int]] = {}
        self._least: dict[int, int] = {}

    def list_pending(self) -> Iterator[tuple[int, PendingOperation]]:
        """Every pending operation, with its rank; in rank order."""
        for rank, report in self.reports.items():
            for operation in report.pending:
                yield rank, operation

    def list_completed_rounds(self) -> Iterator[tuple[int, CompletedOperation]]:
        """Every completed commit round, with its rank; in rank order."""
        for rank, report in self.reports.items():
            for operation in report.completed:
                if operation.number:
                    yield rank, operation

    def list_members(self, ranks: Ranks) -> list[int]:
        """The survivors in a set."""
        number = self._number(ranks)
        if number not in self._members:
            self._members[number] = [rank for rank in ranks if rank in self.reports]
        return self._members[number]

    def find_lost(self, ranks: Ranks) -> int | None:
        """The first lost member of a set; None if all have survived."""
        number = self._number(ranks)
        if number not in self._lost:
            self._lost[number] = next((rank for rank in ranks if rank not in self.reports), None)
        return self._lost[number]

    def is_everybody(self, ranks: Ranks) -> bool:
        """Whether these ranks are the global set, which continues with the survivors."""
        return len(ranks) == self.size

    def find_round(self, rank: int, ranks: Ranks) -> int:
        """The highest commit round of this set that this rank has submitted, completed or not; 0 for none."""
        return self._rounds.get((self._number(ranks), rank), 0)

    def find_least_round(self, ranks: Ranks) -> int:
        """The highest commit round that every survivor of the set has submitted."""
        number = self._number(ranks)
        if number not in self._least:
            self._least[number] = min((self.find_round(rank, ranks) for rank in self.list_members(ranks)), default=0)
        return self._least[number]

    def find_completer(self, rank: int, operation: PendingOperation) -> int | None:
        """A rank that has completed what is pending on this rank, and has continued; None if there is none."""
        return self._find(self._uses[0], rank, operation)

    def find_response(self, rank: int, operation: PendingOperation) -> bytes:
        """The response to a rank that has completed what is pending on this rank; b"" if none reports it."""
        return self._find(self._responses, rank, operation) or b""

    def is_completed_elsewhere(self, rank: int, operation: PendingOperation) -> bool:
        """Another rank has completed what is pending on this rank."""
        return self._find(self._uses[0], rank, operation) is not None or (
            self._find(self._uses[1], rank, operation) is not None
        )

    def find_out_of_window(self, rank: int, operation: PendingOperation) -> int | None:
        """A member so far ahead that its report does not tell whether it has completed this; None if there is none."""
        number = self._number(operation.ranks)
        if number not in self._ahead:
            members = sorted(self.list_members(operation.ranks), key=lambda member: -self.reports[member].floor)
            self._ahead[number] = members[:2]
        first = next((member for member in self._ahead[number] if member != rank), None)
        if operation.index is None:
            least = self.reports[rank].seen + 1
        else:
            least = operation.index
        if first is not None and self.reports[first].floor > least:
            return first
        return None

    def _find(self, found: _Found[FoundT], rank: int, operation: PendingOperation) -> FoundT | None:
        by_index = found.get((self._number(operation.ranks), operation.name))
        if by_index is None:
            return None
        if operation.index is not None:
            return by_index.get(operation.index)
        last = max(by_index)
        if last > self.reports[rank].seen:
            return by_index[last]
        return None

    @cached_property
    def _responses(self) -> _Found[bytes]:
        """The reported responses of the sequencer."""
        responses: _Found[bytes] = {}
        for report in self.reports.values():
            for operation in report.completed:
                if operation.response:
                    place = self._number(operation.ranks), operation.name
                    responses.setdefault(place, {})[operation.index] = operation.response
        return responses

    @cached_property
    def _uses(self) -> tuple[_Uses, _Uses]:
        """Completed operations whose name is pending on some rank: by ranks that continued, and by ranks it sent back.

        The last operation that a rank completed before a RESIZE has sent it back.
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
        """By set and rank, the highest commit round that was submitted."""
        rounds: dict[tuple[int, int], int] = {}
        for rank, report in self.reports.items():
            asked: tuple[PendingOperation | CompletedOperation, ...] = (*report.pending, *report.completed)
            for operation in asked:
                if operation.number:
                    place = self._number(operation.ranks), rank
                    rounds[place] = max(rounds.get(place, 0), operation.number)
        return rounds

    def _number(self, ranks: Ranks) -> int:
        """A short key for a set."""
        number = self._numbers_by_identity.get(id(ranks))
        if number is None:
            number = self._numbers.setdefault(ranks, len(self._numbers))
            self._numbers_by_identity[id(ranks)] = number
        return number
