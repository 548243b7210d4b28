"""Reducescatter: combines tensors over the ranks of a set, and gives each rank its part of the rows."""

from collections.abc import Iterable, Sequence
from functools import lru_cache

import torch

from worker_runtime.collectives.buffers import copy, count_bytes, make_rows, view_bytes
from worker_runtime.collectives.combination import Combination, check_combination, conclude_, scale_
from worker_runtime.collectives.dtypes import choose_sum
from worker_runtime.collectives.tensor_operation import TensorOperation, check_rows, make_error, make_signature
from worker_runtime.coordination.operation import Members
from worker_runtime.coordination.ordering.requests import Kind, Reduction, Release, Request, Signature
from worker_runtime.groups.torch_groups import TorchGroup, Work


class Reducescatter(TensorOperation[list[torch.Tensor]]):
    """Combines tensors elementwise over all ranks. Each rank gets its part of the rows, in rank order.

    Where the rows cannot be divided evenly, the first ranks get one row more. The result is a list of new tensors, in
    the order of the call. Several tensors are one operation, and are sent together.

    The parts are exchanged by an alltoall, and each rank combines its own: gloo's reducescatter reduces everything on
    every rank, and is several times slower. Values are combined in rank order, float16, bfloat16 and integers in a
    wider dtype.

    Args:
        tensors: at least one dense tensor of at least one dimension, of the same shapes and dtypes on all ranks.
        how: the reduction (not ADASUM) and the factors.
        among: the ranks.
        name: the full name, the same on all ranks.

    Raises:
        ValueError: a dtype does not support the reduction; bool would be scaled; a tensor has no dimension, is sparse,
            or is on another device than the first or on an unsupported one.
    """

    def __init__(self, tensors: Sequence[torch.Tensor], how: Combination, among: Members, name: str) -> None:
        device = self._begin(name, among, tensors)
        check_rows(name, tensors)
        try:
            signature = _make_signature(
                tuple([tensor.dtype for tensor in tensors]), tuple([tensor.shape for tensor in tensors]), how, device
            )
        except ValueError as error:
            raise make_error(name, str(error)) from None
        self.request = Request(among.number, name, signature, how.factors)
        self._tensors = tuple(tensors)
        self._how = how
        self._parts = [divide_rows(tensor.shape[0], among.size) for tensor in tensors]
        self._sent: torch.Tensor | None = None
        self._received: torch.Tensor | None = None

    def _communicate(self, group: TorchGroup, release: Release) -> Sequence[Work]:
        del release
        sources = self._prepare()
        counts = [
            [rows * (count_bytes(source) // max(source.shape[0], 1)) for rows in parts]
            for source, parts in zip(sources, self._parts, strict=True)
        ]  # of each tensor, the bytes of each member's part
        sent = [sum(member) for member in zip(*counts, strict=True)]
        if not sum(sent):
            return ()

        own = sent[self.among.position]
        self._received = torch.empty(own * self.among.size, dtype=torch.uint8, device=sources[0].device)
        if len(sources) == 1:
            self._sent = view_bytes(sources[0])
        else:
            cuts = [view_bytes(source).split_with_sizes(each) for source, each in zip(sources, counts, strict=True)]
            self._sent = torch.cat([piece for member in zip(*cuts, strict=True) for piece in member])
        return [group.alltoall_base(self._received, self._sent, [own] * self.among.size, sent)]

    def _conclude(self, release: Release, payload: memoryview) -> list[torch.Tensor]:
        del release, payload
        if self.among.size == 1:
            return [self._combine(source.unsqueeze(0)) for source in self._prepare()]
        return [self._combine(stack) for stack in self._unstack()]

    def _list_used(self) -> Iterable[torch.Tensor]:
        return [*self._tensors, *(tensor for tensor in (self._sent, self._received) if tensor is not None)]

    def _prepare(self) -> list[torch.Tensor]:
        """The scaled rows to send."""
        factor = self._how.prescale
        if factor == 1.0:
            return [make_rows(tensor) for tensor in self._tensors]
        sources = [copy(tensor) for tensor in self._tensors]
        for source in sources:
            scale_(source, factor)
        return sources

    def _unstack(self) -> list[torch.Tensor]:
        """For each tensor this rank's part from all ranks, of shape (ranks, own rows, ...)."""
        size, position = self.among.size, self.among.position
        shapes = [
            (size, parts[position], *tensor.shape[1:]) for tensor, parts in zip(self._tensors, self._parts, strict=True)
        ]

        if self._received is None:
            return [tensor.new_empty(shape) for tensor, shape in zip(self._tensors, shapes, strict=True)]
        if len(shapes) == 1:
            return [self._received.view(self._tensors[0].dtype).view(shapes[0])]

        stacks, offset = [], 0
        members = self._received.view(size, self._received.numel() // size)
        for tensor, shape in zip(self._tensors, shapes, strict=True):
            stack = torch.empty(shape, dtype=tensor.dtype, device=tensor.device)
            width = count_bytes(stack) // size
            view_bytes(stack).view(size, width).copy_(members[:, offset : offset + width])
            stacks.append(stack)
            offset += width
        return stacks

    def _combine(self, stack: torch.Tensor) -> torch.Tensor:
        """The result from the parts of all ranks, as a new tensor."""
        wide = choose_sum(stack.dtype)
        match self._how.reduction:
            case Reduction.MIN:
                result = stack.amin(0)
            case Reduction.MAX:
                result = stack.amax(0)
            case Reduction.PRODUCT:
                result = stack.prod(0, dtype=wide)
            case _:
                result = stack.sum(0, dtype=wide)
        conclude_(result, self._how, self.among.size)
        return result.to(stack.dtype)


def divide_rows(rows: int, size: int) -> tuple[int, ...]:
    """The number of rows of each rank: as even as possible; the first ranks get one row more if necessary."""
    each, surplus = divmod(rows, size)
    return (each + 1,) * surplus + (each,) * (size - surplus)


@lru_cache(maxsize=1024)
def _make_signature(
    dtypes: tuple[torch.dtype, ...], shapes: tuple[tuple[int, ...], ...], how: Combination, device: str
) -> Signature:
    if how.reduction is Reduction.ADASUM:
        raise ValueError("Adasum is not supported; use Average, Sum, Min, Max or Product")
    check_combination(dtypes, how)
    return make_signature(Kind.REDUCESCATTER, dtypes, shapes, device, how.reduction)
