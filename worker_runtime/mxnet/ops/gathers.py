"""Allgather and its variants under Horovod's names and signatures."""

from collections.abc import Sequence

import mxnet as mx

from worker_runtime.api.calls import begin_call
from worker_runtime.api.process_set import ProcessSet, global_process_set
from worker_runtime.collectives import Allgather
from worker_runtime.mxnet.arrays import make_array, view_for_reading
from worker_runtime.mxnet.boundary import gives_up
from worker_runtime.mxnet.ops.prepared import Prepared


@gives_up("allgather")
def allgather(
    tensor: mx.nd.NDArray, name: str | None = None, priority: int = 0, process_set: ProcessSet = global_process_set
) -> mx.nd.NDArray:
    """The arrays of the ranks of a set, one after the other along the first dimension, in rank order.

    Not differentiable, as in Horovod.

    Args:
        tensor: as in `allreduce`, of at least one dimension. The first may differ between ranks, and be zero; the
            others must not. (MXNet makes arrays without rows only under `mx.util.np_shape`; here they are as others.)
        name: by which the ranks' calls find each other and messages call it; without one, calls are counted.
        priority: without effect.
        process_set: the ranks that take part.

    Returns:
        A new array of the same dtype on the same context, equal on all ranks of the set.

    Raises:
        TypeError: it is no array of MXNet.
        ValueError: a wrong argument, also an array without dimensions, or a name that is in flight; nothing was sent.
        HorovodInternalError: the ranks do not agree on dtype or shape; one of them has joined; the operation failed; or
            Horovod has not been initialized.
        MXNetError: what the array was to be computed by has failed; nothing was sent.
    """
    del priority
    return _prepare(tensor, name, process_set).run()


@gives_up("allgather")
def allgather_async(
    tensor: mx.nd.NDArray, name: str | None = None, priority: int = 0, process_set: ProcessSet = global_process_set
) -> int:
    """Begin an `allgather`, as `allreduce_async` does an allreduce; `synchronize` gives the new array."""
    del priority
    return _prepare(tensor, name, process_set).begin()


@gives_up("grouped_allgather")
def grouped_allgather(
    tensors: Sequence[mx.nd.NDArray],
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> Sequence[mx.nd.NDArray]:
    """`allgather` of several arrays as one operation: all of them run, or none.

    Args:
        tensors: each as in `allgather`. Without any, nothing is done.
        name: of the group.
        priority: without effect.
        process_set: the ranks that take part.

    Returns:
        New arrays, in the order of the call; where none are given, what is given.

    Raises:
        TypeError: as `allgather`.
        ValueError: as `allgather`.
        HorovodInternalError: as `allgather`.
        MXNetError: as `allgather`.
    """
    del priority
    return _prepare_all(tensors, name, process_set).run() if tensors else tensors


@gives_up("grouped_allgather")
def grouped_allgather_async(
    tensors: Sequence[mx.nd.NDArray],
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Begin a `grouped_allgather` of at least one array: `synchronize` gives a list; else as `allgather_async`."""
    del priority
    return _prepare_all(tensors, name, process_set).begin()


def _prepare(array: mx.nd.NDArray, name: str | None, process_set: ProcessSet) -> Prepared[mx.nd.NDArray]:
    prepared = _prepare_all([array], name, process_set, kind="allgather")
    return Prepared(prepared.call, prepared.operation, lambda gathered: prepared.convert(gathered)[0])


def _prepare_all(
    arrays: Sequence[mx.nd.NDArray], name: str | None, process_set: ProcessSet, *, kind: str = "grouped_allgather"
) -> Prepared[list[mx.nd.NDArray]]:
    given = list(arrays)
    call = begin_call(kind, name, process_set)
    operation = Allgather([view_for_reading(array) for array in given], call.among, call.name)
    return Prepared(
        call,
        operation,
        lambda gathered: [make_array(each.tensor, array) for each, array in zip(gathered, given, strict=True)],
    )
