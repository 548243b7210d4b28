"""A bucket, which is a list of gradients that are reduced by one operation; and the state of one step.

A bucket lives as long as its plan. Its `Contents` are those of one step. A `Step` has the contents of all buckets. It
starts empty and is dropped as a whole after the step: no field is reset.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Generic, TypeVar

import torch
from torch.utils.hooks import RemovableHandle

from worker_runtime.account import ACCOUNT
from worker_runtime.coordination.operation import Handle, Operation
from worker_runtime.coordination.ordering.requests import Request
from worker_runtime.errors import ChangedGradientError
from worker_runtime.reduction.communicator import Communicator

ResultT = TypeVar("ResultT")
ContentsT = TypeVar("ContentsT", bound="Contents[Any]")

Form = tuple[torch.dtype, torch.device, torch.Size, tuple[int, ...]]


def find_dtype(parameter: torch.Tensor) -> torch.dtype:
    """The dtype of the parameter's gradients, which newer torch (2.13) lets a program choose: `p.grad_dtype`."""
    dtype: torch.dtype | None = getattr(parameter, "grad_dtype", None)
    return dtype or parameter.dtype


def find_values(entry: "Entry") -> torch.Tensor | None:
    """The values of a parameter's present gradient, also of a sparse one; None without a gradient."""
    gradient = entry.parameter.grad
    if gradient is None:
        return None
    gradient = gradient.detach()
    if gradient.layout is torch.sparse_coo:
        return gradient._values()  # noqa: SLF001 - whether it is coalesced or not
    if gradient.layout is not torch.strided:
        return gradient.to_dense()
    return gradient


class Entry:
    """A parameter of the optimizer.

    Args:
        parameter: the parameter.
        name: its name.
        group: the group of parameters that are reduced together; None for no group.

    bucket: the bucket of its gradient in an overlapped step; None in a warm-up step.
    sparse_dims: the number of sparse dimensions that the ranks have agreed on last; 0 for a dense gradient.
    form: the gradient's dtype, device, shape and strides at the start of the last step; None before the first one.
    """

    __slots__ = ("__weakref__", "bucket", "form", "group", "hook", "name", "parameter", "sparse_dims")

    def __init__(self, parameter: torch.Tensor, name: str, group: int | None = None) -> None:
        self.parameter = parameter
        self.name = name
        self.group = group
        self.bucket: Bucket[Any] | None = None
        self.sparse_dims = 0
        self.form: Form | None = None  # a lazy parameter has none before its first forward pass
        self.hook: RemovableHandle | None = None

    def find_form(self) -> Form:
        """The parameter's present form; a program may change it at any time: `model.double()`."""
        parameter = self.parameter
        return find_dtype(parameter), parameter.device, parameter.shape, parameter.stride()

    def find_version(self) -> int:
        """The gradient's version, which each operation in place increments, also autograd's; 0 without a gradient."""
        gradient = self.parameter.grad
        return 0 if gradient is None else gradient._version  # noqa: SLF001 - torch has no public way

    def detach(self) -> None:
        """Remove the hook from the parameter."""
        if self.hook is not None:
            self.hook.remove()
            self.hook = None

    def find_sparse_dims(self) -> int:
        """The number of sparse dimensions of the present gradient, or without one of the last one; 0 if it is dense."""
        gradient = self.parameter.grad
        if gradient is None:
            return self.sparse_dims
        if gradient.layout is torch.sparse_coo:
            return gradient.sparse_dim()
        return 0


@dataclass(slots=True, eq=False)
class Contents(Generic[ResultT]):
    """The contents of a bucket in one step.

    ready: the step's `ready`.
    local: the local gradients; None, or absent, for a parameter without one.
    streams: the CUDA streams on which backward has computed them, until the operation is submitted.
    handle: the handle of the submitted operation.
    result: its result, after it was awaited.
    opened: when it had its first gradient, while a timeline is recorded; else 0.
    """

    ready: dict[Entry, int]
    local: dict[Entry, torch.Tensor | None] = field(default_factory=dict)
    streams: set[torch.cuda.Stream] = field(default_factory=set)
    handle: Handle[ResultT] | None = None
    result: ResultT = field(init=False)
    opened: float = field(default_factory=ACCOUNT.begin_fill)


