"""The combination of the ranks' values: the reduction, its factors, the division of an average, and NaNs.

The minimum or maximum of values with a NaN is NaN in torch, and in NumPy, which combines values that are sent inside
requests. gloo compares with `<`, so a NaN may or may not win, differently in each part of a tensor. So each rank
reports in its request whether it has a NaN. If one has, all ranks send order keys, which are integers in the order of
the values; a NaN has the largest or the smallest key. Without NaNs this costs one pass over the values.
"""

import inspect
import math
import warnings
from collections.abc import Iterable
from typing import NamedTuple, Self, SupportsFloat, SupportsIndex

import torch

from worker_runtime.collectives.dtypes import INTEGERS, check_reducible
from worker_runtime.coordination.ordering.requests import Reduction
from worker_runtime.errors import UnsupportedReductionError, WrongArgumentError

_PACKAGE = __name__.partition(".")[0]


class _Parts(NamedTuple):
    reduction: Reduction
    prescale: float
    postscale: float


class Combination(_Parts):
    """A reduction, and factors before and after it: postscale * reduce(prescale * x); an average also divides by size.

    Integers are scaled in float64 and truncated toward zero, float16 and bfloat16 in float32. As a tuple it has a fast
    hash: it is part of the key of every call's plan.

    Args:
        reduction: the reduction.
        prescale, postscale: numbers, also NumPy's, or tensors of one element; stored as floats.

    Raises:
        WrongArgumentError: a factor is not a number.
    """

    __slots__ = ()

    def __new__(cls, reduction: Reduction = Reduction.AVERAGE, prescale: float = 1.0, postscale: float = 1.0) -> Self:
        """Convert the factors to floats."""
        if type(prescale) is not float or prescale != prescale:  # noqa: PLR0124 - only NaN differs from itself
            prescale = read_factor("prescale_factor", prescale)
        if type(postscale) is not float or postscale != postscale:  # noqa: PLR0124 - only NaN differs from itself
            postscale = read_factor("postscale_factor", postscale)
        return tuple.__new__(cls, (reduction, prescale, postscale))

    @property
    def factors(self) -> tuple[float, float]:
        """The factor before the reduction and the factor after it."""
        return self[1:]


def choose_combination(op: object, average: object, prescale: float, postscale: float) -> Combination:
    """The combination of an allreduce from a program's arguments; see `choose_reduction`."""
    if average is None and isinstance(op, Reduction):
        reduction = op
    else:
        reduction = choose_reduction(op, average)
    return Combination(reduction, prescale, postscale)


def choose_for_scatter(op: object, prescale: float, postscale: float) -> Combination:
    """The combination of a reducescatter from a program's arguments.

    Raises:
        ValueError: `op` is not a reduction.
        HorovodInternalError: `op` is neither Average nor Sum.
    """
    reduction = choose_reduction(op)
    if reduction not in (Reduction.AVERAGE, Reduction.SUM):
        raise UnsupportedReductionError(reduction.name.title())
    return Combination(reduction, prescale, postscale)


def choose_reduction(op: object, average: object = None) -> Reduction:
    """The reduction of the argument `op`, or of the deprecated `average`; without either, Average.

    Args:
        op: one of Horovod's constants.
        average: True for Average, False for Sum. The deprecation warning names the program's line.

    Raises:
        ValueError: both are given, or `op` is not a reduction.
    """
    if average is not None:
        if op is not None:
            raise ValueError("The op parameter supersedes average. Please provide only one of them.")
        message = "average is deprecated; use op=hvd.Average or op=hvd.Sum"
        # torch.compile cannot trace the search for the line.
        if not torch.compiler.is_compiling():
            warnings.warn(message, DeprecationWarning, stacklevel=find_stack_level())
        if average:
            return Reduction.AVERAGE
        return Reduction.SUM

    if op is None:
        return Reduction.AVERAGE
    if isinstance(op, Reduction):
        return op

    try:
        return Reduction(op)  # type: ignore[arg-type]  # a wrong value raises the ValueError
    except ValueError:
        raise ValueError(f"op={op!r} is not supported; it is one of Average, Sum, Adasum, Min, Max, Product") from None


