"""A bucket: gradients that are reduced as one operation, from the moment they are complete to that of their use."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from worker_runtime.coordination.handle import Handle
from worker_runtime.coordination.operation import Operation
from worker_runtime.coordination.ordering.questions import Question, Release
from worker_runtime.errors import ChangedGradientError
from worker_runtime.reduction.entry import Entry
from worker_runtime.reduction.seat import Seat


class Bucket(ABC):
    """Entries whose gradients travel together.

    Each step it takes the gradients one after the other, is asked for, is waited for, and gives the results back.

    Args:
        entries: at least one.
        number: of the bucket; with the optimizer's name it makes the operation's.
        note: what the other ranks must have alike, and is shown where they have not.
    """

    kind = "allreduce"  # of the operation's name

    def __init__(self, entries: Sequence[Entry], number: int, note: str) -> None:
        self.entries = tuple(entries)
        self.missing = len(self.entries)  # gradients that are not complete
        self._number = number
        self._note = note
        self._handle: Handle[Any] | None = None
        self._is_given = False
        self._plain: Question | None = None
        self._noted: Question | None = None

    @property
    def part(self) -> str:
        """The operation's name, but for the optimizer's: "allreduce.{}.bucket.3"."""
        return f"{self.kind}.{{}}.bucket.{self._number}"

    @property
    def handle(self) -> Handle[Any] | None:
        """Of the operation, when it was asked for in this step."""
        return self._handle

    @property
    def index(self) -> int:
        """Of the operation's release in this step; -1 before it."""
        terms = None if self._handle is None else self._handle.terms
        return -1 if terms is None else terms.index

    def ask(self, seat: Seat, *, at_once: bool = False, is_awaited: bool = False) -> None:
        """Ask for the operation; all gradients have been taken.

        Args:
            seat: among whom.
            at_once: during backward: the question is sent now.
            is_awaited: it is waited for right away.
        """
        operation = self._make_operation(seat, self.part.format(seat.name))
        question = operation.question
        if question != self._plain or self._noted is None:
            note = ", ".join(part for part in (question.signature.note, self._note) if part)
            self._plain, self._noted = question, question.add_note(note)
        operation.question = self._noted
        operation.is_of_step = True
        self._handle = seat.executor.submit(operation, at_once=at_once, is_awaited=is_awaited)

    def finish(self) -> Release | None:
        """Wait for the operation; its terms.

        Raises:
            HorovodInternalError: it failed.
        """
        handle = self._handle
        if handle is None:
            return None
        self._receive(handle.wait())
        return handle.terms

    def refuse_changes(self) -> None:
        """Make sure that the gradients that were taken during backward are still the same.

        Raises:
            ChangedGradientError: the program has changed one, which travels as it was.
        """
        for entry in self.entries:
            if entry.bucket is self and entry.is_ready and entry.has_changed():
                raise ChangedGradientError(entry.name)

    def reset(self) -> None:
        """Forget the step."""
        self._handle = None
        self._is_given = False
        self.missing = len(self.entries)

    @abstractmethod
    def take(self, entry: Entry) -> None:
        """The entry's gradient is complete: make it ready to travel."""

    def take_back(self) -> None:
        """Put the local gradients back in the place of results that were given and do not count."""
        for entry in self.entries if self._is_given else ():
            entry.parameter.grad = entry.kept

    def give(self) -> None:
        """Put the results in the gradients' place."""
        self._is_given = True
        self._give()

    @abstractmethod
    def _give(self) -> None:
        """Put the results in the gradients' place."""

    @abstractmethod
    def _make_operation(self, seat: Seat, name: str) -> Operation[Any]:
        """The operation on what was taken."""

    @abstractmethod
    def _receive(self, result: Any) -> None:  # noqa: ANN401 - the operation's
        """The operation is done."""
