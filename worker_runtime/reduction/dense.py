"""A bucket of dense gradients: one flat tensor, or one for each dtype, reduced in place.

A large gradient is brought into its part of the flat tensor by a single multiplication, which also makes the average:
then nothing is left to do but to add. In a job that ends with its workers the part takes the gradient's place at once,
and autograd's own tensor is dropped. In one that outlives them the local gradient stays as it was until the step is
committed, since it may have to be reduced again.

Small gradients are packed: one call of torch copies all of a bucket, when the last one is there, and one call copies
the results back. For them a call costs more than a copy.

Another framework's gradients have their places in its own memory, and no tensor of ours can take one. So the large ones
are handed to the group as they are, and only small ones are packed. In a job that outlives its workers the results are
new tensors, which whoever drives the reducer copies to their places afterwards.
"""

from collections.abc import Collection, Sequence

import torch

from worker_runtime.collectives import Allreduce, Combination, Reduction
from worker_runtime.coordination.operation import Operation
from worker_runtime.errors import GradientShapeError
from worker_runtime.reduction.bucket import Bucket, Entry
from worker_runtime.reduction.communicator import Communicator
from worker_runtime.reduction.memory import Memory, Part, is_dense, lies_in
from worker_runtime.reduction.settings import Settings

PACKED_BYTES = 16 * 1024  # gradients that are smaller in the mean are packed


class InPlaceBucket(Bucket):
    """Dense gradients that travel in their own dtype.

    Args:
        entries, number, note: as for every bucket.
        settings: how to combine.
        comm: among whom.
    """

    def __init__(
        self, entries: Sequence[Entry], number: int, note: str, settings: Settings, comm: Communicator
    ) -> None:
        super().__init__(entries, number, note)
        reduction = settings.how.reduction
        factors = settings.find_factors(comm.members.size)
        self._how = Combination(Reduction.SUM if reduction is Reduction.AVERAGE else reduction, *factors)
        self._keeps = comm.is_elastic
        self._results: list[torch.Tensor] = []

    def take(self, entry: Entry) -> None:
        """It travels when all are there."""
        entry.kept = entry.parameter.grad

    def refuse_changes(self) -> None:
        """They change while they travel."""

    def _give(self) -> None:
        """Let the results be the gradients; most of them are already."""
        for entry, result in zip(self.entries, self._results, strict=True):
            parameter = entry.parameter
            if parameter.grad is not result and (parameter.requires_grad or parameter.grad is not None):
                parameter.grad = result

    def reset(self) -> None:
        """Forget the step."""
        super().reset()
        self._results = []

    def _make_operation(self, comm: Communicator, name: str) -> Operation[list[torch.Tensor]]:
        gradients = [_find_gradient(entry.parameter) for entry in self.entries]
        return Allreduce(gradients, self._how, comm.members, name, None if self._keeps else gradients)

    def _receive(self, result: list[torch.Tensor]) -> None:
        self._results = result


