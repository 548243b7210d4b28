"""How gradients are combined and how they travel: what a user chooses once for an optimizer or a trainer.

All of it is used much later, in a step; so wrong arguments are refused here, where they are given.
"""

import math
import operator
from dataclasses import dataclass
from typing import Any, Protocol, SupportsIndex

import torch

from worker_runtime.collectives.combination import AVERAGE, Combination, read_factor
from worker_runtime.coordination.ordering.buckets import BUCKET_BYTES, FIRST_BUCKET_BYTES
from worker_runtime.coordination.ordering.questions import Reduction
from worker_runtime.errors import WrongArgumentError


class Compressor(Protocol):
    """How what travels is made smaller, the same on all ranks: a class with static methods will do, or an object.

    In torch both methods are pure, and differentiable where gradients are to flow through. In MXNet they are given
    arrays, and give arrays.
    """

    def compress(self, tensor: torch.Tensor, /) -> tuple[torch.Tensor, Any]:
        """What travels, dense, and what `decompress` needs to know."""

    def decompress(self, tensor: torch.Tensor, context: Any, /) -> torch.Tensor:  # noqa: ANN401 - what compress gave
        """What was given as it was, of what has come back."""


class NoneCompressor:
    """Sends what it is given as it is."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, None]:  # noqa: ANN401 - of any framework
        """The same."""
        return tensor, None

    @staticmethod
    def decompress(tensor: Any, context: None) -> Any:  # noqa: ANN401 - of any framework
        """The same."""
        del context
        return tensor


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


def check_compression(title: str, compression: object) -> None:
    """Raise WrongArgumentError unless it can compress and decompress."""
    if not all(callable(getattr(compression, name, None)) for name in ("compress", "decompress")):
        raise WrongArgumentError(
            f"{title}: compression is {compression!r}; give hvd.Compression.none, hvd.Compression.fp16, or an object "
            "with compress() and decompress()"
        )


def read_predivide(title: str, value: object) -> float:
    """The factor by which gradients are divided before the sum, and multiplied after.

    Args:
        title: who was called, for messages.
        value: any number, also NumPy's.

    Raises:
        WrongArgumentError: it is no number, or one cannot divide and multiply by it.
    """
    factor = read_factor(f"{title}: gradient_predivide_factor", value)
    if factor == 0.0 or not math.isfinite(factor) or not math.isfinite(1.0 / factor):
        raise WrongArgumentError(
            f"{title}: gradient_predivide_factor is {value!r}; give a number by which gradients can be divided and "
            "multiplied"
        )
    return factor


def read_group_count(title: str, count: object) -> int:
    """The number of groups in which gradients travel.

    Raises:
        WrongArgumentError: it is no integer, or negative.
    """
    number = operator.index(count) if isinstance(count, SupportsIndex) else -1
    if number < 0:
        raise WrongArgumentError(f"{title}: num_groups is {count!r}; give how many, or 0 for as is fastest")
    return number
