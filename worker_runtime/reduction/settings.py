"""The settings of a distributed optimizer or trainer: how gradients are combined and sent.

Arguments are checked here, when the optimizer is created, and not in its first step.
"""

import math
import operator
from dataclasses import dataclass
from typing import Any, Protocol, SupportsIndex

import torch

from worker_runtime.collectives.combination import AVERAGE, Combination, read_factor
from worker_runtime.coordination.ordering.requests import Reduction
from worker_runtime.errors import WrongArgumentError
from worker_runtime.plans.buckets import BUCKET_BYTES, FIRST_BUCKET_BYTES


class Compressor(Protocol):
    """Compresses tensors for the transfer: an object, or a class with static methods. The same on all ranks.

    In torch both methods must be pure, and differentiable if gradients flow through them. In MXNet they take and return
    arrays.
    """

    def compress(self, tensor: torch.Tensor, /) -> tuple[torch.Tensor, Any]:
        """Return the dense tensor to send, and a context for `decompress`."""

    def decompress(self, tensor: torch.Tensor, context: Any, /) -> torch.Tensor:
        """Return the decompressed result, given the reduced tensor and the context of `compress`."""


class NoneCompressor:
    """Sends tensors unchanged."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, None]:
        """Return the tensor, and no context."""
        return tensor, None

    @staticmethod
    def decompress(tensor: Any, context: None) -> Any:
        """Return the tensor."""
        del context
        return tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How gradients are combined.

    how: the reduction (not ADASUM), and the factors before and after it.
    wire_dtype: the dtype in which floating-point gradients are sent; None for their own dtype.
    compressor: the user's compressor, which compresses each gradient separately; None for none.
    sparse_as_dense: sparse gradients are reduced as dense ones, and become sparse again.
    in_place: dense gradients are reduced in their own memory, which is not torch's.
    bounds: the sizes of the first bucket and of the others, in bytes.
    """

    how: Combination = AVERAGE
    wire_dtype: torch.dtype | None = None
    compressor: Compressor | None = None
    sparse_as_dense: bool = False
    in_place: bool = False
    bounds: tuple[int, int] = (FIRST_BUCKET_BYTES, BUCKET_BYTES)

    @property
    def gathers_sparse(self) -> bool:
        """Whether the elements of sparse gradients are gathered, which allows only sums and averages."""
        adds = self.how.reduction in (Reduction.SUM, Reduction.AVERAGE)
        return adds and not self.sparse_as_dense and self.compressor is None

    def choose_dtype(self, dtype: torch.dtype) -> torch.dtype:
        """The dtype in which the gradient of a parameter of this dtype is sent."""
        if self.wire_dtype is not None and dtype.is_floating_point:
            return self.wire_dtype
        return dtype

    def find_factors(self, size: int) -> tuple[float, float]:
        """The factors of a gradient before the sum over `size` ranks, and of the sum after it.

        Without a predivide factor the division by `size` happens before, in the same pass over the data that copies a
        gradient into its bucket.
        """
        how = self.how
        if how.reduction is not Reduction.AVERAGE:
            return how.prescale, how.postscale
        if how.postscale == 1.0:
            return how.prescale / size, 1.0
        return how.prescale, how.postscale / size

    def describe(self) -> str:
        """A description to compare with other ranks', and for error messages."""
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
    """Raise WrongArgumentError unless the compressor has `compress` and `decompress`."""
    if not all(callable(getattr(compression, name, None)) for name in ("compress", "decompress")):
        raise WrongArgumentError(
            f"{title}: compression is {compression!r}; give hvd.Compression.none, hvd.Compression.fp16, or an object "
            "with compress() and decompress()"
        )


def read_predivide(title: str, value: object) -> float:
    """The argument `gradient_predivide_factor` as a float.

    Args:
        title: the name of the called function, for messages.
        value: any number, also NumPy's.

    Raises:
        WrongArgumentError: it is not a number, is 0, or it or its inverse is not finite.
    """
    factor = read_factor(f"{title}: gradient_predivide_factor", value)
    if factor == 0.0 or not math.isfinite(factor) or not math.isfinite(1.0 / factor):
        raise WrongArgumentError(
            f"{title}: gradient_predivide_factor is {value!r}; give a number x for which x and 1 / x are finite"
        )
    return factor


def read_group_count(title: str, count: object) -> int:
    """The argument `num_groups` as an integer.

    Raises:
        WrongArgumentError: it is not an integer, or negative.
    """
    number = -1
    if isinstance(count, SupportsIndex):
        number = operator.index(count)
    if number < 0:
        raise WrongArgumentError(f"{title}: num_groups is {count!r}; give the number of groups, or 0 for no groups")
    return number
