"""What programs ask of their job besides collectives: joining, leaving, the worker's numbers, and what is built.

What is "built" is what the workers' torch brings, since nothing is compiled here. There is no MPI underneath: gloo is
always there, NCCL where torch has it.
"""

import os
from collections.abc import Iterable
from typing import Any, NoReturn

import torch
import torch.distributed as dist

from worker_runtime.api.process_set import ProcessSet, add_process_set, read_ranks
from worker_runtime.collectives.combination import choose_reduction
from worker_runtime.collectives.untraced import untraced
from worker_runtime.errors import MpiWorldError, NotInitializedError
from worker_runtime.membership.launchers import join_mpi_world
from worker_runtime.membership.runtime import RUNTIME


def init(comm: Iterable[int] | None = None, process_sets: Iterable[ProcessSet] | str | None = None) -> None:
    """Join the job that started this process, or be a world of one. Does nothing when initialised.

    In children of a worker, such as a DataLoader's workers, it is an error: the worker is the member. Forked ones know
    its numbers all the same. Where the program uses mpi4py, MPI is initialized afterwards, and its world is the job.

    Args:
        comm: None, or all ranks of the job. Horovod silently ignores other ranks; here they are an error.
        process_sets: sets to register at once, the same on all ranks. "dynamic" says that sets will be added later,
            which is always possible here.

    Raises:
        ValueError: the job cannot be joined, or its member is a process above this one; or `comm` has not all ranks; or
            to mpi4py the job is not the world; or a process set is wrong, or is given twice: then the worker has joined
            all the same, with the sets before that one.
        HorovodInternalError: the ranks do not agree on the process sets.
    """
    if RUNTIME.is_initialized and not RUNTIME.is_forked:
        return
    sets = _read_process_sets(process_sets)
    ranks = None if comm is None else read_ranks("init(comm=...)", comm)
    RUNTIME.init()
    size = RUNTIME.engine.size
    if ranks and ranks != tuple(range(size)):
        RUNTIME.shutdown()
        raise ValueError(
            f"Horovod initialization failed: comm={list(ranks)} is not the whole job, whose ranks are 0 to {size - 1}; "
            "leave comm out, and make a process set of these ranks: hvd.init(process_sets=[hvd.ProcessSet(ranks)])"
        )
    try:
        join_mpi_world(os.environ, RUNTIME.assignment, RUNTIME.shutdown)
    except MpiWorldError:
        RUNTIME.shutdown()
        raise
    for index, process_set in enumerate(sets):
        try:
            add_process_set(process_set)
        except ValueError as error:
            raise ValueError(f"init(): process_sets[{index}]: {error}") from None


def shutdown() -> None:
    """Leave the job; what is pending on any rank raises HorovodInternalError. Does nothing when not initialised."""
    RUNTIME.shutdown()


def is_initialized() -> bool:
    """Whether `init()` has succeeded and `shutdown()` has not been called since; also in a forked child of a worker."""
    return RUNTIME.is_initialized


def rank() -> int:
    """This worker's number, 0 to size() - 1; ValueError when not initialised."""
    return RUNTIME.assignment.rank


def size() -> int:
    """The number of workers; ValueError when not initialised."""
    return RUNTIME.assignment.size


def local_rank() -> int:
    """This worker's number among those on the same host; ValueError when not initialised."""
    return RUNTIME.assignment.local_rank


def local_size() -> int:
    """The number of workers on this host; ValueError when not initialised."""
    return RUNTIME.assignment.local_size


def cross_rank() -> int:
    """This host's number among those that have a worker with this local rank; ValueError when not initialised."""
    return RUNTIME.assignment.cross_rank


def cross_size() -> int:
    """The number of hosts that have a worker with this local rank; ValueError when not initialised."""
    return RUNTIME.assignment.cross_size


