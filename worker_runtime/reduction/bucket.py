"""A bucket: gradients that are reduced as one operation; and the step, which holds all that one step knows of them.

A bucket lasts as long as its plan. A step begins empty and is thrown away whole: nothing is ever reset.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

from worker_runtime.coordination.operation import Handle, Operation
from worker_runtime.coordination.ordering.questions import Question
from worker_runtime.errors import ChangedGradientError
from worker_runtime.reduction.communicator import Communicator

Form = tuple[torch.dtype, torch.device, torch.Size, tuple[int, ...]]


class Entry:
    """A parameter, with what lasts longer than a step.

    parameter, name: whose gradient.
    group: of those that travel together; None for any.
    bucket: with which its gradient travels, while that is known during backward.
    form: of the parameter, when a step last began: dtype, device, shape and strides; None before the first one.
    """

    __slots__ = ("__weakref__", "bucket", "form", "group", "hook", "name", "parameter")

    def __init__(self, parameter: torch.Tensor, name: str, group: int | None = None) -> None:
        self.parameter = parameter
        self.name = name
        self.group = group
        self.bucket: Bucket | None = None
        self.form: Form | None = None  # a lazy module's parameter has none before its first forward pass
        self.hook: RemovableHandle | None = None

    def find_form(self) -> Form:
        """The parameter's present form, which a program may change at any time: `model.double()`."""
        parameter = self.parameter
        return parameter.dtype, parameter.device, parameter.shape, parameter.stride()

    def find_version(self) -> int:
        """The gradient's version: what is done in place, by autograd too, counts it up."""
        gradient = self.parameter.grad
        return 0 if gradient is None else gradient._version  # noqa: SLF001 - torch's only way to tell

    def detach(self) -> None:
        """Leave the parameter alone from now on."""
        if self.hook is not None:
            self.hook.remove()
            self.hook = None

    def find_sparse_dims(self) -> int:
        """How many sparse dimensions the present gradient has; 0 where it is dense or there is none."""
        gradient = self.parameter.grad
        return gradient.sparse_dim() if gradient is not None and gradient.layout is torch.sparse_coo else 0


@dataclass(slots=True)
class Step:
    """One step of an optimizer.

    passes_left: of parameters that have made some of their backward passes: how many are to come.
    ready: complete gradients that have no bucket, or were taken, with their version at that time; what is done in
        place, by autograd too, counts it up. Without buckets, in the order of readiness.
    local: of buckets that have got gradients: the local ones; None, or absent, where there was none.
    open: of these, what belongs to buckets that only wait for the rest of their gradients, of one backward pass each.
    handles: of the buckets' operations that were submitted.
    latest: the one that was submitted last, during backward.
    asked: the negotiation of a step that asks nothing during backward, once it was submitted.
    negotiation: the `Negotiation` that came of it.
    results: of the operations that are done.
    memories: in which dense gradients travel.
    sparse_dims: of dense buckets' gradients that are sparse here: how many dimensions.
    contexts: what buckets keep from making the operation to its results: a compressor's contexts, packed gradients.
    has_begun: a backward pass has reached one of the parameters.
    follows_reduced: the step before it was reduced.
    """

    passes_left: dict[Entry, int] = field(default_factory=dict)
    ready: dict[Entry, int] = field(default_factory=dict)
    local: dict["Bucket", dict[Entry, torch.Tensor | None]] = field(default_factory=dict)
    open: dict["Bucket", dict[Entry, torch.Tensor | None]] = field(default_factory=dict)
    handles: dict["Bucket", Handle[Any]] = field(default_factory=dict)
    latest: Handle[Any] | None = None
    asked: Handle[Any] | None = None
    negotiation: Any = None
    results: dict["Bucket", Any] = field(default_factory=dict)
    memories: dict["Bucket", Any] = field(default_factory=dict)
    sparse_dims: dict[Entry, int] = field(default_factory=dict)
    contexts: dict["Bucket", list[Any]] = field(default_factory=dict)
    has_begun: bool = False
    follows_reduced: bool = False

    @property
    def has_ready(self) -> bool:
        """Whether a gradient is complete."""
        return bool(self.ready or self.local)

    def list_ready(self) -> Iterator[Entry]:
        """Those whose gradients are complete; some of them twice."""
        return chain(self.ready, *self.local.values())

    def find_local(self, entry: Entry) -> torch.Tensor | None:
        """The local gradient that a bucket has got; None where it has none."""
        return None if entry.bucket is None else self.local.get(entry.bucket, {}).get(entry)

    def restart(self) -> "Step":
        """The same step with nothing submitted: the local gradients are reduced again."""
        for entry in list(self.list_ready()):
            self.ready.setdefault(entry, entry.find_version())
        return Step(self.passes_left, self.ready, has_begun=self.has_begun)


