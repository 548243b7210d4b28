"""How gradients are combined and how they travel: what a user chooses once for an optimizer."""

from dataclasses import dataclass
from typing import Any, Protocol

import torch

from worker_runtime.collectives import AVERAGE, Combination, Reduction
from worker_runtime.coordination.ordering.buckets import BUCKET_BYTES, FIRST_BUCKET_BYTES


class Compressor(Protocol):
    """How what travels is made smaller, the same on all ranks: a class with static methods will do, or an object.

    In torch both methods are pure, and differentiable where gradients are to flow through. In MXNet they are given
    arrays, and give arrays.
    """

    def compress(self, tensor: torch.Tensor, /) -> tuple[torch.Tensor, Any]:
        """What travels, dense, and what `decompress` needs to know."""

    def decompress(self, tensor: torch.Tensor, context: Any, /) -> torch.Tensor:  # noqa: ANN401 - what compress gave
        """What was given as it was, of what has come back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How gradients are combined.

    how: the reduction, and the factors before and after it; not ADASUM.
    wire_dtype: as what floating-point gradients travel; None for their own dtype.
    compressor: the user's own, through which every gradient passes by itself; None for none.
    sparse_as_dense: sparse gradients travel as dense ones, and become sparse again.
    in_place: gradients that travel as they are stay where they lie, in memory that is not torch's; they are dense.
    bounds: of the first and of the other buckets, in bytes.
    """

    how: Combination = AVERAGE
    wire_dtype: torch.dtype | None = None
    compressor: Compressor | None = None
    sparse_as_dense: bool = False
    in_place: bool = False
    bounds: tuple[int, int] = (FIRST_BUCKET_BYTES, BUCKET_BYTES)

    @property
    def gathers_sparse(self) -> bool:
        """Whether sparse gradients travel as such: only sums and averages can be made of gathered elements."""
        adds = self.how.reduction in (Reduction.SUM, Reduction.AVERAGE)
        return adds and not self.sparse_as_dense and self.compressor is None

    def choose_dtype(self, dtype: torch.dtype) -> torch.dtype:
        """As what the gradient of a parameter travels."""
        return self.wire_dtype if self.wire_dtype is not None and dtype.is_floating_point else dtype

    def find_factors(self, size: int) -> tuple[float, float]:
        """What a gradient is multiplied by before, and what the sum over `size` ranks is multiplied by after.

        Without factors of the user's the whole of the average happens before, in the one pass over the data that
        brings a gradient into its bucket.
        """
        how = self.how
        if how.reduction is not Reduction.AVERAGE:
            return how.prescale, how.postscale
        if how.postscale == 1.0:
            return how.prescale / size, 1.0
        return how.prescale, how.postscale / size

    def describe(self) -> str:
        """For comparison with the other ranks, and for their error messages."""
        parts = [self.how.reduction.name.lower()]
        if self.how.prescale != 1.0 or self.how.postscale != 1.0:
            parts.append(f"factors {self.how.prescale:g} and {self.how.postscale:g}")
        if self.wire_dtype is not None:
            parts.append(f"as {str(self.wire_dtype).removeprefix('torch.')}")
        if self.compressor is not None:
            parts.append("compressed")
        if self.sparse_as_dense:
            parts.append("sparse as dense")
        return ", ".join(parts)
