"""mpi4py in the program: MPI's world is the job's own, or the worker is refused.

Horovod that is built with MPI has initialized it by the end of `init()`, and programs count on that. Here MPI carries
nothing. But the processes that mpirun has started are a world to MPI, too; to those of other launchers each is alone.
"""

import atexit
import os
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from types import ModuleType
from typing import Any

from worker_runtime.errors import MpiWorldError
from worker_runtime.membership.worlds import find_world
from worker_runtime.rendezvous import Assignment, Bootstrap

_PACKAGE, _MODULE = "mpi4py", "mpi4py.MPI"


def join_mpi_world(
    environment: Mapping[str, str], numbers: Assignment, leave: Callable[[], None], *, loads: bool = False
) -> ModuleType | None:
    """Initialize MPI where the program has loaded mpi4py and mpirun has made the world.

    Args:
        environment: of this process.
        numbers: of this worker in the job.
        leave: is called before MPI is finalized, which waits for the other processes.
        loads: load mpi4py where mpirun has made the world.

    Returns:
        mpi4py's MPI, whose world is the job; None where it is not used.

    Raises:
        MpiWorldError: it has another world.
    """
    is_of_mpi = _is_of_mpi(environment)
    mpi: Any = _load() if is_of_mpi and (loads or _PACKAGE in sys.modules) else sys.modules.get(_MODULE)
    if mpi is None or mpi.Is_finalized():
        return None
    if not mpi.Is_initialized():
        if not is_of_mpi:
            if numbers.size > 1:
                raise MpiWorldError(numbers)
            return None
        mpi.Init_thread()
        atexit.register(_finalize, mpi, leave, os.getpid())
    rank, size = mpi.COMM_WORLD.Get_rank(), mpi.COMM_WORLD.Get_size()
    if (rank, size) != (numbers.rank, numbers.size):
        raise MpiWorldError(numbers, rank, size)
    module: ModuleType = mpi
    return module


def _is_of_mpi(environment: Mapping[str, str]) -> bool:
    """Whether a launcher that speaks with MPI has made the world."""
    world = None if Bootstrap.read(environment) else find_world(environment)
    return world is not None and (
        world.launcher == "mpirun" or (world.launcher == "srun" and "PMIX_RANK" in environment)
    )


def _load() -> ModuleType | None:
    try:
        return import_module(_MODULE)
    except (ImportError, RuntimeError):  # there is none, or no library of MPI; who uses it is told by itself
        return None


def _finalize(mpi: Any, leave: Callable[[], None], pid: int) -> None:  # noqa: ANN401 - an optional package's module
    """At the end of the process; after an exception mpirun is to end the others, and does so where this is left out."""
    if os.getpid() == pid and not mpi.Is_finalized() and not hasattr(sys, "last_type"):
        leave()
        mpi.Finalize()