def is_homogeneous() -> bool:
    """Whether every host has as many workers as this one, as far as a worker knows.

    It knows its own host and how many hosts have a worker of its local rank: where hosts differ in size, those that
    have exactly the average number of workers cannot tell.

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


def start_timeline(file_path: str, mark_cycles: bool = False) -> NoReturn:  # noqa: FBT001, FBT002 - Horovod's signature
    """Refuse: a timeline is not served yet.

    Args:
        file_path: where Horovod writes it.
        mark_cycles: whether Horovod marks the cycles of its background thread, of which there are none here.

    Raises:
        ValueError: Horovod has not been initialized.
        NotImplementedError: always otherwise.
    """
    del mark_cycles
    RUNTIME.assignment  # noqa: B018 - raises unless initialised
    raise NotImplementedError(
        f"start_timeline({file_path!r}): timelines are not served yet; leave the call out, and use torch.profiler to "
        "see what takes time"
    )


def stop_timeline() -> None:
    """Do nothing, as Horovod does when no timeline is being written.

    Raises:
        ValueError: Horovod has not been initialized.
    """
    RUNTIME.assignment  # noqa: B018 - raises unless initialised


@untraced
def stopping() -> bool:
    """Whether a stop notice has come for the job: save, and end with `sys.exit(75)`.

    All ranks must ask at the same places of their programs, and get the same answer. After a step of a
    `DistributedOptimizer` of all ranks the answer is that of the last step, and costs nothing. In a program that has
    none the ranks ask each other. Once it is true it stays true, until an elastic function begins again.

    Returns:
        True where `SIGUSR2` has come to hvdrun, or, in a job that cannot go on without a host, to one of its agents or
        workers. Without hvdrun, False.

    Raises:
        HorovodInternalError: a rank has gone, or Horovod has not been initialized.
    """
    return RUNTIME.is_stopping()


def mpi_threads_supported() -> bool:
    """Whether MPI may be used by several threads: the program's own, which mpi4py reaches.

    Raises:
        ValueError: there is no such MPI, or its world is not the job, or Horovod has not been initialized.
    """
    if not RUNTIME.is_initialized:
        raise NotInitializedError
    mpi: Any = join_mpi_world(os.environ, RUNTIME.assignment, RUNTIME.shutdown, loads=True)
    if mpi is None:
        raise ValueError("Horovod MPI is not enabled: install mpi4py, and start the script with mpirun, to use MPI too")
    return bool(mpi.Query_thread() == mpi.THREAD_MULTIPLE)


def mpi_enabled() -> bool:
    """Whether workers communicate over MPI: never."""
    return False


def mpi_built() -> bool:
    """Whether MPI could be used: never."""
    return False


def gloo_enabled() -> bool:
    """Whether workers may communicate over gloo: always."""
    return True


def gloo_built() -> bool:
    """Whether gloo can be used: always, it is a part of torch."""
    return True


def nccl_built() -> int:
    """The version of NCCL as a number, 22105 for 2.21.5; 0 where torch has none."""
    if not dist.is_nccl_available():
        return 0
    version: tuple[int, ...] = torch.cuda.nccl.version()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    major, minor, patch = (*version, 0)[:3]
    return major * 10000 + minor * 100 + patch


def ddl_built() -> bool:
    """Whether IBM's DDL can be used: never."""
    return False


def ccl_built() -> bool:
    """Whether Intel's oneCCL can be used: never."""
    return False


def cuda_built() -> bool:
    """Whether torch was built for CUDA; a device need not be there."""
    return torch.version.cuda is not None


def rocm_built() -> bool:
    """Whether torch was built for ROCm; a device need not be there."""
    return torch.version.hip is not None


class HorovodBasics:
    """Horovod's object of these functions, which programs reach as `mpi_ops._basics`; it has no state."""

    @staticmethod
    def _get_process_set_ids_and_ranks() -> dict[int, list[int]]:
        """The registered process sets: their numbers and their ranks."""
        registered = RUNTIME.engine.process_sets
        return {number: list(registered.list_ranks(number)) for number in registered.numbers}


for _function in (
    *(init, shutdown, is_initialized, size, local_size, cross_size, rank, local_rank, cross_rank, is_homogeneous),
    *(start_timeline, stop_timeline, mpi_threads_supported, mpi_enabled, mpi_built, gloo_enabled, gloo_built),
    *(nccl_built, ddl_built, ccl_built, cuda_built, rocm_built),
):
    setattr(HorovodBasics, _function.__name__, staticmethod(_function))

_basics = HorovodBasics()
handle_average_backwards_compatibility = choose_reduction  # Horovod's name
