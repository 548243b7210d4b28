"""How a caller says what an allreduce shall do, in Horovod's words."""

import inspect
import warnings

import torch

from worker_runtime.coordination.ordering.questions import Reduction
from worker_runtime.errors import UnsupportedReductionError

_PACKAGE = __name__.partition(".")[0]

Average = Reduction.AVERAGE
Sum = Reduction.SUM
Adasum = Reduction.ADASUM
Min = Reduction.MIN
Max = Reduction.MAX
Product = Reduction.PRODUCT


def choose_reduction(op: int | None, average: bool | None = None) -> Reduction:  # noqa: FBT001 - Horovod's argument
    """The reduction that `op`, or the deprecated `average`, asks for; without either, the average.

    Args:
        op: one of the constants above.
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
        return Reduction(op)
    except ValueError:
        raise ValueError(f"op={op!r} is not supported; it is one of Average, Sum, Adasum, Min, Max, Product") from None


def choose_scatter_reduction(op: int) -> Reduction:
    """The reduction that `op` asks for, where it is one that a reducescatter has under Horovod's name.

    Raises:
        ValueError: there is no such reduction.
        HorovodInternalError: it is neither Average nor Sum.
    """
    reduction = choose_reduction(op)
    if reduction not in (Reduction.AVERAGE, Reduction.SUM):
        raise UnsupportedReductionError(reduction.name.title())
    return reduction


def handle_average_backwards_compatibility(op: int | None, average: bool | None) -> Reduction:  # noqa: FBT001 - Horovod's signature
    """`choose_reduction` under Horovod's name; the warning names the caller's line."""
    return choose_reduction(op, average)


def _find_program() -> int:
    """How far up the stack of whoever calls this the program is, above this package; as `warnings.warn` counts."""
    frame, level = inspect.currentframe(), 0
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] == _PACKAGE:
        frame, level = frame.f_back, level + 1
    return level