def find_stack_level() -> int:
    """The stack level of the first frame outside of this package, as `warnings.warn` counts."""
    frame, level = inspect.currentframe(), 0
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] == _PACKAGE:
        frame, level = frame.f_back, level + 1
    return level


def read_factor(title: str, value: object) -> float:
    """A program's factor as a float.

    Args:
        title: the name of the argument.
        value: a number, also NumPy's, or a tensor of one element.

    Raises:
        WrongArgumentError: it is no such number, too large for a float, or NaN, which never equals another rank's.
    """
    number = value
    if isinstance(value, torch.Tensor):
        number = value.detach()
    if isinstance(number, SupportsFloat | SupportsIndex):
        try:
            factor = float(number)
        except (TypeError, ValueError, ArithmeticError, RuntimeError) as error:
            raise WrongArgumentError(f"{title} is not one number that fits a float ({error}); give one") from None
        if factor == factor:  # noqa: PLR0124 - only NaN differs from itself
            return factor
    raise WrongArgumentError(f"{title} is {value!r}; give a number")


AVERAGE = Combination()
SUM = Combination(Reduction.SUM)


def check_combination(dtypes: Iterable[torch.dtype], how: Combination) -> None:
    """Raise ValueError unless the combination supports these dtypes."""
    for dtype in dtypes:
        check_reducible(dtype, how.reduction)
        if dtype == torch.bool and how.factors != (1.0, 1.0):
            raise ValueError("tensors of bool cannot be scaled; convert them")


def scale_(buffer: torch.Tensor, factor: float) -> None:
    """Multiply in place: integers in float64, truncated toward zero; float16 and bfloat16 in float32, like torch."""
    if factor == 1.0:
        return
    if buffer.dtype in INTEGERS:
        buffer.copy_(buffer.to(torch.float64).mul_(factor))  # the conversion back truncates
    else:
        buffer.mul_(factor)


def conclude_(buffer: torch.Tensor, how: Combination, size: int) -> None:
    """Turn the reduced values into the result, in place: multiply by postscale, and divide an average by the size.

    Args:
        buffer: the reduced values; integers to average are int64 here.
        how: how they were reduced.
        size: the size of the set.
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


_KEYS = {torch.float32: torch.int32, torch.float64: torch.int64}


def may_have_nan(tensors: Iterable[torch.Tensor], prescale: float) -> bool:
    """Whether a tensor may have a NaN after the multiplication by `prescale`."""
    floats = [tensor.detach() for tensor in tensors if tensor.dtype.is_floating_point and tensor.numel()]
    if prescale == 0.0 or not math.isfinite(prescale):
        return bool(floats)
    return any(math.isnan(tensor.amax().item()) for tensor in floats)


def make_keys(buffer: torch.Tensor, reduction: Reduction) -> torch.Tensor:
    """Order keys: integers in the order of the buffer's values. A NaN gets the key that wins the reduction.

    Args:
        buffer: floating-point values; not changed.
        reduction: MIN or MAX.
    """
    # Gloo does not reduce int16.
    wide = buffer
    if buffer.dtype not in _KEYS:
        wide = buffer.to(torch.float32)
    keys = _flip_negative(wide.view(_KEYS[wide.dtype]).clone())
    bounds = torch.iinfo(keys.dtype)
    return keys.masked_fill_(wide.isnan(), bounds.max if reduction is Reduction.MAX else bounds.min)


def read_keys(keys: torch.Tensor, buffer: torch.Tensor) -> None:
    """Write the values of the keys to the buffer; this changes the keys."""
    dtype = next(value for value, key in _KEYS.items() if key == keys.dtype)
    buffer.copy_(_flip_negative(keys).view(dtype))


def _flip_negative(keys: torch.Tensor) -> torch.Tensor:
    """Reverse the order of negative keys in place: floating-point numbers are stored as sign and magnitude."""
    return keys.bitwise_xor_((keys >> (torch.iinfo(keys.dtype).bits - 1)) & torch.iinfo(keys.dtype).max)
