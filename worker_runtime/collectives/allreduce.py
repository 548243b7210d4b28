"""Allreduce: combines tensors elementwise over the ranks of a set."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, pairwise
from types import MappingProxyType
from typing import Self

import torch
import torch.distributed as dist

from worker_runtime.collectives.buffers import (
    Fusion,
    concatenate,
    distribute,
    find_target,
    gather,
    gather_in_place,
    is_plain,
    plan_fusions,
    separate,
    spread,
    view_memory,
    view_reducible,
)
from worker_runtime.collectives.combination import (
    Combination,
    check_combination,
    conclude_,
    make_keys,
    may_have_nan,
    read_keys,
    scale_,
)
from worker_runtime.collectives.dtypes import choose_wire_dtype, name_dtype
from worker_runtime.collectives.tensor_operation import TensorOperation, make_error, make_signature
from worker_runtime.coordination.operation import Batcher, Members
from worker_runtime.coordination.ordering.requests import Kind, Reduction, Release, Request, Signature, fits_payload
from worker_runtime.groups.torch_groups import TorchGroup, Work

BATCHED_BYTES = 16 * 1024  # the largest tensor: a copy of a larger one would cost more than torch's calls
_TORCH_OPERATIONS = {
    Reduction.AVERAGE: dist.ReduceOp.SUM,
    Reduction.SUM: dist.ReduceOp.SUM,
    Reduction.MIN: dist.ReduceOp.MIN,
    Reduction.MAX: dist.ReduceOp.MAX,
    Reduction.PRODUCT: dist.ReduceOp.PRODUCT,
}


class Allreduce(TensorOperation[list[torch.Tensor]]):
    """Combines tensors elementwise over all ranks. Several tensors are one operation, fused where that is faster.

    The result is a list of tensors, in the order of the call.

    Args:
        tensors: at least one dense tensor, of any shapes and dtypes. Not changed unless it is in `into` too.
        how: the reduction (not ADASUM) and the factors. The average of integers is their exact int64 sum divided by the
            size, truncated toward zero. Sums and products of integers may wrap around; so may the sum of an average of
            int64 values beyond 2**63 / size.
        among: the ranks.
        name: the full name, the same on all ranks: "allreduce.loss".
        into: a tensor of the same shape and dtype for each result (it may be the input); None creates new ones.

    An element of MIN or MAX is NaN where any rank has a NaN; on CUDA it is NCCL's result.

    Raises:
        ValueError: a dtype does not support the reduction; bool would be scaled; a tensor is sparse, or on another
            device than the first or on an unsupported one; or a result does not fit `into`.
    """

    _buffers: Sequence[torch.Tensor] | None = None
    _keys: Mapping[int, torch.Tensor] = MappingProxyType({})  # of the fusion buffers that are sent as order keys

    def __init__(
        self,
        tensors: Sequence[torch.Tensor],
        how: Combination,
        among: Members,
        name: str,
        into: Sequence[torch.Tensor] | None = None,
    ) -> None:
        device = self._begin(name, among, tensors, into)
        try:
            # A program may submit a thousand of these at once.
            if len(tensors) == 1:
                (tensor,) = tensors
                plan = _plan((tensor.dtype,), (tensor.shape,), how, device, len(among.ranks))
            else:
                dtypes, shapes = [tensor.dtype for tensor in tensors], [tensor.shape for tensor in tensors]
                plan = _plan(tuple(dtypes), tuple(shapes), how, device, len(among.ranks))
        except ValueError as error:
            raise make_error(name, str(error)) from None

        self._plan = plan
        self.request = Request(among.number, name, plan.signature, plan.factors)
        self.tensors = tuple(tensors)
        self._how = how
        self.into = into
        if into is None:
            self.batcher = plan.batcher
        else:
            self.batcher = plan.batcher_in_place
        if plan.asks_for_nan:
            self.sizes = (int(may_have_nan(tensors, how.prescale)),)

    def find_obstacle(self, *, is_begun: bool) -> str:
        """Return "" unless the inputs are being overwritten; see `Operation`."""
        in_place = is_begun and self.into is not None and not self._plan.signature.payload_dtype
        if in_place:
            return "its tensor was being changed in place; allreduce() could have been repeated"
        return ""

    def renew(self, among: Members, ranks: Mapping[int, int]) -> Self:
        """See `Operation`."""
        del ranks
        renewed = type(self)(self.tensors, self._how, among, self.request.name, self.into)
        if self.request.signature is not self._plan.signature:
            renewed.request = renewed.request.add_note(self.request.signature.note)
        return renewed

    @property
    def payload(self) -> bytes | memoryview:
        """The values to reduce; a view of the input where possible."""
        if not self._plan.signature.payload_dtype:
            return b""
        (fusion,) = self._plan.fusions
        prescale = self._how.prescale
        if fusion.single is not None and prescale == 1.0:
            tensor = self.tensors[fusion.single]
            if tensor.dtype == fusion.dtype and is_plain(tensor):
                return view_memory(view_reducible(tensor))
        buffer = gather(fusion, self.tensors)
        scale_(buffer, prescale)
        return view_memory(view_reducible(buffer))

    def _communicate(self, group: TorchGroup, release: Release) -> Sequence[Work]:
        self._buffers = self._prepare()
        self._keys = {}
        reduction = self._how.reduction
        if any(map(any, release.sizes)):
            self._keys = {
                index: make_keys(buffer, reduction)
                for index, buffer in enumerate(self._buffers)
                if buffer.dtype.is_floating_point
            }
        sent = [self._keys.get(index, buffer) for index, buffer in enumerate(self._buffers)]
        operation = _TORCH_OPERATIONS[reduction]
        return [group.allreduce(view_reducible(buffer), operation) for buffer in sent if buffer.numel()]

    def _conclude(self, release: Release, payload: memoryview) -> list[torch.Tensor]:
        del release
        buffers = self._buffers
        if payload:
            buffers = [self._read(payload)]
        elif not buffers:
            buffers = self._prepare()
        for index, keys in self._keys.items():
            read_keys(keys, buffers[index])
        results = list(self.tensors)
        for fusion, buffer in zip(self._plan.fusions, buffers, strict=True):
            conclude_(buffer, self._how, self.among.size)
            for index, result in distribute(fusion, buffer, self.tensors, self.into):
                results[index] = result
        return results

    def _list_used(self) -> Iterable[torch.Tensor]:
        return [*self.tensors, *(self._buffers or ()), *(self.into or ())]

    def _prepare(self) -> list[torch.Tensor]:
        """The scaled fusion buffers, ready for the reduction."""
        buffers = [gather_in_place(fusion, self.tensors, self.into) for fusion in self._plan.fusions]
        for buffer in buffers:
            scale_(buffer, self._how.prescale)
        return buffers

    def _read(self, payload: memoryview) -> torch.Tensor:
        """The only fusion buffer, filled from the payload."""
        (fusion,) = self._plan.fusions
        buffer = find_target(fusion, self.into)
        if buffer is None:
            buffer = torch.empty(fusion.shape, dtype=fusion.dtype, device="cpu")
        view_memory(view_reducible(buffer))[:] = payload
        return buffer


class AllreduceOfAll(Allreduce):
    """An allreduce whose result is wrong without the part of any of its ranks. The loss of one fails it."""

    def find_obstacle(self, *, is_begun: bool) -> str:
        """Return what it needs; see `Operation`."""
        del is_begun
        return "its result would be wrong without the lost rank's part"

    def renew(self, among: Members, ranks: Mapping[int, int]) -> Self:
        """Raise NotImplementedError; see `Operation`."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class AllreduceBatcher(Batcher):
    """Packs and unpacks small allreduces of one tensor together, whose data are sent inside their requests.

    dtype: the dtype in which they are sent.
    how: how they are combined.
    size: the size of their set.
    is_in_place: the results are written to given tensors.
    """

    dtype: torch.dtype
    how: Combination
    size: int
    is_in_place: bool

    def pack(self, operations: Sequence["Allreduce"]) -> list[memoryview]:
        """The payload of each operation, as views of one buffer."""
        tensors = [operation.tensors[0] for operation in operations]
        buffer = concatenate(tensors, self.dtype)
        scale_(buffer, self.how.prescale)
        memory = view_memory(view_reducible(buffer))
        size = self.dtype.itemsize
        ends = accumulate([tensor.numel() * size for tensor in tensors], initial=0)
        return [memory[start:end] for start, end in pairwise(ends)]

    def unpack(self, operations: Sequence["Allreduce"], payload: memoryview) -> list[list[torch.Tensor]]:
        """The results, each in separate memory, so that a small result does not keep a large message alive."""
        buffer = torch.frombuffer(bytearray(payload), dtype=self.dtype)
        conclude_(buffer, self.how, self.size)
        tensors = [operation.tensors[0] for operation in operations]
        counts = [tensor.numel() for tensor in tensors]
        if self.is_in_place:
            tensors = [operation.into[0] for operation in operations if operation.into]
            spread(buffer, counts, tensors)
        else:
            tensors = separate(buffer, counts, tensors)
        return [[tensor] for tensor in tensors]


