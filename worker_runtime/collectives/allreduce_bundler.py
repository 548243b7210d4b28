"""Packs and unpacks allreduces of small single tensors together, as if they were one call's."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import TYPE_CHECKING

import torch

from worker_runtime.collectives.combination import Combination
from worker_runtime.collectives.dtypes import view_travelling
from worker_runtime.collectives.layout import view_memory
from worker_runtime.collectives.lots import Lot, distribute, gather
from worker_runtime.collectives.operation import Bundler
from worker_runtime.collectives.scaling import conclude_, scale_

if TYPE_CHECKING:
    from worker_runtime.collectives.allreduce import Allreduce

BUNDLED_BYTES = 16 * 1024  # the largest tensor: a copy of a larger one would cost more than torch's calls


@dataclass(frozen=True, slots=True)
class AllreduceBundler(Bundler):
    """For allreduces whose data travel inside the question, of one tensor each.

    dtype: as which they travel.
    how: they are combined.
    size: of their set.
    is_in_place: whether the results have places where they go.
    """

    dtype: torch.dtype
    how: Combination
    size: int
    is_in_place: bool

    def pack(self, operations: Sequence["Allreduce"]) -> list[memoryview]:
        """The payload of each, in memory that they share."""
        lot = self._plan(operations)
        buffer = gather(lot, [operation.tensors[0] for operation in operations])
        scale_(buffer, self.how.prescale)
        memory = view_memory(view_travelling(buffer))
        ends = list(accumulate(count * self.dtype.itemsize for count in lot.counts))
        return [memory[start:end] for start, end in zip([0, *ends], ends, strict=False)]

    def unpack(self, operations: Sequence["Allreduce"], payload: memoryview) -> list[list[torch.Tensor]]:
        """The results, each in memory of its own: a large message is not kept by one of its small parts."""
        lot = self._plan(operations)
        buffer = torch.frombuffer(bytearray(payload), dtype=self.dtype)
        conclude_(buffer, self.how, self.size)
        into = [operation.into[0] for operation in operations if operation.into] if self.is_in_place else None
        tensors = [operation.tensors[0] for operation in operations]
        return [[result] for _, result in distribute(lot, buffer, tensors, into)]

    def _plan(self, operations: Sequence["Allreduce"]) -> Lot:
        """The operations' tensors as one lot."""
        counts = tuple([operation.tensors[0].numel() for operation in operations])
        return Lot(self.dtype, (sum(counts),), tuple(range(len(counts))), counts)


@lru_cache(maxsize=1024)
def make_bundlers(dtype: torch.dtype, how: Combination, size: int) -> tuple[AllreduceBundler, AllreduceBundler]:
    """For results in new tensors, and in place; the same two for all tensors that are alike in this."""
    return AllreduceBundler(dtype, how, size, is_in_place=False), AllreduceBundler(dtype, how, size, is_in_place=True)
