"""What a program gives a distributed optimizer or trainer, looked at before anything is done with it.

All of it is used much later, in a step; what is wrong is told where it was given.
"""

import math
import operator
from typing import Any, SupportsIndex

from worker_runtime.collectives.combination import read_factor
from worker_runtime.errors import WrongArgumentError


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
