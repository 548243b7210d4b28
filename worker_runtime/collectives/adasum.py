"""Adasum: a reduction that adds gradients where they are orthogonal and averages them where they are parallel.

Two vectors combine to (1 - a.b / 2|a|^2) a + (1 - a.b / 2|b|^2) b (Maleki et al., "Scaling Distributed Training with
Adaptive Summation", 2020): first pairs of ranks at distance 1, then these pairs at distance 2, and so on. If the number
of ranks is not a power of two, each surplus rank r first combines into r - p, where p is the largest power of two.

The vectors are transposed once, so that every rank has one segment of all vectors, and runs the whole tree on it. Only
dot products are exchanged, in one small message per level. This sends as few bytes as recursive halving, works for any
number of ranks, and needs no point-to-point messages, whose waits gloo cannot interrupt without breaking the group.
Each segment is computed on one rank, and all ranks add the dot products in the same order, so the results are bit for
bit the same on all ranks.
"""

import math
from collections.abc import Iterable, Iterator, Sequence

import torch

from worker_runtime.collectives.buffers import Fusion, distribute, gather, plan_fusions, view_bytes
from worker_runtime.collectives.combination import Combination, check_combination, scale_
from worker_runtime.collectives.dtypes import HALVES
from worker_runtime.collectives.tensor_operation import TensorOperation, make_error, make_signature
from worker_runtime.coordination.operation import Members
from worker_runtime.coordination.ordering.requests import Kind, Reduction, Release, Request
from worker_runtime.groups.torch_groups import TorchGroup, Work, await_work

_TINY = math.sqrt(2.2250738585072014e-308)  # a vector with a smaller squared norm counts as zero

Pair = tuple[int, int]  # positions: the second one's vector is combined into the first one's


class Adasum(TensorOperation[list[torch.Tensor]]):
    """Combines tensors over all ranks by Adasum, each tensor with its own coefficients.

    The result is a list of tensors, in the order of the call. `start` waits for the other ranks.

    Args:
        tensors: at least one dense tensor of float16, bfloat16, float32 or float64, of any shapes. Not changed unless
            it is in `into` too.
        how: its reduction is ADASUM; the factors apply before and after.
        among: the ranks, any number.
        name: the full name, the same on all ranks.
        into: a tensor of the same shape and dtype for each result (it may be the input); None creates new ones.

    Raises:
        ValueError: a dtype does not support Adasum; or see `Allreduce`.
    """

    def __init__(
        self,
        tensors: Sequence[torch.Tensor],
        how: Combination,
        among: Members,
        name: str,
        into: Sequence[torch.Tensor] | None = None,
    ) -> None:
        device = self._begin(name, among, tensors, into)
        dtypes = tuple([tensor.dtype for tensor in tensors])
        shapes = tuple([tuple(tensor.shape) for tensor in tensors])
        try:
            check_combination(dtypes, how)
        except ValueError as error:
            raise make_error(name, str(error)) from None
        self._fusions = plan_fusions(dtypes, shapes)
        signature = make_signature(Kind.ALLREDUCE, dtypes, shapes, device, Reduction.ADASUM)
        self.request = Request(among.number, name, signature, how.factors)
        self._tensors = tuple(tensors)
        self._how = how
        self._into = into
        self._buffers: list[torch.Tensor] | None = None

    def _communicate(self, group: TorchGroup, release: Release) -> Sequence[Work]:
        del release
        self._buffers = self._prepare()
        shares = [
            _Share(fusion, buffer, self.among.size, self.among.position)
            for fusion, buffer in zip(self._fusions, self._buffers, strict=True)
            if buffer.numel()
        ]
        for work in [share.transpose(group) for share in shares]:
            await_work(work)
        for share in shares:
            share.widen()
        for pairs in list_levels(self.among.size):
            self._combine(group, pairs, shares)
        return [work for share in shares for work in share.spread(group)]

    def _conclude(self, release: Release, payload: memoryview) -> list[torch.Tensor]:
        del release, payload
        results = list(self._tensors)
        for fusion, buffer in zip(self._fusions, self._buffers or self._prepare(), strict=True):
            scale_(buffer, self._how.postscale)
            for index, result in distribute(fusion, buffer, self._tensors, self._into):
                results[index] = result
        return results

    def _list_used(self) -> Iterable[torch.Tensor]:
        return [*self._tensors, *(self._buffers or ()), *(self._into or ())]

    def _prepare(self) -> list[torch.Tensor]:
        buffers = [gather(fusion, self._tensors) for fusion in self._fusions]
        for buffer in buffers:
            scale_(buffer, self._how.prescale)
        return buffers

    def _combine(self, group: TorchGroup, pairs: Sequence[Pair], shares: Sequence["_Share"]) -> None:
        """Combine the vectors of some pairs on all ranks: exchange the dot products, then add the vectors."""
        if not shares:
            return
        partial = torch.cat([share.multiply(pairs) for share in shares])
        partials = [torch.empty_like(partial) for _ in range(self.among.size)]
        await_work(group.allgather(partials, partial))
        total = torch.zeros_like(partial)
        for other in partials:
            total += other
        products = torch.split(total, [share.count_products(pairs) for share in shares])
        for share, own in zip(shares, products, strict=True):
            share.add(pairs, own)


