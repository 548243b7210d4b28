"""Other launchers: this process's rank, size and store by their environment variables.

A script that calls `hvd.init()` also runs under torchrun, mpirun and srun; it never silently trains alone there.

If the program uses mpi4py, `init()` initializes MPI, as programs expect of a Horovod with MPI, and raises an error
unless the MPI world is the job. hvdrun does not communicate over MPI.
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
from worker_runtime.rendezvous import Assignment, Bootstrap, Endpoint

# Slurm gives its own steps (the batch script, an interactive shell, ...) numbers from here up: srun did not start them.
_FIRST_SPECIAL_STEP = 0xFFFFFFF0


# The variables of each launcher: the rank and the size of its world. The first pair that is set counts.
_LAUNCHERS = (
    ("torchrun", "RANK", "WORLD_SIZE"),
    ("mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("mpirun", "PMI_RANK", "PMI_SIZE"),
    ("mpirun", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"),
    ("srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
    ("srun", "SLURM_PROCID", "SLURM_NTASKS"),  # if SLURM_STEP_NUM_TASKS is not set
    ("horovodrun", "HOROVOD_RANK", "HOROVOD_SIZE"),
)


@dataclass(frozen=True, slots=True)
class OneHost:
    """All members are on one host, and share files.

    job: the launcher's name of the job.
    """

    job: str


@dataclass(frozen=True, slots=True)
class World:
    """The rank and size of a process that another launcher has started.

    launcher: the launcher's command.
    store: the store in which the members meet: torch's, at MASTER_ADDR and MASTER_PORT, or files on one host.
    """

    launcher: str
    rank: int
    size: int
    store: Endpoint | OneHost


def find_world(environment: Mapping[str, str]) -> World | None:
    """The world of several processes to which another launcher has added this one; None if there is none.

    Raises:
        ForeignWorldError: the launcher's variables have no address where the members can meet.
        ForeignRankError: the variables give a rank that is not less than the size.
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
            return World(launcher, rank, size, Endpoint(address, port))
        job = _name_job(environment, rank_name, size)
        if job is None:
            raise ForeignWorldError(launcher, size)
        return World(launcher, rank, size, OneHost(f"{launcher}-{job}"))
    return None


def _read(environment: Mapping[str, str], name: str) -> int | None:
    text = environment.get(name, "")
    if text.isdecimal():
        return int(text)
    return None


def _is_of_srun(environment: Mapping[str, str], size_name: str) -> bool:
    """Whether srun has started this process, with the number of processes in this variable."""
    step = _read(environment, "SLURM_STEP_ID")
    own = "SLURM_NTASKS"
    if "SLURM_STEP_NUM_TASKS" in environment:
        own = "SLURM_STEP_NUM_TASKS"
    return step is not None and step < _FIRST_SPECIAL_STEP and size_name == own


def _name_job(environment: Mapping[str, str], rank_name: str, size: int) -> str | None:
    """The launcher's name of the job, if all members are on one host; else None."""
    if rank_name.startswith("OMPI") and environment.get("OMPI_COMM_WORLD_LOCAL_SIZE") == str(size):
        return environment.get("PMIX_NAMESPACE") or environment.get("OMPI_MCA_ess_base_jobid")
    if rank_name.startswith("SLURM"):
        hosts = environment.get("SLURM_STEP_NUM_NODES") or environment.get("SLURM_NNODES")
        job = environment.get("SLURM_JOB_ID")
        if job and hosts == "1":
            return f"{job}.{environment['SLURM_STEP_ID']}"
    return None


_PACKAGE, _MODULE = "mpi4py", "mpi4py.MPI"


def join_mpi_world(
    environment: Mapping[str, str], numbers: Assignment, leave: Callable[[], None], *, loads: bool = False
) -> ModuleType | None:
    """Initialize MPI if the program has imported mpi4py and mpirun has started it.

    Args:
        environment: the environment of this process.
        numbers: this worker's ranks in the job.
        leave: called before MPI is finalized, which waits for the other processes.
        loads: import mpi4py if mpirun has started the program.

    Returns:
        The module mpi4py.MPI, whose world is the job; None if the program does not use it.

    Raises:
        MpiWorldError: the MPI world is not the job.
    """
    is_of_mpi = _is_of_mpi(environment)
    mpi: Any = sys.modules.get(_MODULE)
    if is_of_mpi and (loads or _PACKAGE in sys.modules):
        mpi = _load()
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
    """Whether a launcher that supports MPI has started this process."""
    world = None
    if not Bootstrap.read(environment):
        world = find_world(environment)
    return world is not None and (
        world.launcher == "mpirun" or (world.launcher == "srun" and "PMIX_RANK" in environment)
    )


def _load() -> ModuleType | None:
    try:
        return import_module(_MODULE)
    except (ImportError, RuntimeError):  # without mpi4py or MPI; a program that imports it gets the error itself
        return None


def _finalize(mpi: Any, leave: Callable[[], None], pid: int) -> None:
    """Finalize MPI at the end of the process; not after an exception, so that mpirun ends the other processes."""
    if os.getpid() == pid and not mpi.Is_finalized() and not hasattr(sys, "last_type"):
        leave()
        mpi.Finalize()
