"""Adasum: a reduction that adds gradients where they are orthogonal and averages them where they are parallel.

Two vectors combine to (1 - a.b / 2|a|^2) a + (1 - a.b / 2|b|^2) b (Maleki et al., "Scaling Distributed Training with
Adaptive Summation", 2020), ranks pairwise at distance 1, then these pairs at distance 2, and so on. Where their number
is no power of two, each surplus rank r first combines into r - p, p being the greatest power of two.

The vectors are not passed from rank to rank. They are transposed once, so that every rank holds one segment of all of
them and runs the whole tree on it; only dot products are exchanged, one small message per level. That moves as few
bytes as halving them recursively, takes any number of ranks, and needs no point-to-point messages, whose waits gloo
cannot interrupt without breaking the group. Each segment is computed in one place and every rank adds up the dot
products in the same order, so all ranks end with the same bits.
"""

import math
from collections.abc import Iterable, Iterator, Sequence

import torch

from worker_runtime.collectives.buffers import Fusion, distribute, gather, plan_fusions, view_bytes
from worker_runtime.collectives.combination import Combination, check_combination, scale_
from worker_runtime.collectives.dtypes import HALVES
from worker_runtime.collectives.tensor_operation import TensorOperation, make_error, make_signature
from worker_runtime.coordination.operation import Members
from worker_runtime.coordination.ordering.questions import Kind, Question, Reduction, Release
from worker_runtime.groups.torch_groups import TorchGroup, Work, await_work

_TINY = math.sqrt(2.2250738585072014e-308)  # of squared norms: below, a vector counts as zero

Pair = tuple[int, int]  # positions: the second one's vector is combined into the first one's


class Adasum(TensorOperation[list[torch.Tensor]]):
    """Combine tensors over all ranks by Adasum; each tensor of the call by its own coefficients.

    The result is a list of tensors, in the order of the call. Starting it waits for the other ranks.

    Args:
        tensors: at least one, dense, of float16, bfloat16, float32 or float64, of any shapes. Left alone unless they
            stand in `into` too.
        how: its reduction is ADASUM; the factors apply before and after.
        among: the ranks, any number.
        name: as it travels, the same on all ranks.
        into: where each result goes, a tensor of the same shape and dtype (it may be the input); None makes new ones.

    Raises:
        ValueError: a dtype has no Adasum, or what `Allreduce` refuses.
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
        self.question = Question(among.number, name, signature, how.factors)
        self._tensors = tuple(tensors)
        self._how = how
        self._into = into
        self._buffers: list[torch.Tensor] | None = None

    def _communicate(self, group: TorchGroup, terms: Release) -> Sequence[Work]:
        del terms
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

    def _conclude(self, terms: Release, payload: memoryview) -> list[torch.Tensor]:
        del terms, payload
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
        """Combine the vectors of some pairs on all ranks: agree on the dot products, then add up."""
        if not shares:
            return
        partial = torch.cat([share.multiply(pairs) for share in shares])
        partials = [torch.empty_like(partial) for _ in range(self.among.size)]
        await_work(group.allgather(partials, partial))
        total = torch.zeros_like(partial)
        for other in partials:
            total += other
        products = total.tolist()
        for share in shares:
            count = share.count_products(pairs)
            share.add(pairs, products[:count])
            del products[:count]


class _Share:
    """One rank's segment of the vectors of all ranks, of one fusion.

    Args:
        fusion: which tensors.
        buffer: this rank's vector, and in the end the result.
        size, position: of and in the set.
    """

    def __init__(self, fusion: Fusion, buffer: torch.Tensor, size: int, position: int) -> None:
        self._fusion = fusion
        self._buffer = buffer.view(-1)
        self._bounds = [buffer.numel() * member // size for member in range(size + 1)]
        self._begin, self._end = self._bounds[position], self._bounds[position + 1]
        self._rows = torch.empty((size, self._end - self._begin), dtype=buffer.dtype, device=buffer.device)

    def transpose(self, group: TorchGroup) -> Work:
        """Get this segment of every rank's vector."""
        item_bytes = self._buffer.element_size()
        size, width = self._rows.shape
        sent = [(end - begin) * item_bytes for begin, end in zip(self._bounds, self._bounds[1:], strict=False)]
        received = [width * item_bytes] * size
        return group.alltoall_base(view_bytes(self._rows), view_bytes(self._buffer), received, sent)

    def widen(self) -> None:
        """Go on in single precision with halves."""
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
        """How many numbers `multiply` makes."""
        return 3 * len(pairs) * len(self._fusion.counts)

    def add(self, pairs: Sequence[Pair], products: Sequence[float]) -> None:
        """Combine each pair, given what `multiply` made on all ranks together."""
        numbers = iter(products)
        for first, second in pairs:
            for begin, end in self._cut():
                dot, first_square, second_square = next(numbers), next(numbers), next(numbers)
                a, b = self._rows[first, begin:end], self._rows[second, begin:end]
                a.mul_(1.0 - dot / (2.0 * first_square) if first_square >= _TINY else 1.0)
                a.add_(b, alpha=1.0 - dot / (2.0 * second_square) if second_square >= _TINY else 1.0)

    def spread(self, group: TorchGroup) -> list[Work]:
        """Give every rank this segment of the result, and get theirs."""
        self._buffer[self._begin : self._end] = self._rows[0]
        return [
            group.broadcast(view_bytes(self._buffer[begin:end]), member)
            for member, (begin, end) in enumerate(zip(self._bounds, self._bounds[1:], strict=False))
            if begin < end
        ]

    def _cut(self) -> Iterator[Pair]:
        """Where each tensor begins and ends within the segment; empty where none of it lies here."""
        offset, width = -self._begin, self._end - self._begin
        for count in self._fusion.counts:
            yield min(max(offset, 0), width), min(max(offset + count, 0), width)
            offset += count


def list_levels(size: int) -> Iterator[list[Pair]]:
    """Which positions combine, level by level; the result is at position 0."""
    power = 1 << (size.bit_length() - 1)
    if power < size:
        yield [(surplus - power, surplus) for surplus in range(power, size)]
    distance = 1
    while distance < power:
        yield [(first, first + distance) for first in range(0, power, 2 * distance)]
        distance *= 2
