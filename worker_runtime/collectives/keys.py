"""Whole numbers in place of floating-point ones, for extremes among which there are NaNs.

The greatest of some numbers is NaN as soon as one of them is: so torch has it, and NumPy, which combines what travels
inside a question. gloo compares with `<`, so that a NaN counts or is lost as the order of its comparisons has it, and
differently in each part of a tensor. So ranks tell with their question whether they have any; where one has, all send
keys instead, of which a NaN has the greatest or the least. Who has none pays for one pass over the values.
"""

import math
from collections.abc import Iterable

import torch

from worker_runtime.coordination.ordering.questions import Reduction

_KEYS = {torch.float32: torch.int32, torch.float64: torch.int64}


def may_have_nan(tensors: Iterable[torch.Tensor], prescale: float) -> bool:
    """Whether there is a NaN in any of the tensors when it has been multiplied; a product with infinity counts."""
    floats = [tensor.detach() for tensor in tensors if tensor.dtype.is_floating_point and tensor.numel()]
    if prescale == 0.0 or not math.isfinite(prescale):
        return bool(floats)
    return any(math.isnan(tensor.amax().item()) for tensor in floats)


def make_keys(buffer: torch.Tensor, reduction: Reduction) -> torch.Tensor:
    """Integers in the order of the buffer's values, and beyond all of them where those are NaN.

    Args:
        buffer: of floating-point values; left alone.
        reduction: MIN or MAX, whose result a NaN shall be.
    """
    wide = buffer if buffer.dtype in _KEYS else buffer.to(torch.float32)  # there is no reduction of int16 on gloo
    keys = _turn_negative(wide.view(_KEYS[wide.dtype]).clone())
    bounds = torch.iinfo(keys.dtype)
    return keys.masked_fill_(wide.isnan(), bounds.max if reduction is Reduction.MAX else bounds.min)


def read_keys(keys: torch.Tensor, buffer: torch.Tensor) -> None:
    """Put the values into the buffer that belong to the keys; the keys are used up."""
    dtype = next(value for value, key in _KEYS.items() if key == keys.dtype)
    buffer.copy_(_turn_negative(keys).view(dtype))


def _turn_negative(keys: torch.Tensor) -> torch.Tensor:
    """In place: floating-point numbers are sign and magnitude, so the greater such an integer, the less it means."""
    return keys.bitwise_xor_((keys >> (torch.iinfo(keys.dtype).bits - 1)) & torch.iinfo(keys.dtype).max)
