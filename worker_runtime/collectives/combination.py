"""How the ranks' values become one: the reduction, its factors, and the division of an average."""

from typing import NamedTuple, Self, SupportsFloat, SupportsIndex

import torch

from worker_runtime.collectives.dtypes import INTEGERS
from worker_runtime.coordination.ordering.questions import Reduction
from worker_runtime.errors import WrongArgumentError


class _Parts(NamedTuple):
    reduction: Reduction
    prescale: float
    postscale: float


class Combination(_Parts):
    """A reduction, and factors before and after it: postscale * reduce(prescale * x), and for the average 1/size.

    Integers are scaled in float64 and truncated toward zero, half precision in single. (A tuple, since it is a part of
    the key of every call's plan, and a tuple's hash is made quickly.)

    Args:
        reduction: how to combine.
        prescale, postscale: numbers, also NumPy's, or tensors of one element; floats from then on.

    Raises:
        WrongArgumentError: a factor is no number.
    """

    __slots__ = ()

    def __new__(cls, reduction: Reduction = Reduction.AVERAGE, prescale: float = 1.0, postscale: float = 1.0) -> Self:
        """Make the factors floats."""
        if type(prescale) is not float or prescale != prescale:  # noqa: PLR0124 - only NaN differs from itself
            prescale = read_factor("prescale_factor", prescale)
        if type(postscale) is not float or postscale != postscale:  # noqa: PLR0124 - only NaN differs from itself
            postscale = read_factor("postscale_factor", postscale)
        return tuple.__new__(cls, (reduction, prescale, postscale))

    @property
    def factors(self) -> tuple[float, float]:
        """Both factors."""
        return self[1:]


def read_factor(title: str, value: object) -> float:
    """A factor that a program has given, as a float.

    Args:
        title: what the program calls it.
        value: a number, also one of NumPy's, or a tensor of one element.

    Raises:
        WrongArgumentError: it is something else, too large for a float, or NaN, which no two ranks can agree on.
    """
    number = value.detach() if isinstance(value, torch.Tensor) else value
    if isinstance(number, SupportsFloat | SupportsIndex):
        try:
            factor = float(number)
        except (TypeError, ValueError, ArithmeticError, RuntimeError) as error:
            raise WrongArgumentError(f"{title} is no number that a float can hold ({error}); give one") from None
        if factor == factor:  # noqa: PLR0124 - only NaN differs from itself
            return factor
    raise WrongArgumentError(f"{title} is {value!r}; give a number")


AVERAGE = Combination()
SUM = Combination(Reduction.SUM)


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
