"""The arithmetic beside a reduction: factors, and the division of an average."""

import torch

from worker_runtime.collectives.combination import Combination
from worker_runtime.collectives.dtypes import INTEGERS
from worker_runtime.coordination.ordering.questions import Reduction


def scale_(buffer: torch.Tensor, factor: float) -> None:
    """Multiply in place: integers in float64, truncated toward zero; halves in single precision, as torch does."""
    if factor == 1.0:
        return
    if buffer.dtype in INTEGERS:
        buffer.copy_(buffer.to(torch.float64).mul_(factor))  # the conversion back truncates
    else:
        buffer.mul_(factor)


def conclude_(buffer: torch.Tensor, how: Combination, size: int) -> None:
    """Make the result, in place, of the reduced values: multiply by postscale, and 1/size for the average.

    Args:
        buffer: the reduced values; integers that are averaged are int64 here.
        how: how they were reduced.
        size: of the set.
    """
    if how.reduction is not Reduction.AVERAGE or size == 1:
        scale_(buffer, how.postscale)
    elif buffer.dtype in INTEGERS:
        if how.postscale == 1.0:
            buffer.div_(size, rounding_mode="trunc")
        else:
            buffer.copy_(buffer.to(torch.float64).mul_(how.postscale).div_(size))  # truncated once, at the end
    elif how.postscale == 1.0:
        buffer.div_(size)
    else:
        buffer.mul_(how.postscale / size)