class _Share:
    """One rank's segment of the vectors of all ranks, for one fusion buffer.

    Args:
        fusion: the tensors in the buffer.
        buffer: this rank's vector, later the result.
        size, position: the size of the set, and this rank's position in it.
    """

    def __init__(self, fusion: Fusion, buffer: torch.Tensor, size: int, position: int) -> None:
        self._fusion = fusion
        self._buffer = buffer.view(-1)
        self._bounds = [buffer.numel() * member // size for member in range(size + 1)]
        self._begin, self._end = self._bounds[position], self._bounds[position + 1]
        self._rows = torch.empty((size, self._end - self._begin), dtype=buffer.dtype, device=buffer.device)

    def transpose(self, group: TorchGroup) -> Work:
        """Receive this segment of every rank's vector."""
        item_bytes = self._buffer.element_size()
        size, width = self._rows.shape
        sent = [(end - begin) * item_bytes for begin, end in zip(self._bounds, self._bounds[1:], strict=False)]
        received = [width * item_bytes] * size
        return group.alltoall_base(view_bytes(self._rows), view_bytes(self._buffer), received, sent)

    def widen(self) -> None:
        """Convert float16 and bfloat16 to float32."""
        if self._rows.dtype in HALVES:
            self._rows = self._rows.float()

    def multiply(self, pairs: Sequence[Pair]) -> torch.Tensor:
        """This segment's part of a.b, |a|^2 and |b|^2 of each pair and tensor: one row of float64."""
        products = []
        for first, second in pairs:
            for begin, end in self._cut():
                a = self._rows[first, begin:end].to(torch.float64)
                b = self._rows[second, begin:end].to(torch.float64)
                products += [torch.dot(a, b), torch.dot(a, a), torch.dot(b, b)]
        return torch.stack(products)

    def count_products(self, pairs: Sequence[Pair]) -> int:
        """The number of products that `multiply` returns."""
        return 3 * len(pairs) * len(self._fusion.counts)

    def add(self, pairs: Sequence[Pair], products: torch.Tensor) -> None:
        """Combine each pair, given the sums over all ranks of the products of `multiply`.

        No number leaves its device: on CUDA the thread that starts the operation would wait for all earlier kernels.
        """
        dots, *squares = products.view(-1, 3).unbind(1)
        factors = [torch.where(square >= _TINY, 1.0 - dots / (2.0 * square), 1.0) for square in squares]
        numbers = iter(zip(*(each.to(self._rows.dtype).unbind() for each in factors), strict=True))
        for first, second in pairs:
            for begin, end in self._cut():
                first_factor, second_factor = next(numbers)
                a, b = self._rows[first, begin:end], self._rows[second, begin:end]
                a.mul_(first_factor).addcmul_(b, second_factor)

    def spread(self, group: TorchGroup) -> list[Work]:
        """Send this segment of the result to every rank, and receive theirs."""
        self._buffer[self._begin : self._end] = self._rows[0]
        return [
            group.broadcast(view_bytes(self._buffer[begin:end]), member)
            for member, (begin, end) in enumerate(zip(self._bounds, self._bounds[1:], strict=False))
            if begin < end
        ]

    def _cut(self) -> Iterator[Pair]:
        """The bounds of each tensor within the segment; empty bounds for a tensor outside of it."""
        offset, width = -self._begin, self._end - self._begin
        for count in self._fusion.counts:
            yield min(max(offset, 0), width), min(max(offset + count, 0), width)
            offset += count


def list_levels(size: int) -> Iterator[list[Pair]]:
    """The pairs of positions that combine, level by level; the result is at position 0."""
    power = 1 << (size.bit_length() - 1)
    if power < size:
        yield [(surplus - power, surplus) for surplus in range(power, size)]
    distance = 1
    while distance < power:
        yield [(first, first + distance) for first in range(0, power, 2 * distance)]
        distance *= 2