@dataclass(slots=True)
class Step:
    """The state of one step of an optimizer.

    passes_left: the remaining backward passes of each parameter that has had some of several.
    ready: the entries with a complete gradient that has no bucket or was taken by one, with the gradient's version at
        that time. In a warm-up step in the order of readiness.
    contents: the contents of the buckets that have any.
    open: the local gradients of buckets that are waiting for gradients, where each has one backward pass.
    latest: the handle that was submitted last during backward.
    asked: the handle of the negotiation, in a warm-up step.
    has_negotiated: the negotiation has a result.
    has_begun: a backward pass has reached a parameter.
    follows_reduced: the previous step was reduced.
    """

    passes_left: dict[Entry, int] = field(default_factory=dict)
    ready: dict[Entry, int] = field(default_factory=dict)
    contents: dict["Bucket[Any]", Contents[Any]] = field(default_factory=dict)
    open: dict["Bucket[Any]", dict[Entry, torch.Tensor | None]] = field(default_factory=dict)
    latest: Handle[Any] | None = None
    asked: Handle[list[torch.Tensor]] | None = None
    has_negotiated: bool = False
    has_begun: bool = False
    follows_reduced: bool = False

    @property
    def has_ready(self) -> bool:
        """Whether a gradient is complete."""
        return bool(self.ready) or any(contents.local for contents in self.contents.values())

    @property
    def handles(self) -> dict["Bucket[Any]", Handle[Any]]:
        """The handles of the buckets' submitted operations."""
        return {bucket: each.handle for bucket, each in self.contents.items() if each.handle is not None}

    def list_ready(self) -> Iterator[Entry]:
        """The entries with complete gradients; some occur twice."""
        return chain(self.ready, *(contents.local for contents in self.contents.values()))

    def open_contents(self, bucket: "Bucket[Any]") -> Contents[Any]:
        """The contents of a bucket, which are empty at first."""
        contents = self.contents.get(bucket)
        if contents is None:
            contents = self.contents[bucket] = bucket.make_contents(self.ready)
        return contents

    def find_local(self, entry: Entry) -> torch.Tensor | None:
        """The local gradient that the entry's bucket has; None where it has none."""
        contents = None
        if entry.bucket is not None:
            contents = self.contents.get(entry.bucket)
        if contents is None:
            return None
        return contents.local.get(entry)

    def restart(self) -> "Step":
        """A step with the same local gradients and nothing submitted, to reduce them again.

        What the previous step has reduced stays reduced: its commit round was done.
        """
        for entry in list(self.list_ready()):
            self.ready.setdefault(entry, entry.find_version())
        return Step(self.passes_left, self.ready, has_begun=self.has_begun, follows_reduced=self.follows_reduced)


