"""This worker's place in the job, as programs ask for it: joining, leaving, and the numbers."""

import os
from collections.abc import Iterable
from typing import NoReturn

from worker_runtime.api.process_set import ProcessSet, add_process_set, read_ranks
from worker_runtime.errors import MpiWorldError
from worker_runtime.membership.runtime import RUNTIME
from worker_runtime.membership.worlds import join_mpi_world


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
    size = RUNTIME.executor.size
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
