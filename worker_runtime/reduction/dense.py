"""A bucket of dense gradients, which are reduced in place in one flat tensor (one for each dtype); and its memory.

A large gradient is copied into its part of the flat tensor by one multiplication, which also divides by the number of
ranks. In a static job the part then becomes the parameter's gradient, and autograd's tensor is dropped. In an elastic
job the local gradient stays until the step is complete, since it may have to be reduced again.

Small gradients are packed: one call of torch copies all gradients of a bucket when the last one is there, and one call
copies the results back. For small gradients a call costs more than a copy.

A gradient that a program sees is a separate tensor object that shares memory with the flat tensor. If the program gives
that tensor other memory or another shape, or makes it require gradients, the flat tensor is unaffected, as in plain
torch, where each step's gradient is new. So each use checks whether the gradient still shares its part's memory.

The next step uses the memory again only if nothing else holds it: a program that keeps `p.grad`, or a view of it, keeps
its values, as in plain torch.

The elements of a gradient are in the memory order of its parameter. So a parameter in another memory format
(channels_last) has a gradient of that format, which optimizers process fastest, and both copies are sequential. All
ranks must use the same order; it is part of the description that they compare.
"""

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import torch

from worker_runtime.collectives.allreduce import Allreduce
from worker_runtime.collectives.combination import Combination
from worker_runtime.coordination.operation import Operation
from worker_runtime.coordination.ordering.requests import Reduction
from worker_runtime.errors import GradientShapeError
from worker_runtime.reduction.bucket import Bucket, Contents, Entry, find_dtype
from worker_runtime.reduction.communicator import Communicator
from worker_runtime.reduction.settings import Settings

PACKED_BYTES = 16 * 1024  # a bucket is packed if its gradients' mean size is below this


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
    """Whether the elements fill the tensor's memory without gaps or overlaps, in some order of the dimensions."""
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
    """The memory order of the elements, as numbers that are equal where the order is."""
    strides = find_strides(parameter)
    return tuple(stride for stride, extent in zip(strides, parameter.shape, strict=True) if extent > 1)


@dataclass(frozen=True, slots=True)
class Part:
    """The part of a flat tensor for one parameter's gradient.

    dtype: the dtype in which the gradient is sent.
    """

    parameter: torch.Tensor
    dtype: torch.dtype


class Memory:
    """Flat tensors, one for each dtype and device of the gradients, and their views.

    Args:
        parts: the parameters of the gradients, with their dtypes.

    flats: the flat tensors, which are reduced.
    views: a view of each part, in its parameter's shape. Programs never get these views.
    """

    __slots__ = ("_own_holders", "_parts", "flats", "views")

    def __init__(self, parts: Sequence[Part]) -> None:
        self._parts = parts
        self.flats, self.views = _allocate(parts)
        self._own_holders = self._count_holders()

    @property
    def is_held(self) -> bool:
        """Whether the program holds tensors of this memory, other than the parameters' present gradients."""
        others = self._count_holders() - self._own_holders
        return others > 0 and others > self._count_gradients()

    @property
    def holds_gradients(self) -> bool:
        """Whether a parameter's present gradient uses this memory."""
        return self._count_holders() > self._own_holders and self._count_gradients() > 0

    def show(self, place: int) -> torch.Tensor:
        """A new tensor for the program that shares the memory of the part at `place`; for autograd it is not a view."""
        return self.views[place].data

    def _count_holders(self) -> int:
        """The number of tensors and other objects that share the flat tensors' memory."""
        return sum(
            torch._C._storage_Use_Count(flat.untyped_storage()._cdata)  # noqa: SLF001 - torch has no public way
            for flat in self.flats
        )

    def _count_gradients(self) -> int:
        return sum(lies_in(part.parameter.grad, view) for part, view in zip(self._parts, self.views, strict=True))


def lies_in(gradient: torch.Tensor | None, view: torch.Tensor) -> bool:
    """Whether a gradient shares the memory of `view`, with the same elements in the same order."""
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