class Bucket(ABC, Generic[ContentsT]):
    """Entries whose gradients are reduced together.

    In each step the gradients are taken, the operation is submitted and waited for, and the results are installed.

    Args:
        entries: at least one.
        number: the bucket's number, a part of the operation's name.
        note: a description that must be the same on all ranks.
    """

    make_contents: Callable[[dict[Entry, int]], ContentsT]  # creates the contents of a step, given its `ready`
    kind = "allreduce"  # the first part of the operation's name
    copies_each = False  # each gradient is copied when it is complete, instead of all together

    def __init__(self, entries: Sequence[Entry], number: int, note: str) -> None:
        self.entries = tuple(entries)
        self.is_on_cuda = any(entry.parameter.is_cuda for entry in entries)
        self._number = number
        self._note = note
        self._plain: Request | None = None
        self._noted: Request | None = None

    @property
    def part(self) -> str:
        """The operation's name, without the optimizer's: "allreduce.{}.bucket.3"."""
        return f"{self.kind}.{{}}.bucket.{self._number}"

    def note_stream(self, contents: ContentsT) -> None:
        """Note that a gradient is complete on the current stream; only where `is_on_cuda`."""
        contents.streams.add(torch.cuda.current_stream())

    def submit(
        self,
        comm: Communicator,
        contents: ContentsT,
        *,
        at_once: bool = False,
        is_awaited: bool = False,
        look: "Callable[[Bucket[Any], Contents[Any]], None] | None" = None,
    ) -> None:
        """Submit the operation, after all gradients were taken.

        Args:
            comm: the communicator.
            contents: the bucket's contents in this step.
            at_once: send the request immediately, as during backward.
            is_awaited: the caller waits for it next.
            look: examines the contents before the operation is created, which on a GPU may change what is sent from
                then on; None for no check.
        """
        # The operation waits for the current stream.
        while contents.streams:
            torch.cuda.current_stream().wait_stream(contents.streams.pop())
        self._pack(contents)
        if look is not None:
            look(self, contents)
        operation = self._make_operation(comm, contents, self.part.format(comm.name))
        request = operation.request
        if request != self._plain or self._noted is None:
            note = ", ".join(part for part in (request.signature.note, self._note) if part)
            self._plain, self._noted = request, request.add_note(note)
        operation.request = self._noted
        operation.is_of_step = True
        if contents.opened:
            ACCOUNT.end_fill(request.name, contents.opened)
        contents.handle = comm.engine.submit(operation, at_once=at_once, is_awaited=is_awaited)

    def finish(self, comm: Communicator, contents: ContentsT) -> None:
        """Wait for the submitted operation, and store its result.

        Args:
            comm: the communicator with which it was submitted.
            contents: the bucket's contents in this step.

        Raises:
            HorovodInternalError: the operation failed.
        """
        if contents.handle is not None:
            contents.result = comm.engine.wait(contents.handle)

    def refuse_changes(self, contents: ContentsT) -> None:
        """Check that the program has not changed gradients that were taken during backward.

        Raises:
            ChangedGradientError: the program has changed one.
        """
        if not self.copies_each and contents.handle is None:
            return
        for entry, gradient in contents.local.items():
            if entry.parameter.grad is not gradient or (
                gradient is not None and gradient._version != contents.ready[entry]  # noqa: SLF001 - torch has no public way
            ):
                raise ChangedGradientError(entry.name)

    def take(self, contents: ContentsT) -> None:
        """Take all gradients of the bucket as they are now, including the missing ones."""
        local = contents.local = {entry: entry.parameter.grad for entry in self.entries}
        contents.ready.update(
            {entry: gradient._version for entry, gradient in local.items() if gradient is not None}  # noqa: SLF001 - torch has no public way
        )

    def list_sent(self, contents: ContentsT) -> Sequence[torch.Tensor]:
        """Tensors that together have all values to send, before any compression of the user's."""
        return [values for _, values in self.pair_sent(contents)]

    def pair_sent(self, contents: ContentsT) -> Iterator[tuple[Entry, torch.Tensor]]:
        """Each entry that has a gradient, with its values to send."""
        del contents
        for entry in self.entries:
            values = find_values(entry)
            if values is not None:
                yield entry, values

    def copy_in(self, contents: ContentsT, entry: Entry) -> None:
        """Copy one complete gradient; only where `copies_each`."""
        raise NotImplementedError

    @abstractmethod
    def install(self, contents: ContentsT) -> None:
        """Replace the gradients by the results."""

    def _pack(self, contents: ContentsT) -> None:
        """Copy the gradients to the memory that is sent; nothing to do where that is their own."""

    @abstractmethod
    def _make_operation(self, comm: Communicator, contents: ContentsT, name: str) -> Operation[Any]:
        """Create the operation on the gradients that were taken."""
