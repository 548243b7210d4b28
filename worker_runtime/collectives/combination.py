"""How the ranks' values become one: the reduction, its factors, the division of an average, and what a NaN does.

The greatest of some numbers is NaN as soon as one of them is: so torch has it, and NumPy, which combines what travels
inside a question. gloo compares with `<`, so that a NaN counts or is lost as the order of its comparisons has it, and
differently in each part of a tensor. So each rank says in its question whether it has any. Where one has, all send
whole numbers in place of floating-point ones, of which a NaN has the greatest or the least. A rank that has none pays
for one pass over the values.
"""

import inspect
import math
import warnings
from collections.abc import Iterable
from typing import NamedTuple, Self, SupportsFloat, SupportsIndex

import torch

from worker_runtime.collectives.dtypes import INTEGERS, check_reducible
from worker_runtime.coordination.ordering.questions import Reduction
from worker_runtime.errors import UnsupportedReductionError, WrongArgumentError

_PACKAGE = __name__.partition(".")[0]


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


def choose(op: object, average: object, prescale: float, postscale: float) -> Combination:
    """How programs have an allreduce combine; see `choose_reduction`."""
    reduction = op if average is None and isinstance(op, Reduction) else choose_reduction(op, average)
    return Combination(reduction, prescale, postscale)


def choose_for_scatter(op: object, prescale: float, postscale: float) -> Combination:
    """How programs have a reducescatter combine.

    Raises:
        ValueError: there is no such reduction.
        HorovodInternalError: it is neither Average nor Sum.
    """
    reduction = choose_reduction(op)
    if reduction not in (Reduction.AVERAGE, Reduction.SUM):
        raise UnsupportedReductionError(reduction.name.title())
    return Combination(reduction, prescale, postscale)


def choose_reduction(op: object, average: object = None) -> Reduction:
    """The reduction that `op`, or the deprecated `average`, asks for; without either, the average.

    Args:
        op: one of Horovod's constants.
        average: True for Average, False for Sum. The warning about it names the program's line.

    Raises:
        ValueError: both are given, or there is no such reduction.
    """
    if average is not None:
        if op is not None:
            raise ValueError("The op parameter supersedes average. Please provide only one of them.")
        message = "average is deprecated; use op=hvd.Average or op=hvd.Sum"
        if not torch.compiler.is_compiling():  # which cannot trace the search for the line
            warnings.warn(message, DeprecationWarning, stacklevel=_find_program())
        return Reduction.AVERAGE if average else Reduction.SUM
    if op is None:
        return Reduction.AVERAGE
    if isinstance(op, Reduction):
        return op
    try:
        return Reduction(op)  # type: ignore[arg-type]  # that it may be none is what is looked for
    except ValueError:
        raise ValueError(f"op={op!r} is not supported; it is one of Average, Sum, Adasum, Min, Max, Product") from None


def _find_program() -> int:
    """How far up the caller's stack the program is, above this package; as `warnings.warn` counts."""
    frame, level = inspect.currentframe(), 0
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] == _PACKAGE:
        frame, level = frame.f_back, level + 1
    return level


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


def check_combination(dtypes: Iterable[torch.dtype], how: Combination) -> None:
    """Raise ValueError unless values of these dtypes can be combined so."""
    for dtype in dtypes:
        check_reducible(dtype, how.reduction)
        if dtype == torch.bool and how.factors != (1.0, 1.0):
            raise ValueError("truth values cannot be scaled; convert them")


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