def _find_gradient(parameter: torch.Tensor) -> torch.Tensor:
    """The parameter's gradient, or zeros."""
    gradient = parameter.grad
    return (
        torch.zeros(parameter.shape, dtype=parameter.dtype, device=parameter.device) if gradient is None else gradient
    )


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
        self._packs = _are_small(self._parts)
        self._packed: list[tuple[Entry, torch.Tensor, torch.Tensor]] = []  # with gradient and view
        self._agreed_dims = tuple(sparse_dims)
        self._sparse_dims = list(sparse_dims)
        self._memory: Memory | None = None
        self._spare: Memory | None = None
        self._is_open = False

    def take(self, entry: Entry) -> None:
        """Bring its gradient, or zeros, into the flat tensor; a small one travels when all are there.

        Raises:
            GradientShapeError: the gradient is not of the shape that its parameter had when the bucket was planned.
        """
        if self._packs:
            entry.kept = entry.parameter.grad
        else:
            self._bring(entry, self._before)

    def _bring(self, entry: Entry, factor: torch.Tensor | None) -> None:
        """Bring a gradient, multiplied by a factor, into the flat tensor; see `take`."""
        memory = self._open()
        place = self._places[entry]
        parameter = entry.parameter
        view, gradient = memory.views[place], parameter.grad
        if gradient is None:
            view.zero_()
            return
        entry.kept = gradient
        if lies_in(gradient, view):  # autograd has added to the result of an earlier step
            if factor is not None:
                view.mul_(factor)
            return
        is_strided = gradient.layout is torch.strided
        has_graph = gradient.requires_grad  # of backward(create_graph=True): the user needs it as it is
        source = gradient.detach() if has_graph else gradient
        if not is_strided:
            self._sparse_dims[place] = gradient.sparse_dim()
            source = source.to_dense()
        if source.shape != view.shape:
            raise GradientShapeError(entry.name, source.shape, view.shape)
        if factor is None:
            view.copy_(source)
        else:
            torch.mul(source, factor, out=view)
        if is_strided and not (self._keeps or has_graph or view.dtype is not parameter.dtype):
            entry.kept = parameter.grad = memory.show(place)

    def _pack(self, memory: Memory) -> None:
        """Bring all gradients that were taken into the flat tensors, and zeros for those that are missing."""
        for entry, view in zip(self.entries, memory.views, strict=True):
            gradient = entry.kept
            if gradient is None:
                view.zero_()
            elif _may_be_overwritten(gradient, view):
                self._packed.append((entry, gradient, view))
            else:
                self._bring(entry, None)
        if self._packed:
            _, gradients, views = zip(*self._packed, strict=True)
            torch._foreach_copy_(views, gradients)
        if self._before is not None:
            for flat in memory.flats:
                flat.mul_(self._before)

    def _unpack(self) -> Collection[Entry]:
        """Bring results to the gradients that were packed, and are still there; to which."""
        packed = [found for found in self._packed if found[0].parameter.grad is found[1]]
        if self._keeps or not packed:
            return ()
        entries, gradients, views = zip(*packed, strict=True)
        torch._foreach_copy_(gradients, views)
        return frozenset(entries)

    def _give(self) -> None:
        """Let each gradient be its part of the flat tensor, or have its values.

        Raises:
            GradientShapeError: the parameter has got another shape in the meantime.
        """
        memory = self._open()
        unpacked = self._unpack()
        for place, entry in enumerate(self.entries) if len(unpacked) < len(self.entries) else ():
            if entry in unpacked:
                continue
            parameter, view = entry.parameter, memory.views[place]
            gradient = parameter.grad
            if gradient is None and not parameter.requires_grad:
                continue  # frozen in the meantime
            if lies_in(gradient, view):
                continue
            if parameter.shape != view.shape:
                raise GradientShapeError(entry.name, view.shape, parameter.shape)
            if self._sparse_dims[place]:
                parameter.grad = view.to(parameter.dtype).to_sparse(self._sparse_dims[place])
            elif view.dtype is parameter.dtype and view.device == parameter.device:
                parameter.grad = memory.show(place)
            elif self._keeps or gradient is None or not _may_be_overwritten(gradient, parameter):
                parameter.grad = view.to(parameter.device, parameter.dtype)
            else:
                gradient.copy_(view)

    def reset(self) -> None:
        """Forget the step."""
        super().reset()
        self._is_open = False
        self._packed = []
        self._sparse_dims = list(self._agreed_dims)

    def _make_operation(self, comm: Communicator, name: str) -> Operation[list[torch.Tensor]]:
        memory = self._open()
        if self._packs:
            self._pack(memory)
        flats = memory.flats
        return Allreduce(flats, self._how, comm.members, name, flats)

    def _receive(self, result: list[torch.Tensor]) -> None:
        if self._after != 1.0:
            for flat in result:
                flat.mul_(self._after)

    def _open(self) -> Memory:
        """The step's memory: that of the last one, unless it must not change any more; then two take turns."""
        memory = self._memory
        if memory is not None and self._is_open:
            return memory
        self._is_open = True
        spare = None
        if memory is not None and self._is_in_use(memory):
            memory, spare = self._spare, memory
            if memory is not None and self._is_in_use(memory):
                memory = None
        if memory is None:
            memory = Memory(self._parts)
        self._memory, self._spare = memory, spare
        return memory

    def _is_in_use(self, memory: Memory) -> bool:
        """Whether a program still looks at it, or the local gradients lie in it, which are to be kept."""
        return memory.is_held or (self._keeps and memory.holds_gradients)


def _are_small(parts: Sequence[Part]) -> bool:
    """Whether gradients are packed: none changes its dtype on the way."""
    size = sum(part.parameter.numel() * part.dtype.itemsize for part in parts)
    return size < PACKED_BYTES * len(parts) and all(part.dtype is part.parameter.dtype for part in parts)


def _may_be_overwritten(gradient: torch.Tensor, parameter: torch.Tensor) -> bool:
    """Whether a gradient's own memory can have the result: it has the parameter's form, and no graph."""
    return (
        gradient.layout is torch.strided
        and not gradient.requires_grad
        and gradient.dtype is parameter.dtype
        and gradient.shape == parameter.shape
        and is_dense(gradient)
    )
