"""Imports MXNet for this package, or raises an ImportError that says in one sentence why that cannot be.

Torch comes first: it brings the libgomp that MXNet needs, which slim systems lack, and so both use one.
"""

import sys

import numpy as np
import torch  # noqa: F401 - see above


class MXNetMissingError(ImportError):
    """There is no MXNet that can be imported: none at all, or one that fails, as all do beside a newer NumPy."""

    def __init__(self, cause: Exception) -> None:
        is_absent = isinstance(cause, ModuleNotFoundError) and cause.name == "mxnet"
        reason = "is not installed" if is_absent else f"cannot be imported ({cause})"
        remedy = "pip install 'hvdrun[mxnet]' brings it, with numpy < 1.24, which it needs"
        if isinstance(cause, OSError):
            remedy = "it needs libraries of the system, on Debian libgomp1 and libquadmath0"
        super().__init__(
            f"worker_runtime.mxnet needs MXNet 1.9.1, which {reason} in {sys.executable}, where numpy is "
            f"{np.__version__}: {remedy}",
            name="mxnet",
        )


try:
    import mxnet as mx  # noqa: F401 - whether it can be imported is the question
except (ImportError, AttributeError, OSError) as error:
    raise MXNetMissingError(error) from error
