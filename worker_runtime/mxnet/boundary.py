"""Where a call of the program's enters: every error that leaves here is MXNet's, too.

Horovod's operations report through MXNet's C interface, so that programs catch `mx.base.MXNetError` whatever is wrong:
an argument, a name in flight, ranks that do not agree.
"""

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from mxnet.base import MXNetError

from worker_runtime import errors
from worker_runtime.errors import HorovodInternalError

P = ParamSpec("P")
ResultT = TypeVar("ResultT")


def raises_mxnet_errors(function: Callable[P, ResultT]) -> Callable[P, ResultT]:
    """Have a function's own errors caught by `except mx.base.MXNetError` as well as by their own names."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> ResultT:
        try:
            return function(*args, **kwargs)
        except MXNetError:
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
    return type(own.__name__, (own, MXNetError), {"__doc__": own.__doc__, "__module__": own.__module__})
