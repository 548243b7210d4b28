"""Worlds that another launcher made: what its environment variables say of this process, and where its members meet.

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


@dataclass(frozen=True, slots=True)
class Master:
    """The members meet in torch's store at this address, as MASTER_ADDR and MASTER_PORT say."""

    address: str
    port: int

    def __str__(self) -> str:
        return f"[{self.address}]:{self.port}" if ":" in self.address else f"{self.address}:{self.port}"


@dataclass(frozen=True, slots=True)
class OneHost:
    """All members are on one host and meet in a file there, named after their launcher's own name for the job."""

    job: str


@dataclass(frozen=True, slots=True)
class World:
    """One process' place in a world that it did not make.

    launcher: who made it, as its users call it.
    """

    launcher: str
    rank: int
    size: int
    meeting: Master | OneHost


def find_world(environment: Mapping[str, str]) -> World | None:
    """The world of several that another launcher has put this process into; None when there is none.

    Raises:
        ForeignWorldError: there is one, but its variables do not say how its members can meet.
        ForeignRankError: there is one, and by its variables this process cannot be in it.
    """
    for find in (_find_torchrun, _find_mpirun, _find_mpich, _find_srun, _find_horovodrun):
        found = find(environment)
        if found is not None and found.size > 1:
            if found.rank >= found.size:
                raise ForeignRankError(found.launcher, found.rank, found.size)
            return found.place(environment)
    return None


@dataclass(frozen=True, slots=True)
class _Found:
    """What a launcher's own variables say. job: its name for the job, where all members are on one host."""

    launcher: str
    rank: int
    size: int
    job: str | None

    def place(self, environment: Mapping[str, str]) -> World:
        address, port = environment.get("MASTER_ADDR"), environment.get("MASTER_PORT", "")
        if address and port.isdecimal():
            return World(self.launcher, self.rank, self.size, Master(address, int(port)))
        if self.job is not None:
            return World(self.launcher, self.rank, self.size, OneHost(f"{self.launcher}-{self.job}"))
        raise ForeignWorldError(self.launcher, self.size)


def _find_torchrun(environment: Mapping[str, str]) -> _Found | None:
    numbers = _read(environment, "RANK", "WORLD_SIZE")
    size = environment.get("WORLD_SIZE", "")
    if numbers is None and "RANK" not in environment and size.isdecimal() and int(size) > 1:
        raise ForeignWorldError("torchrun (WORLD_SIZE is set, RANK is not)", int(size))
    return None if numbers is None else _Found("torchrun", *numbers, job=None)


def _find_mpirun(environment: Mapping[str, str]) -> _Found | None:
    numbers = _read(environment, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")
    if numbers is None:
        return None
    job = environment.get("PMIX_NAMESPACE") or environment.get("OMPI_MCA_ess_base_jobid")
    is_one_host = environment.get("OMPI_COMM_WORLD_LOCAL_SIZE") == environment["OMPI_COMM_WORLD_SIZE"]
    return _Found("mpirun", *numbers, job=job if is_one_host else None)


def _find_mpich(environment: Mapping[str, str]) -> _Found | None:
    numbers = _read(environment, "PMI_RANK", "PMI_SIZE") or _read(
        environment, "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"
    )
    return None if numbers is None else _Found("mpirun", *numbers, job=None)


def _find_srun(environment: Mapping[str, str]) -> _Found | None:
    step = environment.get("SLURM_STEP_ID", "")
    if not step.isdecimal() or int(step) >= _FIRST_SPECIAL_STEP:
        return None
    size = "SLURM_STEP_NUM_TASKS" if "SLURM_STEP_NUM_TASKS" in environment else "SLURM_NTASKS"
    numbers = _read(environment, "SLURM_PROCID", size)
    if numbers is None:
        return None
    hosts = environment.get("SLURM_STEP_NUM_NODES") or environment.get("SLURM_NNODES")
    job = environment.get("SLURM_JOB_ID")
    return _Found("srun", *numbers, job=f"{job}.{step}" if job and hosts == "1" else None)


def _find_horovodrun(environment: Mapping[str, str]) -> _Found | None:
    numbers = _read(environment, "HOROVOD_RANK", "HOROVOD_SIZE")
    return None if numbers is None else _Found("horovodrun", *numbers, job=None)


def _read(environment: Mapping[str, str], rank: str, size: str) -> tuple[int, int] | None:
    """Both numbers; None unless both are there."""
    texts = environment.get(rank, ""), environment.get(size, "")
    return (int(texts[0]), int(texts[1])) if texts[0].isdecimal() and texts[1].isdecimal() else None


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
