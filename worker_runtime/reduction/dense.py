"""A bucket of dense gradients: one flat tensor, or one for each dtype, reduced in place; and its memory.

A large gradient is brought into its part of the flat tensor by a single multiplication, which also makes the average:
then nothing is left to do but to add. In a job that ends with its workers the part takes the gradient's place,
and autograd's own tensor is dropped. In one that outlives them the local gradient stays as it was until the step is
committed, since it may have to be reduced again.

Small gradients are packed: one call of torch copies all of a bucket, when the last one is there, and one call copies
the results back. For them a call costs more than a copy.

A gradient that a user sees shares a part of the flat tensor, as a tensor of its own: what a program does with that
tensor (gives it other memory, another shape, lets it require gradients) happens to it alone, as in plain torch, where
each step's gradient is new. So whether a gradient lies in its part is looked up each time, in the tensor itself.

Memory is used again in the next step only if nothing else holds it: a program that has kept `p.grad`, or a view of it,
keeps its values, as it does in plain torch.

The elements of a gradient lie in the order of its parameter's own memory. A parameter in another memory format
(channels_last) then has a gradient in that format, which is what optimizers are fastest with, and both copies run
through memory in order. All ranks must have it so: it is part of the description that they compare.

Long because a bucket and its memory share one story.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch

from worker_runtime.collectives.allreduce import Allreduce
from worker_runtime.collectives.combination import Combination
from worker_runtime.coordination.operation import Operation
from worker_runtime.coordination.ordering.questions import Reduction
from worker_runtime.errors import GradientShapeError
from worker_runtime.reduction.bucket import Bucket, Entry, Step
from worker_runtime.reduction.communicator import Communicator
from worker_runtime.reduction.settings import Settings

PACKED_BYTES = 16 * 1024  # gradients that are smaller in the mean are packed


def find_strides(parameter: torch.Tensor) -> tuple[int, ...]:
    """The parameter's own strides where its elements fill its memory without gaps; else those of row-major order."""
    if is_dense(parameter):
        return parameter.stride()
    strides = []
    step = 1
    for extent in reversed(parameter.shape):
        strides.append(step)
        step *= max(extent, 1)
    return tuple(reversed(strides))


def is_dense(tensor: torch.Tensor) -> bool:
    """Its elements lie one after the other in some order of the dimensions, each at a place of its own."""
    if tensor.is_contiguous():
        return True
    step = 1
    for stride, extent in sorted(
        (stride, extent) for stride, extent in zip(tensor.stride(), tensor.shape, strict=True) if extent > 1
    ):
        if stride != step:
            return False
        step *= extent
    return True


def describe_order(parameter: torch.Tensor) -> tuple[int, ...]:
    """In which order the elements travel, in numbers that are alike where the order is."""
    strides = find_strides(parameter)
    return tuple(stride for stride, extent in zip(strides, parameter.shape, strict=True) if extent > 1)


@dataclass(frozen=True, slots=True)
class Part:
    """Where one parameter's gradient lies.

    dtype: as what it travels.
    """

    parameter: torch.Tensor
    dtype: torch.dtype


class Memory:
    """Flat tensors, one for each kind (dtype and device) of gradient, and their views.

    flats: what travels.
    views: of each part, in its parameter's shape. They are never handed to a program.
    """

    __slots__ = ("_own_holders", "_parts", "flats", "views")

    def __init__(self, parts: Sequence[Part]) -> None:
        self._parts = parts
        self.flats, self.views = _allocate(parts)
        self._own_holders = self._count_holders()

    @property
    def is_held(self) -> bool:
        """Whether somebody else would see it change: a gradient in its place in a parameter does not count."""
        others = self._count_holders() - self._own_holders
        return others > 0 and others > self._count_gradients()

    @property
    def holds_gradients(self) -> bool:
        """Whether a parameter's present gradient lies in it."""
        return self._count_holders() > self._own_holders and self._count_gradients() > 0

    def show(self, place: int) -> torch.Tensor:
        """A tensor for the user that shares the part at `place`. It is new, and no view as autograd knows them."""
        return self.views[place].data

    def _count_holders(self) -> int:
        """How many tensors and other objects share the flat tensors' memory."""
        return sum(
            torch._C._storage_Use_Count(flat.untyped_storage()._cdata)  # noqa: SLF001 - torch's only way to tell
            for flat in self.flats
        )

    def _count_gradients(self) -> int:
        return sum(lies_in(part.parameter.grad, view) for part, view in zip(self._parts, self.views, strict=True))