@dataclass(frozen=True, slots=True)
class _Plan:
    """The part of a call that depends only on dtypes, shapes, reduction, device and size; it is cached.

    asks_for_nan: each rank reports in its request whether it may have a NaN.
    """

    signature: Signature
    factors: tuple[float, float]
    fusions: tuple[Fusion, ...]
    batcher: AllreduceBatcher | None
    batcher_in_place: AllreduceBatcher | None
    asks_for_nan: bool


@lru_cache(maxsize=1024)
def _plan(
    dtypes: tuple[torch.dtype, ...], shapes: tuple[tuple[int, ...], ...], how: Combination, device: str, size: int
) -> _Plan:
    reduction = how.reduction
    if reduction is Reduction.ADASUM:
        raise ValueError("Adasum is an operation of its own")
    check_combination(dtypes, how)
    shapes = tuple(map(tuple, shapes))

    payload_dtype = ""
    wire_dtypes = [choose_wire_dtype(dtype, reduction, in_request=True) for dtype in dtypes]
    count_bytes = sum(math.prod(shape) for shape in shapes) * wire_dtypes[0].itemsize
    if len(set(wire_dtypes)) == 1 and device == "cpu" and size > 1 and count_bytes and fits_payload(size, count_bytes):
        payload_dtype = name_dtype(view_reducible(torch.empty(0, dtype=wire_dtypes[0], device="cpu")).dtype)
    else:
        wire_dtypes = [choose_wire_dtype(dtype, reduction, in_request=False) for dtype in dtypes]

    signature = make_signature(Kind.ALLREDUCE, dtypes, shapes, device, reduction, payload_dtype=payload_dtype)
    batchers: tuple[AllreduceBatcher | None, AllreduceBatcher | None] = None, None
    if payload_dtype and len(shapes) == 1 and count_bytes <= BATCHED_BYTES:
        batchers = make_batchers(wire_dtypes[0], how, size)

    is_extreme = reduction in (Reduction.MIN, Reduction.MAX)
    has_floats = any(dtype.is_floating_point for dtype in wire_dtypes)
    asks_for_nan = is_extreme and has_floats and device == "cpu" and size > 1 and not payload_dtype
    return _Plan(signature, how.factors, plan_fusions(wire_dtypes, shapes), *batchers, asks_for_nan)


@lru_cache(maxsize=1024)
def make_batchers(dtype: torch.dtype, how: Combination, size: int) -> tuple[AllreduceBatcher, AllreduceBatcher]:
    """The batchers for results in new tensors and in place; cached, so that equal operations share them."""
    return AllreduceBatcher(dtype, how, size, is_in_place=False), AllreduceBatcher(dtype, how, size, is_in_place=True)
