"""Broadcast and its variants under Horovod's names and signatures."""

import mxnet as mx

from worker_runtime.api.calls import begin_call
from worker_runtime.api.process_set import ProcessSet, global_process_set
from worker_runtime.collectives import Broadcast
from worker_runtime.mxnet.arrays import bring_home, make_array, take_all_back, view_for_reading, view_for_writing
from worker_runtime.mxnet.boundary import gives_up
from worker_runtime.mxnet.ops.prepared import Prepared


@gives_up("broadcast")
def broadcast(
    tensor: mx.nd.NDArray,
    root_rank: int,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> mx.nd.NDArray:
    """The values of rank `root_rank` in a new array on all ranks of a set.

    It returns when the result is there. Not differentiable, as in Horovod.

    Args:
        tensor: as in `allreduce`; shape and dtype are the same on all ranks, and its values count on the root alone.
        root_rank: whose values; its rank in the job, also with a process set.
        name: by which the ranks' calls find each other and messages call it; without one, calls are counted.
        priority: without effect.
        process_set: the ranks that take part.

    Returns:
        A new array on the same context, equal on all ranks of the set.

    Raises:
        TypeError: it is no array of MXNet.
        ValueError: a wrong argument, also a root that is not in the set, or a name that is in flight; nothing was sent.
        HorovodInternalError: the ranks do not agree on dtype, shape or root; one of them has joined; the operation
            failed; or Horovod has not been initialized.
        MXNetError: what the array was to be computed by has failed; nothing was sent.
    """
    del priority
    return _prepare(tensor, root_rank, name, process_set).run()


@gives_up("broadcast")
def broadcast_async(
    tensor: mx.nd.NDArray,
    root_rank: int,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Begin a `broadcast`, as `allreduce_async` does an allreduce; `synchronize` gives the new array."""
    del priority
    return _prepare(tensor, root_rank, name, process_set).begin()


@gives_up("broadcast")
def broadcast_(
    tensor: mx.nd.NDArray,
    root_rank: int,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> mx.nd.NDArray:
    """`broadcast` in place: overwrites `tensor` on all ranks but the root, and returns it.

    On these it waits first until what was enqueued and reads the array is done. Raises as `broadcast`.
    """
    del priority
    return _prepare_in_place(tensor, root_rank, name, process_set).run()


@gives_up("broadcast")
def broadcast_async_(
    tensor: mx.nd.NDArray,
    root_rank: int,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Begin a `broadcast_`: `synchronize` gives `tensor`, of which nothing must be enqueued until then."""
    del priority
    return _prepare_in_place(tensor, root_rank, name, process_set).begin()


def _prepare(array: mx.nd.NDArray, root: int, name: str | None, process_set: ProcessSet) -> Prepared[mx.nd.NDArray]:
    call = begin_call("broadcast", name, process_set)
    operation = Broadcast([view_for_reading(array)], root, call.among, call.name)
    return Prepared(call, operation, lambda results: make_array(results[0], array))


def _prepare_in_place(
    array: mx.nd.NDArray, root: int, name: str | None, process_set: ProcessSet
) -> Prepared[mx.nd.NDArray]:
    call = begin_call("broadcast", name, process_set)
    home = bring_home(array)
    view = view_for_reading(home) if call.among.rank == root else view_for_writing(home)
    operation = Broadcast([view], root, call.among, call.name, [view])
    return Prepared(call, operation, lambda _: take_all_back([home], [array])[0])
