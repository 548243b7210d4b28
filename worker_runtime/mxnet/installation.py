"""Imports what this package needs, or raises an ImportError that says in one sentence what is missing.

Torch comes first: it brings the libgomp that MXNet needs, which slim systems lack, and so both use one.
"""

import sys

_REMEDY = "pip install 'hvdrun[mxnet]' brings all that is needed: MXNet, torch, and numpy < 1.24"


class MXNetMissingError(ImportError):
    """MXNet, or what it or this package needs, is absent or fails, as any MXNet does beside a newer NumPy.

    Args:
        cause: what importing it has raised.
        numpy: the version of NumPy; empty where there is none.
    """

    def __init__(self, cause: Exception, numpy: str = "") -> None:
        absent = cause.name if isinstance(cause, ModuleNotFoundError) else None
        needed, name, remedy = "MXNet 1.9", "mxnet", _REMEDY
        if absent in {"torch", "numpy"}:
            needed, name = absent, absent
        told, *_ = str(cause).splitlines() or [type(cause).__name__]  # MXNet lists where it has looked for its library
        reason = "is not installed" if absent == name else f"cannot be imported ({told})"
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
    import mxnet as mx  # noqa: F401 - whether it can be imported is the question  # isort: skip
except (ImportError, AttributeError, OSError, RuntimeError) as error:
    raise MXNetMissingError(error, _numpy) from error
