"""Joining and leaving the job, ranks and sizes, and which backends are built.

hvdrun compiles nothing: a backend is "built" where the installed torch has it. Gloo is always built, MPI never.
"""

import logging
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from worker_runtime.api.process_set import ProcessSet, add_process_set, read_ranks
from worker_runtime.collectives.combination import choose_reduction
from worker_runtime.collectives.untraced import untraced
from worker_runtime.errors import NotInitializedError
from worker_runtime.membership.launchers import join_mpi_world
from worker_runtime.membership.runtime import RUNTIME
from worker_runtime.rendezvous import TIMELINE, TIMELINE_MARK_CYCLES

__all__ = ["ccl_built", "cross_rank", "cross_size", "cuda_built", "ddl_built", "gloo_built", "gloo_enabled", "init"]
__all__ += ["is_initialized", "local_rank", "local_size", "mpi_built", "mpi_enabled", "mpi_threads_supported"]
__all__ += ["nccl_built", "rank", "rocm_built", "shutdown", "size", "start_timeline", "stop_timeline", "stopping"]

_LOG = logging.getLogger("hvd")
_DYNAMIC = "DYNAMIC"  # in place of a file: the program calls start_timeline()


def init(comm: Iterable[int] | None = None, process_sets: Iterable[ProcessSet] | str | None = None) -> None:
    """Join the job that started this process. Without a job, the process is rank 0 of 1.

    A second call only gives `process_sets` the ids of the registered sets of their ranks. A child process of a worker,
    such as a DataLoader's worker, cannot join: its parent has the rank. A forked child can still call `rank()` and
    `size()`. Where the program uses mpi4py, `init()` initializes MPI too, and checks that the MPI world is the job.

    Args:
        comm: None, or all ranks of the job. (Horovod silently ignores other ranks; here they raise ValueError.)
        process_sets: sets to register, the same on all ranks. Horovod's "dynamic" is accepted: you can always add sets
            later.

    Raises:
        ValueError: the process cannot join the job; its parent process has already joined; `comm` is not all ranks;
            mpi4py's world is not the job; or a process set is wrong or given twice, or in a second call not registered.
            After an error of a process set the worker stays in the job, with the sets before the wrong one.
        HorovodInternalError: the ranks give different process sets.
    """
    sets = _read_process_sets(process_sets)
    ranks: tuple[int, ...] = ()
    if comm is not None:
        ranks = read_ranks("init(comm=...)", comm)
    if RUNTIME.is_initialized and not RUNTIME.is_forked:
        _refuse_some(ranks, RUNTIME.engine.size)
        for index, process_set in enumerate(sets):
            if not process_set.adopt(RUNTIME.engine):
                raise ValueError(
                    f"init(): Horovod is initialized already, and no process set has the ranks {process_set.ranks}, as "
                    f"process_sets[{index}] has; give it in the first call of init(), or call hvd.add_process_set()"
                )
        return

    RUNTIME.init()
    _start_wanted_timeline()
    try:
        _refuse_some(ranks, RUNTIME.engine.size)
        join_mpi_world(os.environ, RUNTIME.assignment, RUNTIME.shutdown)
    except ValueError:
        RUNTIME.shutdown()
        raise

    for index, process_set in enumerate(sets):
        try:
            add_process_set(process_set)
        except ValueError as error:
            raise ValueError(f"init(): process_sets[{index}]: {error}") from None


def _refuse_some(ranks: Sequence[int], size: int) -> None:
    """Raise ValueError for ranks that are not the whole job."""
    if ranks and ranks != tuple(range(size)):
        raise ValueError(
            f"Horovod initialization failed: comm={list(ranks)} is not the whole job, whose ranks are 0 to {size - 1}; "
            "leave comm out, and make a process set of these ranks: hvd.init(process_sets=[hvd.ProcessSet(ranks)])"
        )


