"""Other launchers: what their environment variables say of this process, and which store its members share.

A script that says `hvd.init()` runs under torchrun, mpirun and srun as well; it never silently trains alone there.

Where the program uses mpi4py, MPI's world is the job's own, or the worker is refused. Horovod that is built with MPI
has initialized it by the end of `init()`, and programs count on that. Here MPI carries nothing. But the processes that
mpirun has started are a world to MPI, too; to those of other launchers each is alone.
"""

import atexit
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType
from typing import Any

from worker_runtime.errors import ForeignRankError, ForeignWorldError, MpiWorldError
from worker_runtime.rendezvous import Assignment, Bootstrap

# Slurm numbers its own steps (the batch script, an interactive shell, ...) from here up: no srun started those.
_FIRST_SPECIAL_STEP = 0xFFFFFFF0


# The variables of each launcher: a process' rank, and the size of its world. The first pair that is set counts.
_LAUNCHERS = (
    ("torchrun", "RANK", "WORLD_SIZE"),
    ("mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("mpirun", "PMI_RANK", "PMI_SIZE"),
    ("mpirun", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"),
    ("srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
    ("srun", "SLURM_PROCID", "SLURM_NTASKS"),  # where the one before is not set
    ("horovodrun", "HOROVOD_RANK", "HOROVOD_SIZE"),
)


@dataclass(frozen=True, slots=True)
class Master:
    """The members share torch's store at this address, as MASTER_ADDR and MASTER_PORT say."""

    address: str
    port: int

    def __str__(self) -> str:
        return f"[{self.address}]:{self.port}" if ":" in self.address else f"{self.address}:{self.port}"


@dataclass(frozen=True, slots=True)
class OneHost:
    """All members are on one host and share files there, named after their launcher's own name for the job."""

    job: str


@dataclass(frozen=True, slots=True)
class World:
    """One process' place among those that another launcher has started.

    launcher: which one, as its users call it.
    store: where the members exchange what they must know before they have a group.
    """

    launcher: str
    rank: int
    size: int
    store: Master | OneHost


def find_world(environment: Mapping[str, str]) -> World | None:
    """The world of several that another launcher has put this process into; None when there is none.

    Raises:
        ForeignWorldError: there is one, but its variables do not say how its members can find each other.
        ForeignRankError: there is one, and by its variables this process cannot be in it.
    """
    if "RANK" not in environment and (size := _read(environment, "WORLD_SIZE") or 0) > 1:
        raise ForeignWorldError("torchrun (WORLD_SIZE is set, RANK is not)", size)
    for launcher, rank_name, size_name in _LAUNCHERS:
        rank, size = _read(environment, rank_name), _read(environment, size_name) or 0
        if rank is None or size < 2 or (launcher == "srun" and not _is_of_srun(environment, size_name)):  # noqa: PLR2004 - a world of several
            continue
        if rank >= size:
            raise ForeignRankError(launcher, rank, size)
        address, port = environment.get("MASTER_ADDR"), _read(environment, "MASTER_PORT")
        if address and port is not None:
            return World(launcher, rank, size, Master(address, port))
        job = _name_job(environment, rank_name, size)
        if job is None:
            raise ForeignWorldError(launcher, size)
        return World(launcher, rank, size, OneHost(f"{launcher}-{job}"))
    return None


def _read(environment: Mapping[str, str], name: str) -> int | None:
    text = environment.get(name, "")
    return int(text) if text.isdecimal() else None


def _is_of_srun(environment: Mapping[str, str], size_name: str) -> bool:
    """Whether srun has started this process, and says in this variable how many it has started."""
    step = _read(environment, "SLURM_STEP_ID")
    own = "SLURM_STEP_NUM_TASKS" if "SLURM_STEP_NUM_TASKS" in environment else "SLURM_NTASKS"
    return step is not None and step < _FIRST_SPECIAL_STEP and size_name == own


def _name_job(environment: Mapping[str, str], rank_name: str, size: int) -> str | None:
    """The launcher's own name for the job, where all members are on one host."""
    if rank_name.startswith("OMPI") and environment.get("OMPI_COMM_WORLD_LOCAL_SIZE") == str(size):
        return environment.get("PMIX_NAMESPACE") or environment.get("OMPI_MCA_ess_base_jobid")
    if rank_name.startswith("SLURM"):
        hosts = environment.get("SLURM_STEP_NUM_NODES") or environment.get("SLURM_NNODES")
        job = environment.get("SLURM_JOB_ID")
        return f"{job}.{environment['SLURM_STEP_ID']}" if job and hosts == "1" else None
    return None


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
    except (
        ImportError,
        RuntimeError,
    ):  # there is none, or no library of MPI; a program that uses it gets its own error
        return None


def _finalize(mpi: Any, leave: Callable[[], None], pid: int) -> None:  # noqa: ANN401 - an optional package's module
    """At the end of the process; after an exception mpirun is to end the others, and does so where this is left out."""
    if os.getpid() == pid and not mpi.Is_finalized() and not hasattr(sys, "last_type"):
        leave()
        mpi.Finalize()