@dataclass(slots=True, eq=False)
class DenseContents(Contents[list[torch.Tensor]]):
    """The contents of a dense bucket in one step.

    memory: its flat tensors.
    packed: the packed gradients; None for one that the result cannot overwrite.
    """

    memory: Memory | None = None
    packed: list[torch.Tensor | None] = field(default_factory=list)


class DenseBucket(Bucket[DenseContents]):
    """Gradients that are reduced as dense tensors. Sparse ones are made dense, and their results sparse again.

    Args:
        entries, number, note: see `Bucket`.
        settings: how the gradients are combined.
        comm: the communicator.
        sparse_dims: the number of sparse dimensions of each entry's result; 0 for a dense result.
    """

    make_contents = DenseContents

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
        # A tensor without dimensions is faster than a number, and does not change the result's dtype.
        self._before = None if before == 1.0 else torch.tensor(before, dtype=torch.float64, device="cpu")
        self._keeps = comm.is_elastic
        self._parts = [Part(entry.parameter, settings.choose_dtype(find_dtype(entry.parameter))) for entry in entries]
        self._places = {entry: place for place, entry in enumerate(self.entries)}
        self.copies_each = not _are_small(self._parts)
        self._forms = [(part.dtype, part.parameter.shape) for part in self._parts]
        self._sparse_dims = tuple(sparse_dims)
        self._memory: Memory | None = None
        self._spare: Memory | None = None

    def take(self, contents: DenseContents) -> None:
        """See `Bucket`; a missing gradient counts as zeros."""
        if not self.copies_each:
            super().take(contents)
            return
        for entry in self.entries:
            if entry not in contents.local:
                self.copy_in(contents, entry)

    def copy_in(self, contents: DenseContents, entry: Entry) -> None:
        """Copy the entry's gradient, or zeros, into the flat tensor.

        Raises:
            GradientShapeError: the gradient has another shape than its parameter had when the bucket was planned.
        """
        self._copy_scaled(contents, entry, self._before)
        contents.ready[entry] = entry.find_version()

    def _copy_scaled(self, contents: DenseContents, entry: Entry, factor: torch.Tensor | None) -> None:
        """Copy a gradient, multiplied by a factor, into the flat tensor; see `copy_in`."""
        memory, local = self._open(contents), contents.local
        place = self._places[entry]
        parameter = entry.parameter
        view, gradient = memory.views[place], parameter.grad
        local[entry] = gradient

        if gradient is None:
            view.zero_()
            return
        # Autograd has added to the result of an earlier step.
        if lies_in(gradient, view):
            if factor is not None:
                view.mul_(factor)
            return

        is_strided = gradient.layout is torch.strided
        has_graph = gradient.requires_grad  # from backward(create_graph=True): the program needs it unchanged
        source = gradient
        if has_graph:
            source = gradient.detach()
        if not is_strided:
            source = source.to_dense()
        if source.shape != view.shape:
            raise GradientShapeError(entry.name, source.shape, view.shape)

        if factor is None:
            view.copy_(source)
        else:
            torch.mul(source, factor, out=view)
        if is_strided and not (self._keeps or has_graph or view.dtype is not find_dtype(parameter)):
            local[entry] = parameter.grad = memory.show(place)

    def _pack(self, contents: DenseContents) -> None:
        """Copy all gradients that were taken into the flat tensors, and zeros for missing ones."""
        memory = self._open(contents)
        if self.copies_each:
            return  # each was copied when it was complete
        gradients = [contents.local.get(entry) for entry in self.entries]
        packed = contents.packed = [
            gradient if gradient is not None and _may_be_overwritten(gradient, *form) else None
            for gradient, form in zip(gradients, self._forms, strict=True)
        ]

        present = [gradient for gradient in packed if gradient is not None]
        if len(present) == len(packed):
            torch._foreach_copy_(memory.views, present)
        else:
            for entry, gradient, mine, view in zip(self.entries, gradients, packed, memory.views, strict=True):
                if mine is not None:
                    view.copy_(mine)
                elif gradient is None:
                    view.zero_()
                else:
                    self._copy_scaled(contents, entry, None)

        if self._before is not None:
            for flat in memory.flats:
                flat.mul_(self._before)

    def _unpack(self, contents: DenseContents, memory: Memory) -> list[int]:
        """Copy the results back to the packed gradients that still exist; return the places of the others."""
        gradients, views, others = [], [], []
        for place, (entry, gradient) in enumerate(zip(self.entries, contents.packed, strict=True)):
            if gradient is None or entry.parameter.grad is not gradient:
                others.append(place)
            else:
                gradients.append(gradient)
                views.append(memory.views[place])
        if gradients:
            torch._foreach_copy_(gradients, views)
        return others

    def install(self, contents: DenseContents) -> None:
        """Make each gradient its part of the flat tensor, or copy the values.

        Raises:
            GradientShapeError: the parameter has another shape than when the bucket was planned.
        """
        memory = self._open(contents)
        for place in range(len(self.entries)) if self.copies_each else self._unpack(contents, memory):
            entry, view = self.entries[place], memory.views[place]
            parameter = entry.parameter
            gradient = parameter.grad
            if gradient is None and not parameter.requires_grad:
                continue  # the parameter is frozen now
            if lies_in(gradient, view):
                continue
            if parameter.shape != view.shape:
                raise GradientShapeError(entry.name, view.shape, parameter.shape)

            dtype = find_dtype(parameter)
            if sparse_dims := self._sparse_dims[place]:
                parameter.grad = view.to(dtype).to_sparse(sparse_dims)
            elif view.dtype is dtype and view.device == parameter.device:
                parameter.grad = memory.show(place)
            elif gradient is None or not _may_be_overwritten(gradient, dtype, parameter.shape):
                parameter.grad = view.to(parameter.device, dtype)
            else:
                gradient.copy_(view)

    def finish(self, comm: Communicator, contents: DenseContents) -> None:
        """Wait for the operation, and multiply the result by the factor."""
        super().finish(comm, contents)
        if self._after != 1.0:
            for flat in self._open(contents).flats:
                flat.mul_(self._after)

    def list_sent(self, contents: DenseContents) -> Sequence[torch.Tensor]:
        """The flat tensors; see `Bucket`."""
        return self._open(contents).flats

    def pair_sent(self, contents: DenseContents) -> Iterator[tuple[Entry, torch.Tensor]]:
        """The parts of the flat tensors; see `Bucket`."""
        return zip(self.entries, self._open(contents).views, strict=True)

    def _make_operation(self, comm: Communicator, contents: DenseContents, name: str) -> Operation[list[torch.Tensor]]:
        flats = self._open(contents).flats
        return Allreduce(flats, self._how, comm.members, name, flats)

    def _open(self, contents: DenseContents) -> Memory:
        """The memory of this step: that of the last step, or if that is in use, a second one, in turns."""
        if contents.memory is not None:
            return contents.memory
        memory, spare = self._memory, None
        if memory is not None and self._is_in_use(memory):
            memory, spare = self._spare, memory
            if memory is not None and self._is_in_use(memory):
                memory = None
        if memory is None:
            memory = Memory(self._parts)
        self._memory, self._spare = memory, spare
        contents.memory = memory
        return memory

    def _is_in_use(self, memory: Memory) -> bool:
        """Whether the program holds the memory, or it has local gradients that must be kept."""
        return memory.is_held or (self._keeps and memory.holds_gradients)


def _are_small(parts: Sequence[Part]) -> bool:
    """Whether gradients are packed: they are small, and sent in their own dtype."""
    size = sum(part.parameter.numel() * part.dtype.itemsize for part in parts)
    return size < PACKED_BYTES * len(parts) and all(part.dtype is find_dtype(part.parameter) for part in parts)


def _may_be_overwritten(gradient: torch.Tensor, dtype: torch.dtype, shape: torch.Size) -> bool:
    """Whether the result can be written to the gradient's memory: same dtype and shape, dense, and without a graph."""
    return (
        gradient.layout is torch.strided
        and not gradient.requires_grad
        and gradient.dtype is dtype
        and gradient.shape == shape
        and is_dense(gradient)
    )
