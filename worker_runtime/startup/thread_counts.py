"""How many threads torch and NumPy's BLAS use: set in a process whose libraries were loaded with OMP_NUM_THREADS=1."""

import ctypes
import os
import sys
from pathlib import Path

# NumPy and SciPy rename the symbols of the OpenBLAS that they bring, each release in its own way.
_OPENBLAS_SETTERS = tuple(
    f"{prefix}openblas_set_num_threads{suffix}" for prefix in ("", "scipy_") for suffix in ("", "64_", "_64")
)


def set_all(wanted: int | None) -> None:
    """Use as many threads from now on as if OMP_NUM_THREADS had said so before the imports; None: it was not set."""
    if wanted == 1:
        return
    usable = len(os.sched_getaffinity(0))
    count = usable if wanted is None else min(wanted, usable)
    torch = sys.modules.get("torch")
    if torch is not None:
        if torch.backends.mkl.is_available():  # it never uses more threads than there are cores, and torch follows it
            torch.set_num_threads(min(count, len(_find_cores())))
        else:
            torch.set_num_threads(usable if wanted is None else wanted)
    for library in _find_openblas():
        handle = ctypes.CDLL(library)
        for name in _OPENBLAS_SETTERS:
            if hasattr(handle, name):
                getattr(handle, name)(count)
                break


def _find_openblas() -> set[str]:
    """The OpenBLAS libraries that this process has mapped; NumPy and SciPy bring one each."""
    lines = Path("/proc/self/maps").read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    return {line[line.index("/") :] for line in lines if "openblas" in line and "/" in line}


def _find_cores() -> set[tuple[str, str]]:
    """The cores that this process may use; one core may have two hardware threads."""
    return {_find_core(cpu) for cpu in os.sched_getaffinity(0)}


def _find_core(cpu: int) -> tuple[str, str]:
    topology = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology")
    try:
        package = (topology / "physical_package_id").read_text(encoding="ascii").strip()
        return package, (topology / "core_id").read_text(encoding="ascii").strip()
    except OSError:  # no such folder in some containers
        return "cpu", str(cpu)
