"""Imports MXNet, or reports its absence; and makes every error of a call an MXNetError too.

Horovod reports all errors through MXNet's C interface, so programs catch `mx.base.MXNetError` for wrong arguments, a
name in flight, or ranks that differ.

Torch is imported first: it brings the libgomp that MXNet needs and slim systems lack, and so both use the same one.
"""

import functools
import sys
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from worker_runtime import errors
from worker_runtime.errors import HorovodInternalError

P = ParamSpec("P")
ResultT = TypeVar("ResultT")

_REMEDY = "with Python 3.11, pip install mxnet==1.9.1 'numpy<1.24' torch"


class MXNetMissingError(ImportError):
    """MXNet, or a package that it needs, cannot be imported.

    Cause: MXNet is not installed, or NumPy is 1.24 or newer.
    Remedy: Install MXNet 1.9.1 and `numpy<1.24`. They need Python 3.11.

    Args:
        cause: the error of the import.
        numpy: the version of NumPy; empty if it is not installed.
    """

    def __init__(self, cause: Exception, numpy: str = "") -> None:
        absent = None
        if isinstance(cause, ModuleNotFoundError):
            absent = cause.name
        needed, name, remedy = "MXNet 1.9", "mxnet", _REMEDY
        if absent in {"torch", "numpy"}:
            needed, name = absent, absent
        # Further lines of MXNet's error list the paths of its library.
        reason_given, *_ = str(cause).splitlines() or [type(cause).__name__]
        reason = "is not installed" if absent == name else f"cannot be imported ({reason_given})"
        if isinstance(cause, OSError):
            remedy = "it needs system libraries, on Debian libgomp1 and libquadmath0"
        beside = f", where numpy is {numpy}" if numpy else ""

        super().__init__(
            f"worker_runtime.mxnet needs {needed}, which {reason} in {sys.executable}{beside}: {remedy}", name=name
        )


_numpy = ""
try:
    import numpy as np

    _numpy = np.__version__
    import torch  # noqa: F401 - it brings the libgomp that MXNet needs
    import mxnet as mx  # isort: skip
except (ImportError, AttributeError, OSError, RuntimeError) as error:
    raise MXNetMissingError(error, _numpy) from error


def raises_mxnet_errors(function: Callable[P, ResultT]) -> Callable[P, ResultT]:
    """Decorate a function so that its errors are MXNetErrors in addition to their own classes."""

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
    """An equal error of both classes."""
    kind = _find_class(type(error))
    translated = kind.__new__(kind, *error.args)
    translated.__dict__.update(error.__dict__)
    return translated


def _find_class(kind: type[Exception]) -> type[Exception]:
    if kind.__module__ == errors.__name__:
        own = kind
    elif issubclass(kind, ValueError):
        own = ValueError
    else:
        own = TypeError
    return type(own.__name__, (own, mx.base.MXNetError), {"__doc__": own.__doc__, "__module__": own.__module__})
