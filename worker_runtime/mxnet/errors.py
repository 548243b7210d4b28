"""Imports what this package needs, or says what is missing; and has every error of a call be MXNet's, too.

Horovod's operations report through MXNet's C interface, so that programs catch `mx.base.MXNetError` whatever is wrong:
an argument, a name in flight, ranks that do not agree.

Torch comes first: it brings the libgomp that MXNet needs, which slim systems lack, and so both use one.
"""

import functools
import sys
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from worker_runtime import errors
from worker_runtime.errors import HorovodInternalError

P = ParamSpec("P")
ResultT = TypeVar("ResultT")

_REMEDY = "pip install mxnet==1.9.1 'numpy<1.24' torch"


class MXNetMissingError(ImportError):
    """MXNet, or what it or this package needs, is absent or fails, as any MXNet does beside a newer NumPy.

    Cause: MXNet is not installed, or NumPy is 1.24 or newer.
    Remedy: Install MXNet 1.9.1 and `numpy<1.24`.

    Args:
        cause: what importing it has raised.
        numpy: the version of NumPy; empty where there is none.
    """

    def __init__(self, cause: Exception, numpy: str = "") -> None:
        absent = cause.name if isinstance(cause, ModuleNotFoundError) else None
        needed, name, remedy = "MXNet 1.9", "mxnet", _REMEDY
        if absent in {"torch", "numpy"}:
            needed, name = absent, absent
        reason_given, *_ = str(cause).splitlines() or [
            type(cause).__name__
        ]  # MXNet lists where it has looked for its library
        reason = "is not installed" if absent == name else f"cannot be imported ({reason_given})"
        if isinstance(cause, OSError):
            remedy = "it needs libraries of the system, on Debian libgomp1 and libquadmath0"
        beside = f", where numpy is {numpy}" if numpy else ""
        super().__init__(
            f"worker_runtime.mxnet needs {needed}, which {reason} in {sys.executable}{beside}: {remedy}", name=name
        )


_numpy = ""
try:
    import numpy as np

    _numpy = np.__version__
    import torch  # noqa: F401 - see above
    import mxnet as mx  # isort: skip
except (ImportError, AttributeError, OSError, RuntimeError) as error:
    raise MXNetMissingError(error, _numpy) from error


def raises_mxnet_errors(function: Callable[P, ResultT]) -> Callable[P, ResultT]:
    """Have a function's own errors caught by `except mx.base.MXNetError` as well as by their own names."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> ResultT:
        try:
            return function(*args, **kwargs)
        except mx.base.MXNetError:
            raise
        except (ValueError, TypeError, HorovodInternalError) as error:
            raise _translate(error).with_traceback(error.__traceback__) from error.__cause__

    return call


def _translate(error: Exception) -> Exception:
    """An equal error that is of both kinds."""
    kind = _find_class(type(error))
    translated = kind.__new__(kind, *error.args)
    translated.__dict__.update(error.__dict__)
    return translated


def _find_class(kind: type[Exception]) -> type[Exception]:
    own = kind if kind.__module__ == errors.__name__ else ValueError if issubclass(kind, ValueError) else TypeError
    return type(own.__name__, (own, mx.base.MXNetError), {"__doc__": own.__doc__, "__module__": own.__module__})
