"""The return value of a closure."""

from contextlib import suppress
from numbers import Complex, Real
from typing import SupportsFloat

import torch

from worker_runtime.errors import WrongArgumentError


def read_loss(loss: object) -> torch.Tensor:
    """The return value of a closure as a tensor: numbers as float64, zero for None.

    Raises:
        WrongArgumentError: the value is neither a tensor nor a real number nor None.
    """
    if isinstance(loss, torch.Tensor):
        if loss.is_floating_point() or loss.is_complex():
            return loss
        return loss.double()
    number = loss
    if loss is None:
        number = 0.0
    with suppress(TypeError, ValueError, OverflowError):  # an array of several numbers
        if isinstance(number, SupportsFloat) and (isinstance(number, Real) or not isinstance(number, Complex)):
            return torch.tensor(float(number), dtype=torch.float64, device="cpu")
    raise WrongArgumentError(
        f"optimizer.step(): the closure returned {type(loss).__name__}; return the loss, a tensor or a number, or None"
    )