def shutdown() -> None:
    """Leave the job. Pending operations raise HorovodInternalError on all ranks. Does nothing before `init()`."""
    RUNTIME.shutdown()


def is_initialized() -> bool:
    """Whether `init()` has succeeded and `shutdown()` was not called since; also True in a worker's forked child."""
    return RUNTIME.is_initialized


def rank() -> int:
    """This worker's rank, 0 to size() - 1.

    Raises:
        ValueError: Horovod has not been initialized.
    """
    return RUNTIME.assignment.rank


def size() -> int:
    """The number of workers in the job.

    Raises:
        ValueError: Horovod has not been initialized.
    """
    return RUNTIME.assignment.size


def local_rank() -> int:
    """This worker's rank among the workers of its host, 0 to local_size() - 1.

    Raises:
        ValueError: Horovod has not been initialized.
    """
    return RUNTIME.assignment.local_rank


def local_size() -> int:
    """The number of workers on this host.

    Raises:
        ValueError: Horovod has not been initialized.
    """
    return RUNTIME.assignment.local_size


def cross_rank() -> int:
    """This host's index among the hosts that have a worker of this local rank, 0 to cross_size() - 1.

    Raises:
        ValueError: Horovod has not been initialized.
    """
    return RUNTIME.assignment.cross_rank


def cross_size() -> int:
    """The number of hosts that have a worker of this local rank.

    Raises:
        ValueError: Horovod has not been initialized.
    """
    return RUNTIME.assignment.cross_size


def is_homogeneous() -> bool:
    """Whether every host has as many workers as this one: local_size() * cross_size() == size().

    Where hosts differ in size, this is True by mistake on a host that has exactly the average number of workers.

    Raises:
        ValueError: Horovod has not been initialized.
    """
    numbers = RUNTIME.assignment
    return numbers.local_size * numbers.cross_size == numbers.size


def _read_process_sets(process_sets: Iterable[ProcessSet] | str | None) -> list[ProcessSet]:
    if process_sets is None:
        return []
    if isinstance(process_sets, str):
        if process_sets.lower() != "dynamic":
            raise ValueError(f'init(): process_sets={process_sets!r}; give ProcessSet objects, or "dynamic"')
        return []
    if not isinstance(process_sets, Iterable):
        raise ValueError(f'init(): process_sets={process_sets!r}; give ProcessSet objects, or "dynamic"')  # noqa: TRY004 - Horovod's error
    sets = list(process_sets)
    for index, process_set in enumerate(sets):
        if not isinstance(process_set, ProcessSet):
            raise ValueError(f"init(): process_sets[{index}] is {process_set!r}; give ProcessSet objects")  # noqa: TRY004 - Horovod's error
    return sets


def start_timeline(file_path: str | os.PathLike[str], mark_cycles: bool = False) -> None:
    """Record a timeline: when each rank asked for each operation, and how long it ran on rank 0.

    Rank 0 writes the file, 0.1 s after each event at the latest; call this on all ranks, since another one may become
    rank 0 later. The file is an array of Chrome's trace events, which Perfetto and chrome://tracing open. It is
    complete at every moment. A timeline that is being recorded ends. A file of this job is not overwritten: the next
    one is FILE.1. (Horovod wants HOROVOD_TIMELINE=DYNAMIC to be set before `init()`; here that is not needed.)

    Args:
        file_path: the file; a relative path is one of the present working directory.
        mark_cycles: mark each time at which the sequencer has released operations.

    Raises:
        ValueError: Horovod has not been initialized.
        OSError: rank 0 cannot write the file.
    """
    RUNTIME.start_timeline(Path(file_path), mark_cycles=mark_cycles)


def stop_timeline() -> None:
    """Complete the timeline's file, and record no longer. Does nothing where no timeline is recorded.

    Raises:
        ValueError: Horovod has not been initialized.
    """
    RUNTIME.stop_timeline()


