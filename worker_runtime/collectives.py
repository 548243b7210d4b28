"""Every collective, once, on torch tensors; the framework packages only translate arrays.

What gloo does wrong or not at all is made right here: a tensor that is not contiguous goes through a copy (gloo would
overwrite its neighbours), dtypes without arithmetic travel as bytes, uneven gathers are padded. What is wrong with a
call on this rank alone is said before anything is sent; disagreement between ranks is not noticed here.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import torch
import torch.distributed as dist

from worker_runtime.executor import Executor, Handle, Operation, await_work
from worker_runtime.group import TorchGroup, Work


class Reduction(IntEnum):
    """How an allreduce combines the ranks' values; the numbers are Horovod's."""

    AVERAGE = 0
    SUM = 1
    MIN = 3
    MAX = 4
    PRODUCT = 5


@dataclass(frozen=True, slots=True)
class Combination:
    """A reduction, and factors before and after it; those of integers apply in float64, truncated toward zero."""

    reduction: Reduction = Reduction.AVERAGE
    prescale: float = 1.0
    postscale: float = 1.0


AVERAGE = Combination()

_FLOATS = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64})
_INTEGERS = frozenset({torch.int8, torch.uint8, torch.int32, torch.int64})
_COMPLEX = frozenset({torch.complex64, torch.complex128})
_REDUCIBLE = {
    Reduction.AVERAGE: _FLOATS | _INTEGERS | _COMPLEX,
    Reduction.SUM: _FLOATS | _INTEGERS | _COMPLEX,
    Reduction.MIN: _FLOATS | _INTEGERS | {torch.bool},
    Reduction.MAX: _FLOATS | _INTEGERS | {torch.bool},
    Reduction.PRODUCT: _FLOATS | _INTEGERS,
}
_TORCH_OPERATIONS = {
    Reduction.AVERAGE: dist.ReduceOp.SUM,
    Reduction.SUM: dist.ReduceOp.SUM,
    Reduction.MIN: dist.ReduceOp.MIN,
    Reduction.MAX: dist.ReduceOp.MAX,
    Reduction.PRODUCT: dist.ReduceOp.PRODUCT,
}


class Allreduce(Operation[torch.Tensor]):
    """Combine tensors of one shape and dtype, elementwise, over all ranks.

    Args:
        tensor: dense CPU tensor of any shape, also of no elements; its values are left alone.
        how: how to combine. The average of integers is their exact sum divided by the size, truncated toward zero; a
            sum or product of integers may wrap around.
        name: how messages call it.
        into: where the result goes, a tensor of the same shape and dtype (it may be `tensor`); None makes a new one.

    Raises:
        ValueError: this dtype has no such reduction, or the tensor is sparse or not on the CPU.
    """

    def __init__(
        self,
        tensor: torch.Tensor,
        how: Combination,
        name: str | None = None,
        into: torch.Tensor | None = None,
    ) -> None:
        self.title = _title("allreduce", name)
        reduction = how.reduction
        _check_storage(self.title, tensor)
        if tensor.dtype not in _REDUCIBLE[reduction]:
            raise ValueError(f"{self.title}: tensors of {tensor.dtype} have no {reduction.name.lower()}; convert them")
        if tensor.dtype == torch.bool and (how.prescale != 1.0 or how.postscale != 1.0):
            raise ValueError(f"{self.title}: truth values cannot be scaled")
        self._how = how
        self._shape, self._dtype = tensor.shape, tensor.dtype
        self._into = None if into is None else into.detach()
        source = tensor.detach()
        buffer = _make_rows(source)
        if reduction is Reduction.AVERAGE and tensor.dtype in _INTEGERS:
            buffer = buffer.to(torch.int64)  # so that the sum is exact
        if how.prescale != 1.0:
            buffer = _scale(buffer, how.prescale)
        is_in_place = self._into is not None and self._into.is_set_to(source)
        if buffer.data_ptr() == source.data_ptr() and not is_in_place:
            buffer = buffer.clone()
        self._buffer = buffer

    def start(self, group: TorchGroup, size: int) -> Sequence[Work]:
        """Reduce the buffer in place."""
        del size
        return (group.allreduce(self._buffer, _TORCH_OPERATIONS[self._how.reduction]),)

    def finish(self, size: int) -> torch.Tensor:
        """Divide, scale, and put the result where it was asked for."""
        result = self._buffer
        if self._how.reduction is Reduction.AVERAGE and size > 1:
            if result.dtype in _INTEGERS:
                result = torch.div(result, size, rounding_mode="trunc")
            else:
                result.div_(size)
        if self._how.postscale != 1.0:
            result = _scale(result, self._how.postscale)
        result = result.to(self._dtype).view(self._shape)
        if self._into is None:
            return result
        if self._into.data_ptr() != result.data_ptr() or not self._into.is_contiguous():
            self._into.copy_(result)
        return self._into


class Broadcast(Operation[torch.Tensor]):
    """Give every rank the root's values, in place.

    Args:
        tensor: dense CPU tensor, of the same shape and dtype on all ranks, of any dtype; overwritten except on the
            root.
        root: the root's rank.
        rank, size: of this worker.
        name: how messages call it.

    Raises:
        ValueError: there is no such root, or the tensor is sparse or not on the CPU.
    """

    def __init__(self, tensor: torch.Tensor, root: int, rank: int, size: int, name: str | None = None) -> None:
        self.title = _title("broadcast", name)
        _check_storage(self.title, tensor)
        check_root(self.title, root, size)
        self._root = root
        self._is_root = rank == root
        self._tensor = tensor.detach()
        self._buffer = _make_rows(self._tensor)

    def start(self, group: TorchGroup, size: int) -> Sequence[Work]:
        """Send or receive the bytes."""
        del size
        if not self._buffer.numel():
            return ()
        return (group.broadcast(_view_bytes(self._buffer), self._root),)

    def finish(self, size: int) -> torch.Tensor:
        """Copy back what travelled through a copy."""
        del size
        if not self._is_root and not self._buffer.is_set_to(self._tensor):
            self._tensor.copy_(self._buffer)
        return self._tensor


class Allgather(Operation[list[torch.Tensor]]):
    """Give every rank the tensors of all ranks, in rank order.

    Starting it waits for all ranks, since the number of rows of each must be known first.

    Args:
        tensor: dense CPU tensor of at least one dimension, of any dtype; the first dimension may differ between ranks,
            and be zero, the others must not.
        name: how messages call it.

    Raises:
        ValueError: the tensor has no dimension, is sparse, or is not on the CPU.
    """

    def __init__(self, tensor: torch.Tensor, name: str | None = None) -> None:
        self.title = _title("allgather", name)
        _check_storage(self.title, tensor)
        if tensor.dim() == 0:
            raise ValueError(
                f"{self.title}: a tensor without dimensions cannot be gathered; give it one (x.reshape(1))"
            )
        self._tensor = _make_rows(tensor.detach())
        self._rows: list[int] = []
        self._received: list[torch.Tensor] = []

    def start(self, group: TorchGroup, size: int) -> Sequence[Work]:
        """Exchange the numbers of rows, then the rows, padded to the greatest number."""
        mine = torch.tensor([self._tensor.shape[0]], dtype=torch.int64)
        counts = [torch.empty_like(mine) for _ in range(size)]
        await_work(group.allgather(counts, mine))
        self._rows = [int(count) for count in counts]
        row_shape = self._tensor.shape[1:]
        most = max(self._rows)
        if most * math.prod(row_shape) == 0:
            return ()
        padded = self._tensor
        if padded.shape[0] != most:
            padded = padded.new_zeros((most, *row_shape))
            padded[: self._tensor.shape[0]] = self._tensor
        self._received = [torch.empty_like(padded) for _ in range(size)]
        return (group.allgather([_view_bytes(part) for part in self._received], _view_bytes(padded)),)

    def finish(self, size: int) -> list[torch.Tensor]:
        """Cut the padding off."""
        if size == 1:
            return [self._tensor.clone()]
        if not self._received:
            return [self._tensor.new_empty((rows, *self._tensor.shape[1:])) for rows in self._rows]
        return [part[:rows] for part, rows in zip(self._received, self._rows, strict=True)]


class Barrier(Operation[None]):
    """Wait until all ranks have come here."""

    title = "barrier"

    def start(self, group: TorchGroup, size: int) -> Sequence[Work]:
        """Knock."""
        del size
        return (group.barrier(),)

    def finish(self, size: int) -> None:
        """Nothing is left to do."""


def allreduce_async(
    executor: Executor,
    tensor: torch.Tensor,
    how: Combination,
    name: str | None = None,
    into: torch.Tensor | None = None,
) -> Handle[torch.Tensor]:
    """Start an `Allreduce`; its tensors must be left alone until the handle was waited for."""
    return executor.submit(Allreduce(tensor, how, name, into))


def broadcast_async(
    executor: Executor, tensor: torch.Tensor, root: int, name: str | None = None
) -> Handle[torch.Tensor]:
    """Start a `Broadcast` into `tensor`, which must be left alone until the handle was waited for."""
    return executor.submit(Broadcast(tensor, root, executor.rank, executor.size, name))


def allgather(executor: Executor, tensor: torch.Tensor, name: str | None = None) -> list[torch.Tensor]:
    """Run an `Allgather`: the ranks' tensors, in rank order."""
    return executor.submit(Allgather(tensor, name)).wait()


