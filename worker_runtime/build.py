"""`python -m worker_runtime.build`: what this interpreter's workers can do, as one line of JSON; for --check-build.

The frameworks are really imported: one that is installed and cannot be imported helps no worker.
"""

import importlib
import json
import sys
from contextlib import redirect_stdout

MODULES = {"PyTorch": "torch", "MXNet": "mxnet"}


def main() -> int:
    """Answer on standard output; the process's exit code."""
    with redirect_stdout(sys.stderr):  # what frameworks print when they are imported
        found = look()
    sys.stdout.write(json.dumps(found) + "\n")
    return 0


def look() -> dict[str, bool]:
    """Which frameworks, controllers and libraries there are, by Horovod's names for them."""
    has_torch = has_module(MODULES["PyTorch"])
    found = {"TensorFlow": False, "PyTorch": has_torch, "MXNet": has_torch and has_module(MODULES["MXNet"])}
    libraries = dict.fromkeys(("MPI", "Gloo", "NCCL", "DDL", "CCL"), False)
    if has_torch:
        from worker_runtime.api import basics  # noqa: PLC0415 - it stands on torch

        libraries = {name: bool(getattr(basics, f"{name.lower()}_built")()) for name in libraries}
    return found | libraries


def has_module(name: str) -> bool:
    """Whether it can be imported; why not goes to standard error."""
    try:
        importlib.import_module(name)
    except Exception as error:  # noqa: BLE001 - a framework that is broken raises what it likes
        sys.stderr.write(f"{name}: {type(error).__name__}: {error}\n")
        return False
    return True


if __name__ == "__main__":
    sys.exit(main())