def _start_wanted_timeline() -> None:
    """Record the timeline that HOROVOD_TIMELINE names; where that cannot be written, warn and do without it."""
    path, mark_cycles = os.environ.get(TIMELINE, ""), os.environ.get(TIMELINE_MARK_CYCLES, "")
    if not path or path.upper() == _DYNAMIC:
        return
    try:
        # A number other than 0 asks for marks, as in Horovod.
        RUNTIME.start_timeline(Path(path), mark_cycles=mark_cycles.isdecimal() and int(mark_cycles) > 0)
    except OSError as error:
        reason = f"{path} (HOROVOD_TIMELINE, --timeline) cannot be written: {error.strerror}"
        _LOG.warning("no timeline is recorded: %s", reason)


@untraced
def stopping() -> bool:
    """Whether the job has received a stop notice: save your work, then call `sys.exit(75)`.

    All ranks must call this at the same places of the program; all get the same answer. If a `DistributedOptimizer` of
    the global process set has stepped, the answer was exchanged with that step, and the call costs nothing. Otherwise
    the call is a small collective. Once True, the answer stays True until an elastic function restarts.

    Returns:
        True after hvdrun received `SIGUSR2`. In a job that cannot continue without a host, also after an agent or a
        worker of that host received it. False without hvdrun.

    Raises:
        HorovodInternalError: a rank was lost, or Horovod has not been initialized.
    """
    return RUNTIME.is_stopping()


def mpi_threads_supported() -> bool:
    """Whether several threads may call MPI through the program's own mpi4py.

    Raises:
        ValueError: mpi4py is not installed, its world is not the job, or Horovod has not been initialized.
    """
    if not RUNTIME.is_initialized:
        raise NotInitializedError
    mpi: Any = join_mpi_world(os.environ, RUNTIME.assignment, RUNTIME.shutdown, loads=True)
    if mpi is None:
        raise ValueError("Horovod MPI is not enabled: to use MPI, install mpi4py and start the script with mpirun")
    return bool(mpi.Query_thread() == mpi.THREAD_MULTIPLE)


def mpi_enabled() -> bool:
    """Whether workers communicate over MPI: always False."""
    return False


def mpi_built() -> bool:
    """Whether workers can communicate over MPI: always False."""
    return False


def gloo_enabled() -> bool:
    """Whether workers may communicate over gloo: always True."""
    return True


def gloo_built() -> bool:
    """Whether gloo is available: always True, since gloo is part of torch."""
    return True


def nccl_built() -> int:
    """The version of torch's NCCL as a number, for example 22105 for 2.21.5; 0 where torch has no NCCL."""
    if not dist.is_nccl_available():
        return 0
    version: tuple[int, ...] = torch.cuda.nccl.version()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    major, minor, patch = (*version, 0)[:3]
    return major * 10000 + minor * 100 + patch


def ddl_built() -> bool:
    """Whether IBM's DDL is available: always False."""
    return False


def ccl_built() -> bool:
    """Whether Intel's oneCCL is available: always False."""
    return False


def cuda_built() -> bool:
    """Whether torch was built for CUDA, with or without a device."""
    return torch.version.cuda is not None


def rocm_built() -> bool:
    """Whether torch was built for ROCm, with or without a device."""
    return torch.version.hip is not None


class HorovodBasics:
    """The functions of this module as methods: Horovod's `mpi_ops._basics`."""

    @staticmethod
    def _get_process_set_ids_and_ranks() -> dict[int, list[int]]:
        """The ranks of each registered process set, by the set's number."""
        registered = RUNTIME.engine.process_sets
        return {number: list(registered.list_ranks(number)) for number in registered.numbers}


for _name in (*__all__, "is_homogeneous"):
    # `stopping` is not Horovod's.
    if _name != "stopping":
        setattr(HorovodBasics, _name, staticmethod(globals()[_name]))

_basics = HorovodBasics()
handle_average_backwards_compatibility = choose_reduction  # Horovod's name
