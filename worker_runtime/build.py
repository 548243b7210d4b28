"""`python -m worker_runtime.build`: the frameworks and libraries of this interpreter in one line of JSON.

For `--check-build`. The frameworks are imported: one that is installed but cannot be imported counts as missing.
"""

import importlib
import json
import sys
from contextlib import redirect_stdout

MODULES = {"PyTorch": "torch", "MXNet": "mxnet"}


def main() -> int:
    """Answer on standard output; return the exit code."""
    with redirect_stdout(sys.stderr):  # the output of the frameworks' imports
        found = look()
    sys.stdout.write(json.dumps(found) + "\n")
    return 0


def look() -> dict[str, bool]:
    """The available frameworks, controllers and libraries, by Horovod's names."""
    has_torch = has_module(MODULES["PyTorch"])
    found = {"TensorFlow": False, "PyTorch": has_torch, "MXNet": has_torch and has_module(MODULES["MXNet"])}
    libraries = dict.fromkeys(("MPI", "Gloo", "NCCL", "DDL", "CCL"), False)
    if has_torch:
        from worker_runtime.api import basics  # noqa: PLC0415 - it imports torch

        libraries = {name: bool(getattr(basics, f"{name.lower()}_built")()) for name in libraries}
    return found | libraries


def has_module(name: str) -> bool:
    """Whether a module can be imported; prints the error on standard error."""
    try:
        importlib.import_module(name)
    except Exception as error:  # noqa: BLE001 - a broken framework may raise any error
        sys.stderr.write(f"{name}: {type(error).__name__}: {error}\n")
        return False
    return True


if __name__ == "__main__":
    sys.exit(main())
