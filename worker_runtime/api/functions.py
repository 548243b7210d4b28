"""Horovod's functions that take no arrays: handles, barrier, join, and Python objects between workers."""

from collections.abc import Iterator
from typing import Any

import torch

from worker_runtime.api.calls import begin_call, reports_failure
from worker_runtime.api.process_set import ProcessSet, check_process_set, global_process_set
from worker_runtime.collectives.agreements import Barrier, Join
from worker_runtime.collectives.untraced import untraced
from worker_runtime.engine import objects
from worker_runtime.membership.runtime import RUNTIME


@untraced
def poll(handle: int) -> bool:
    """Whether the operation has completed or failed, so that `synchronize` returns or raises without waiting.

    Args:
        handle: the return value of an `_async` or `_async_` function.

    Raises:
        ValueError: the handle does not exist, is already synchronized, or is from before `shutdown()`.
    """
    return RUNTIME.engine.handle_table.poll(handle)


@untraced
def synchronize(handle: int) -> Any:
    """Wait for an asynchronous operation, and return its result. Each handle can be synchronized once.

    On CUDA the host does not wait for the device: the current stream waits for the operation.

    Args:
        handle: the return value of an `_async` or `_async_` function.

    Returns:
        The result of the synchronous function: a tensor, or several for a grouped operation.

    Raises:
        ValueError: the handle does not exist, is already synchronized (Horovod returns None), or is from before
            `shutdown()`.
        HorovodInternalError: the ranks submitted different operations under this name; the operation failed; or
            `shutdown()` interrupted it.
    """
    return RUNTIME.engine.handle_table.synchronize(handle)


class HandleMap:
    """The handles that are not synchronized yet: Horovod's `_handle_map`, read-only."""

    def __contains__(self, handle: object) -> bool:
        return RUNTIME.is_initialized and handle in tuple(RUNTIME.engine.handle_table)

    def __len__(self) -> int:
        if RUNTIME.is_initialized:
            return len(RUNTIME.engine.handle_table)
        return 0

    def __iter__(self) -> Iterator[int]:
        if RUNTIME.is_initialized:
            return iter(RUNTIME.engine.handle_table)
        return iter(())


_handle_map = HandleMap()


@reports_failure("barrier")
def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Wait until all ranks of a process set have called `barrier()`. It does not wait for asynchronous operations.

    Args:
        process_set: the ranks that wait for each other.

    Raises:
        ValueError: the set is not registered, or this rank is not in it.
        HorovodInternalError: a rank of the set has called `join()` or was lost, or Horovod has not been initialized.
    """
    call = begin_call("barrier", None, process_set)
    call.engine.run(Barrier(call.among, call.name))


@untraced
def join(device: int = -1) -> int:
    """Report that this rank has no more data, and wait until all ranks of the job have called `join()`.

    Meanwhile this rank takes part in the other ranks' allreduces with the neutral element: zeros for a sum, ones for a
    product, nothing for a minimum or maximum. (Horovod contributes zeros to all ops.) An average still divides by the
    full size. Allgather, broadcast, alltoall, reducescatter and barrier raise HorovodInternalError while a rank has
    joined.

    Args:
        device: the index of the CUDA device that holds this rank's contribution; -1 for the current device. Without
            effect on the CPU.

    Returns:
        The rank that joined last, the same on all ranks.

    Raises:
        HorovodInternalError: a rank was lost, or Horovod has not been initialized.
    """
    call = begin_call("join", "all")
    place = None
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]  # torch leaves it untyped
        place = torch.device("cuda", torch.cuda.current_device() if device < 0 else device)
    return call.engine.run(Join(call.among, device=place))


@reports_failure("broadcast_object")
def broadcast_object(
    obj: Any = None,
    root_rank: int = 0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Send a Python object from rank `root_rank` to all ranks of a process set.

    The object is pickled with cloudpickle, and authenticated with the job's key. Its size is not limited. Objects of
    the script's classes have the receiver's own class.

    Args:
        obj: the object to send; ignored on other ranks than the root.
        root_rank: the rank in the job that sends, also when you give a process set.
        name: identifies the operation across ranks and in messages. Without a name, calls are matched by their order.
        process_set: the ranks that take part.

    Returns:
        On the root `obj` itself, on the other ranks a copy.

    Raises:
        ValueError: the root or this rank is not in the set, or an operation of this name is in flight.
        HorovodInternalError: the ranks give different roots; the root cannot pickle its object; the operation failed;
            or Horovod has not been initialized.
        Exception: on the root, the error of pickling.
    """
    check_process_set("broadcast_object", process_set)
    number = process_set.find_number("broadcast_object")
    return objects.broadcast_object(RUNTIME.engine, obj, root_rank, name, number)


@reports_failure("allgather_object")
def allgather_object(
    obj: Any,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """Collect a Python object from each rank of a process set.

    The objects are pickled with cloudpickle, and authenticated with the job's key.

    Args:
        obj: this rank's object.
        name: identifies the operation across ranks and in messages. Without a name, calls are matched by their order.
        process_set: the ranks that take part.

    Returns:
        A list of copies, in rank order. This rank's entry is a copy too.

    Raises:
        ValueError: this rank is not in the set, or an operation of this name is in flight.
        HorovodInternalError: another rank cannot pickle its object; the operation failed; or Horovod has not been
            initialized.
        Exception: the error of pickling this rank's object.
    """
    check_process_set("allgather_object", process_set)
    return objects.allgather_object(RUNTIME.engine, obj, name, process_set.find_number("allgather_object"))