def lies_in(gradient: torch.Tensor | None, view: torch.Tensor) -> bool:
    """Whether a gradient has the elements of `view`, in the same memory and order."""
    return (
        gradient is not None
        and gradient.layout is torch.strided
        and gradient.dtype is view.dtype
        and gradient.is_set_to(view)
        and gradient.is_conj() == view.is_conj()
        and gradient.is_neg() == view.is_neg()
    )


def _allocate(parts: Sequence[Part]) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """The flat tensors, and the view of each part."""
    kinds: dict[Hashable, list[int]] = {}
    for index, part in enumerate(parts):
        kinds.setdefault((part.dtype, part.parameter.device), []).append(index)
    flats: list[torch.Tensor] = []
    views: dict[int, torch.Tensor] = {}
    for indices in kinds.values():
        parameters = [parts[index].parameter for index in indices]
        offsets = list(accumulate((parameter.numel() for parameter in parameters), initial=0))
        flat = torch.zeros(offsets[-1], dtype=parts[indices[0]].dtype, device=parameters[0].device)
        flats.append(flat)
        for index, parameter, offset in zip(indices, parameters, offsets, strict=False):
            views[index] = flat.as_strided(parameter.shape, find_strides(parameter), offset)
    return flats, [views[index] for index in range(len(parts))]


