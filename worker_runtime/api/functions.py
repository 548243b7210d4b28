"""Horovod's functions that take no arrays: handles, barrier, join, and Python objects between workers."""

from collections.abc import Iterator
from typing import Any

import torch

from worker_runtime.api.calls import begin_call, gives_up
from worker_runtime.api.process_set import ProcessSet, check_process_set, global_process_set
from worker_runtime.collectives.agreements import Barrier, Join
from worker_runtime.collectives.untraced import untraced
from worker_runtime.engine import objects
from worker_runtime.membership.runtime import RUNTIME


@untraced
def poll(handle: int) -> bool:
    """Whether `synchronize` would return, or raise, at once.

    Args:
        handle: what a function that ends in `_async` or `_async_` has returned.

    Raises:
        ValueError: there is no such handle, it was synchronised before, or `shutdown()` came between.
    """
    return RUNTIME.engine.handle_table.poll(handle)


@untraced
def synchronize(handle: int) -> Any:  # noqa: ANN401 - what the operation gives
    """Wait for an operation and return its result; the handle is gone afterwards, however it ends.

    On CUDA it does not wait for the device: the current stream does.

    Args:
        handle: what a function that ends in `_async` or `_async_` has returned.

    Returns:
        What the function's description says: a tensor, or a tuple of some.

    Raises:
        ValueError: there is no such handle, it was synchronised before (where Horovod returns None), or `shutdown()`
            came between.
        HorovodInternalError: the ranks did not agree on the operation, it failed, or `shutdown()` came first.
    """
    return RUNTIME.engine.handle_table.synchronize(handle)


class HandleMap:
    """Horovod's table of the handles that were not synchronised yet, to look into: `handle in ...`, `len(...)`."""

    def __contains__(self, handle: object) -> bool:
        return RUNTIME.is_initialized and handle in tuple(RUNTIME.engine.handle_table)

    def __len__(self) -> int:
        return len(RUNTIME.engine.handle_table) if RUNTIME.is_initialized else 0

    def __iter__(self) -> Iterator[int]:
        return iter(RUNTIME.engine.handle_table) if RUNTIME.is_initialized else iter(())


_handle_map = HandleMap()


@gives_up("barrier")
def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Wait until all ranks of a set have called it. Other operations may be pending, and need not be done then.

    Args:
        process_set: the ranks that wait for each other.

    Raises:
        ValueError: the set is not registered, or this rank is not in it.
        HorovodInternalError: a rank of the set has joined or gone, or Horovod has not been initialized.
    """
    call = begin_call("barrier", None, process_set)
    call.engine.run(Barrier(call.among, call.name))


@untraced
def join(device: int = -1) -> int:
    """Say that this rank has no more data, and wait until all ranks of the job have said so.

    Meanwhile the others' allreduces go on as if this rank contributed what changes nothing: zeros to a sum, ones to a
    product, and to a minimum or maximum nothing. (Horovod contributes zeros to all.) An average divides by the full
    size all the same. Allgather, broadcast, alltoall, reducescatter and barrier are an error while a rank has joined.

    Args:
        device: where what this rank contributes lies while the others use CUDA: a device's number, or -1 for the
            current one.

    Returns:
        The rank that joined last, the same on all ranks.

    Raises:
        HorovodInternalError: a rank has gone, or Horovod has not been initialized.
    """
    call = begin_call("join", "all")
    place = None
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]  # torch leaves it untyped
        place = torch.device("cuda", torch.cuda.current_device() if device < 0 else device)
    return call.engine.run(Join(call.among, device=place))


@gives_up("broadcast_object")
def broadcast_object(
    obj: Any = None,  # noqa: ANN401 - any object
    root_rank: int = 0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:  # noqa: ANN401 - any object
    """The object of rank `root_rank` on all ranks of a set: itself on the root, a copy elsewhere.

    It travels by cloudpickle, in any size, with a proof that it comes from a worker of the job.

    Args:
        obj: the object; counts on the root alone.
        root_rank: whose object; its rank in the job, also with a process set.
        name: by which the ranks' calls find each other; without one, calls are counted.
        process_set: the ranks that take part.

    Raises:
        ValueError: the root or this rank is not in the set, or the name is in flight.
        HorovodInternalError: the ranks do not agree on the root, the root could not pickle its object, the operation
            failed, or Horovod has not been initialized.
        Exception: on the root, what pickling has raised.
    """
    check_process_set("broadcast_object", process_set)
    number = process_set.find_number("broadcast_object")
    return objects.broadcast_object(RUNTIME.engine, obj, root_rank, name, number)


@gives_up("allgather_object")
def allgather_object(
    obj: Any,  # noqa: ANN401 - any object
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """The objects of all ranks of a set, in rank order; also this rank's own is a copy.

    They travel by cloudpickle, with a proof that they come from workers of the job.

    Args:
        obj: this rank's object.
        name: by which the ranks' calls find each other; without one, calls are counted.
        process_set: the ranks that take part.

    Raises:
        ValueError: this rank is not in the set, or the name is in flight.
        HorovodInternalError: another rank could not pickle its object, the operation failed, or Horovod has not been
            initialized.
        Exception: what pickling this rank's object has raised.
    """
    check_process_set("allgather_object", process_set)
    return objects.allgather_object(RUNTIME.engine, obj, name, process_set.find_number("allgather_object"))