def wait_at_barrier(executor: Executor) -> None:
    """Run a `Barrier`."""
    executor.submit(Barrier()).wait()


def check_root(title: str, root: int, size: int) -> None:
    """Raise ValueError unless `root` is a rank."""
    if not 0 <= root < size:
        raise ValueError(f"{title}: received invalid root rank {root}; ranks are 0 to {size - 1}")


def _title(kind: str, name: str | None) -> str:
    return kind if name is None else f"{kind} '{name}'"


def _check_storage(title: str, tensor: torch.Tensor) -> None:
    if tensor.layout != torch.strided:
        raise ValueError(f"{title}: sparse tensors are not supported; make it dense (x.to_dense())")
    if tensor.device.type != "cpu":
        raise ValueError(f"{title}: tensors on {tensor.device} are not supported; move it to the CPU (x.cpu())")


def _make_rows(tensor: torch.Tensor) -> torch.Tensor:
    """The values in row-major order, as all ranks have them whatever their strides; shares memory where it can."""
    return tensor.resolve_conj().resolve_neg().contiguous()


def _view_bytes(rows: torch.Tensor) -> torch.Tensor:
    """The memory of a contiguous tensor as one row of bytes: gloo refuses some dtypes, and needs none to copy."""
    return rows.view(-1).view(torch.uint8)


def _scale(tensor: torch.Tensor, factor: float) -> torch.Tensor:
    """Multiply: integers in float64 and truncated, half precision in single, others in their own."""
    if tensor.dtype in _INTEGERS:
        return (tensor.to(torch.float64) * factor).trunc().to(tensor.dtype)
    if tensor.dtype in (torch.float16, torch.bfloat16):
        return (tensor.to(torch.float32) * factor).to(tensor.dtype)
    return tensor * factor
