"""A bucket: gradients that are reduced as one operation, from the moment they are complete to that of their use.

Each parameter of an optimizer has an entry, which knows how far the present step has come with its gradient.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

from worker_runtime.coordination.operation import Handle, Operation
from worker_runtime.coordination.ordering.questions import Question, Release
from worker_runtime.errors import ChangedGradientError
from worker_runtime.reduction.communicator import Communicator

Form = tuple[torch.dtype, torch.device, torch.Size, tuple[int, ...]]


class Entry:
    """A parameter and its state within the step.

    parameter, name: whose gradient.
    group: of those that travel together; None for any.
    passes_left: how many backward passes are to come before its gradient is complete.
    bucket: with which its gradient travels, while that is known during backward.
    kept: the local gradient, until the step is committed; also tells whether the user has put another in its place.
    version: of the gradient when it was complete, or taken; what is done in place, by autograd too, counts it up.
    form: of the parameter, when a step last began: dtype, device, shape and strides; None before the first one.
    """

    __slots__ = (
        "__weakref__",
        "bucket",
        "form",
        "group",
        "hook",
        "kept",
        "name",
        "parameter",
        "passes_left",
        "version",
    )

    def __init__(self, parameter: torch.Tensor, name: str, passes: int, group: int | None = None) -> None:
        self.parameter = parameter
        self.name = name
        self.group = group
        self.passes_left = passes
        self.bucket: Bucket | None = None
        self.kept: torch.Tensor | None = None
        self.version = 0
        self.form: Form | None = None  # a lazy module's parameter has none before its first forward pass
        self.hook: RemovableHandle | None = None

    @property
    def is_ready(self) -> bool:
        """Whether its gradient is complete."""
        return self.passes_left <= 0

    def find_form(self) -> Form:
        """The parameter's present form, which a program may change at any time: `model.double()`."""
        parameter = self.parameter
        return parameter.dtype, parameter.device, parameter.shape, parameter.stride()

    def note_version(self) -> None:
        """The gradient is complete, or was taken."""
        gradient = self.parameter.grad
        self.version = 0 if gradient is None else gradient._version  # noqa: SLF001 - torch's only way to tell

    def has_changed(self) -> bool:
        """Whether the gradient that was taken is another one now, or was written to."""
        gradient = self.parameter.grad
        return gradient is not self.kept or (gradient is not None and gradient._version != self.version)  # noqa: SLF001 - as above

    def detach(self) -> None:
        """Leave the parameter alone from now on."""
        if self.hook is not None:
            self.hook.remove()
            self.hook = None

    def find_sparse_dims(self) -> int:
        """How many sparse dimensions the present gradient has; 0 where it is dense or there is none."""
        gradient = self.parameter.grad
        return gradient.sparse_dim() if gradient is not None and gradient.layout is torch.sparse_coo else 0


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

    def ask(self, comm: Communicator, *, at_once: bool = False, is_awaited: bool = False) -> None:
        """Ask for the operation; all gradients have been taken.

        Args:
            comm: among whom.
            at_once: during backward: the question is sent now.
            is_awaited: it is waited for right away.
        """
        operation = self._make_operation(comm, self.part.format(comm.name))
        question = operation.question
        if question != self._plain or self._noted is None:
            note = ", ".join(part for part in (question.signature.note, self._note) if part)
            self._plain, self._noted = question, question.add_note(note)
        operation.question = self._noted
        operation.is_of_step = True
        self._handle = comm.engine.submit(operation, at_once=at_once, is_awaited=is_awaited)

    def finish(self, comm: Communicator) -> Release | None:
        """Wait for the operation; its terms.

        Args:
            comm: among whom it was asked for.

        Raises:
            HorovodInternalError: it failed.
        """
        handle = self._handle
        if handle is None:
            return None
        self._receive(comm.engine.wait(handle))
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
    def _make_operation(self, comm: Communicator, name: str) -> Operation[Any]:
        """The operation on what was taken."""

    @abstractmethod
    def _receive(self, result: Any) -> None:  # noqa: ANN401 - the operation's
        """The operation is done."""