class DenseBucket(Bucket):
    """Gradients that travel as dense tensors; sparse ones are made dense, and their results sparse again.

    Args:
        entries, number, note: as for every bucket.
        settings: how to combine.
        comm: among whom.
        sparse_dims: of each entry, how many sparse dimensions the result shall have; 0 for a dense one.
    """

    def __init__(
        self,
        entries: Sequence[Entry],
        number: int,
        note: str,
        *,
        settings: Settings,
        comm: Communicator,
        sparse_dims: Sequence[int],
    ) -> None:
        super().__init__(entries, number, note)
        reduction = settings.how.reduction
        self._how = Combination(Reduction.SUM if reduction is Reduction.AVERAGE else reduction)
        before, self._after = settings.find_factors(comm.members.size)
        # As a tensor without dimensions: torch takes it faster than a number, and its dtype changes no other's.
        self._before = None if before == 1.0 else torch.tensor(before, dtype=torch.float64, device="cpu")
        self._keeps = comm.is_elastic
        self._parts = [Part(entry.parameter, settings.choose_dtype(entry.parameter.dtype)) for entry in entries]
        self._places = {entry: place for place, entry in enumerate(self.entries)}
        self.copies_each = not _are_small(self._parts)
        self._forms = [(part.dtype, part.parameter.shape) for part in self._parts]
        self._sparse_dims = tuple(sparse_dims)
        self._memory: Memory | None = None
        self._spare: Memory | None = None

    def take(self, step: Step) -> None:
        """See `Bucket`; for those that are missing there are zeros."""
        if not self.copies_each:
            super().take(step)
            return
        local = step.local.setdefault(self, {})
        for entry in self.entries:
            if entry not in local:
                self.copy_in(step, entry)

    def copy_in(self, step: Step, entry: Entry) -> None:
        """Bring its gradient, or zeros, into the flat tensor.

        Raises:
            GradientShapeError: the gradient is not of the shape that its parameter had when the bucket was planned.
        """
        self._bring(step, entry, self._before)
        step.ready[entry] = entry.find_version()

    def _bring(self, step: Step, entry: Entry, factor: torch.Tensor | None) -> None:
        """Bring a gradient, multiplied by a factor, into the flat tensor; see `copy_in`."""
        memory, local = self._open(step), step.local.setdefault(self, {})
        place = self._places[entry]
        parameter = entry.parameter
        view, gradient = memory.views[place], parameter.grad
        local[entry] = gradient
        if gradient is None:
            view.zero_()
            return
        if lies_in(gradient, view):  # autograd has added to the result of an earlier step
            if factor is not None:
                view.mul_(factor)
            return
        is_strided = gradient.layout is torch.strided
        has_graph = gradient.requires_grad  # of backward(create_graph=True): the user needs it as it is
        source = gradient.detach() if has_graph else gradient
        if not is_strided:
            step.sparse_dims[entry] = gradient.sparse_dim()
            source = source.to_dense()
        if source.shape != view.shape:
            raise GradientShapeError(entry.name, source.shape, view.shape)
        if factor is None:
            view.copy_(source)
        else:
            torch.mul(source, factor, out=view)
        if is_strided and not (self._keeps or has_graph or view.dtype is not parameter.dtype):
            local[entry] = parameter.grad = memory.show(place)

    def _pack(self, step: Step, memory: Memory) -> None:
        """Bring all gradients that were taken into the flat tensors, and zeros for those that are missing."""
        local = step.local.get(self, {})
        gradients = [local.get(entry) for entry in self.entries]
        packed: list[Any] = [
            gradient if gradient is not None and _may_be_overwritten(gradient, *form) else None
            for gradient, form in zip(gradients, self._forms, strict=True)
        ]
        if all(gradient is not None for gradient in packed):
            torch._foreach_copy_(memory.views, packed)
        else:
            for entry, gradient, mine, view in zip(self.entries, gradients, packed, memory.views, strict=True):
                if mine is not None:
                    view.copy_(mine)
                elif gradient is None:
                    view.zero_()
                else:
                    self._bring(step, entry, None)
        if self._before is not None:
            for flat in memory.flats:
                flat.mul_(self._before)
        step.contexts[self] = packed

    def _unpack(self, step: Step) -> list[int]:
        """Bring results to the gradients that were packed, and are still there; the places of the others."""
        gradients, views = step.contexts[self], step.memories[self].views
        others = [
            place
            for place, (entry, gradient) in enumerate(zip(self.entries, gradients, strict=True))
            if gradient is None or entry.parameter.grad is not gradient
        ]
        if others:
            left = sorted({*range(len(views))}.difference(others))
            gradients, views = [gradients[place] for place in left], [views[place] for place in left]
        if gradients:
            torch._foreach_copy_(gradients, views)
        return others

    def install(self, step: Step) -> None:
        """Let each gradient be its part of the flat tensor, or have its values.

        Raises:
            GradientShapeError: the parameter has got another shape in the meantime.
        """
        memory: Memory = step.memories[self]
        for place in range(len(self.entries)) if self.copies_each else self._unpack(step):
            entry, view = self.entries[place], memory.views[place]
            parameter = entry.parameter
            gradient = parameter.grad
            if gradient is None and not parameter.requires_grad:
                continue  # frozen in the meantime
            if lies_in(gradient, view):
                continue
            if parameter.shape != view.shape:
                raise GradientShapeError(entry.name, view.shape, parameter.shape)
            if sparse_dims := step.sparse_dims.get(entry, self._sparse_dims[place]):
                parameter.grad = view.to(parameter.dtype).to_sparse(sparse_dims)
            elif view.dtype is parameter.dtype and view.device == parameter.device:
                parameter.grad = memory.show(place)
            elif gradient is None or not _may_be_overwritten(gradient, parameter.dtype, parameter.shape):
                parameter.grad = view.to(parameter.device, parameter.dtype)
            else:
                gradient.copy_(view)

    def finish(self, comm: Communicator, step: Step) -> None:
        """Wait for the operation, and multiply."""
        super().finish(comm, step)
        if self._after != 1.0:
            for flat in step.memories[self].flats:
                flat.mul_(self._after)

    def _make_operation(self, comm: Communicator, step: Step, name: str) -> Operation[list[torch.Tensor]]:
        memory = self._open(step)
        if not self.copies_each:
            self._pack(step, memory)
        flats = memory.flats
        return Allreduce(flats, self._how, comm.members, name, flats)

    def _open(self, step: Step) -> Memory:
        """The step's memory: that of the last one, unless it must not change any more; then two take turns."""
        memory: Memory | None = step.memories.get(self)
        if memory is not None:
            return memory
        memory, spare = self._memory, None
        if memory is not None and self._is_in_use(memory):
            memory, spare = self._spare, memory
            if memory is not None and self._is_in_use(memory):
                memory = None
        if memory is None:
            memory = Memory(self._parts)
        self._memory, self._spare = memory, spare
        step.memories[self] = memory
        return memory

    def _is_in_use(self, memory: Memory) -> bool:
        """Whether a program still looks at it, or the local gradients lie in it, which are to be kept."""
        return memory.is_held or (self._keeps and memory.holds_gradients)


def _are_small(parts: Sequence[Part]) -> bool:
    """Whether gradients are packed: none changes its dtype on the way."""
    size = sum(part.parameter.numel() * part.dtype.itemsize for part in parts)
    return size < PACKED_BYTES * len(parts) and all(part.dtype is part.parameter.dtype for part in parts)


def _may_be_overwritten(gradient: torch.Tensor, dtype: torch.dtype, shape: torch.Size) -> bool:
    """Whether a gradient's own memory can have the result: it has the parameter's form, and no graph."""
    return (
        gradient.layout is torch.strided
        and not gradient.requires_grad
        and gradient.dtype is dtype
        and gradient.shape == shape
        and is_dense(gradient)
    )
