"""What a program gives a distributed optimizer or trainer, looked at before anything is done with it.

All of it is used much later, in a step; what is wrong is told where it was given.
"""

import math
import operator
from typing import SupportsFloat, SupportsIndex


def read_factor(title: str, factor: object) -> float:
    """The factor by which gradients are divided before the sum, and multiplied after.

    Args:
        title: who was called, for messages.
        factor: any number, also NumPy's.

    Raises:
        TypeError: it is no number.
        ValueError: one cannot divide and multiply by it.
    """
    wish = f"{title}: gradient_predivide_factor is {factor!r}; give a number"
    if not isinstance(factor, SupportsFloat):
        raise TypeError(wish)
    number = float(factor)
    if number == 0.0 or not math.isfinite(number) or not math.isfinite(1.0 / number):
        raise ValueError(f"{wish} by which gradients can be divided and multiplied")
    return number


def read_group_count(title: str, count: object) -> int:
    """The number of groups in which gradients travel.

    Raises:
        TypeError: it is no integer.
        ValueError: it is negative.
    """
    wish = f"{title}: num_groups is {count!r}; give how many, or 0 for as is fastest"
    if not isinstance(count, SupportsIndex):
        raise TypeError(wish)
    number = operator.index(count)
    if number < 0:
        raise ValueError(wish)
    return number


def check_compression(title: str, compression: object) -> None:
    """Raise TypeError unless it can compress and decompress."""
    if not all(callable(getattr(compression, name, None)) for name in ("compress", "decompress")):
        raise TypeError(
            f"{title}: compression is {compression!r}; give hvd.Compression.none, hvd.Compression.fp16, or an object "
            "with compress and decompress"
        )