class Bucket(ABC):
    """Entries whose gradients travel together.

    In each step the gradients are taken, the operation is submitted and waited for, and the results are installed.

    Args:
        entries: at least one.
        number: of the bucket; with the optimizer's name it makes the operation's.
        note: what the other ranks must have alike, and is shown where they have not.
    """

    kind = "allreduce"  # of the operation's name
    copies_each = False  # a gradient is taken as soon as it is complete, and not with the others

    def __init__(self, entries: Sequence[Entry], number: int, note: str) -> None:
        self.entries = tuple(entries)
        self._number = number
        self._note = note
        self._plain: Question | None = None
        self._noted: Question | None = None

    @property
    def part(self) -> str:
        """The operation's name, but for the optimizer's: "allreduce.{}.bucket.3"."""
        return f"{self.kind}.{{}}.bucket.{self._number}"

    def submit(self, comm: Communicator, step: Step, *, at_once: bool = False, is_awaited: bool = False) -> None:
        """Submit the operation; all gradients have been taken.

        Args:
            comm: among whom.
            step: of the gradients.
            at_once: during backward: the question is sent now.
            is_awaited: it is waited for right away.
        """
        operation = self._make_operation(comm, step, self.part.format(comm.name))
        question = operation.question
        if question != self._plain or self._noted is None:
            note = ", ".join(part for part in (question.signature.note, self._note) if part)
            self._plain, self._noted = question, question.add_note(note)
        operation.question = self._noted
        operation.is_of_step = True
        step.handles[self] = comm.engine.submit(operation, at_once=at_once, is_awaited=is_awaited)

    def finish(self, comm: Communicator, step: Step) -> None:
        """Wait for the operation.

        Args:
            comm: among whom it was submitted.
            step: in which it was.

        Raises:
            HorovodInternalError: it failed.
        """
        step.results[self] = comm.engine.wait(step.handles[self])

    def refuse_changes(self, step: Step) -> None:
        """Make sure that the gradients that were taken during backward are still the same.

        Raises:
            ChangedGradientError: the program has changed one, which travels as it was.
        """
        for entry, gradient in step.local.get(self, {}).items() if self.copies_each or self in step.handles else ():
            if entry.parameter.grad is not gradient or (
                gradient is not None and gradient._version != step.ready[entry]  # noqa: SLF001 - torch's only way to tell
            ):
                raise ChangedGradientError(entry.name)

    def take(self, step: Step) -> None:
        """All gradients that will be there are complete: those that were not taken yet travel as they are now."""
        local = step.local[self] = {entry: entry.parameter.grad for entry in self.entries}
        step.ready.update(
            {entry: gradient._version for entry, gradient in local.items() if gradient is not None}  # noqa: SLF001 - as above
        )

    def copy_in(self, step: Step, entry: Entry) -> None:
        """Take one gradient, which is complete; only where `copies_each`."""
        raise NotImplementedError

    @abstractmethod
    def install(self, step: Step) -> None:
        """Put the results in the gradients' place."""

    @abstractmethod
    def _make_operation(self, comm: Communicator, step: Step, name: str) -> Operation[Any]:
        """The operation on what was copied in."""
