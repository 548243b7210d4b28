"""How many threads torch and NumPy's BLAS use: set in a process that was forked where the environment said one."""

import ctypes
import sys
from pathlib import Path

_OPENBLAS_SETTERS = ("openblas_set_num_threads64_", "openblas_set_num_threads")


def set_all(count: int) -> None:
    """Use `count` threads from now on, as OMP_NUM_THREADS would have said before the imports."""
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(count)
    for library in _loaded_openblas():
        handle = ctypes.CDLL(library)
        for name in _OPENBLAS_SETTERS:
            if hasattr(handle, name):
                getattr(handle, name)(count)
                break


def _loaded_openblas() -> set[str]:
    """The OpenBLAS libraries that this process has mapped; NumPy and SciPy bring one each."""
    lines = Path("/proc/self/maps").read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    return {line[line.index("/") :] for line in lines if "openblas" in line and "/" in line}
