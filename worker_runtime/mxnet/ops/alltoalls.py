"""Alltoall under Horovod's names and signatures."""

from typing import Any

import mxnet as mx

from worker_runtime.api.calls import begin_call
from worker_runtime.api.process_set import ProcessSet, global_process_set
from worker_runtime.collectives import Alltoall
from worker_runtime.collectives.alltoall import Exchanged
from worker_runtime.mxnet.arrays import make_array, view_for_reading
from worker_runtime.mxnet.boundary import gives_up
from worker_runtime.mxnet.ops.prepared import Prepared

Splits = Any  # integers, or an array: of MXNet's classes no type can be made
Pair = tuple[mx.nd.NDArray, mx.nd.NDArray]


@gives_up("alltoall")
def alltoall(
    tensor: mx.nd.NDArray,
    splits: Splits = None,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> mx.nd.NDArray | Pair:
    """Give each rank of a set some of the rows, and get some from each.

    Not differentiable, as in Horovod.

    Args:
        tensor: as in `allreduce`, of at least one dimension; the others than the first are the same on all ranks.
        splits: how many rows go to each rank of the set, in order: integers, or an array of int32 or int64 of one
            dimension. Together they are all rows: Horovod silently drops those left over, here that is an error. None
            gives each rank as many.
        name: by which the ranks' calls find each other and messages call it; without one, calls are counted.
        priority: without effect.
        process_set: the ranks that take part.

    Returns:
        The rows that the ranks gave to this one, in rank order. Where splits were given, also how many each gave: int32
        of one dimension, beside the splits (beside `tensor` for a list).

    Raises:
        TypeError: it is no array of MXNet.
        ValueError: a wrong argument, also splits that do not fit, rows that cannot be divided evenly without splits, or
            a name that is in flight; nothing was sent.
        HorovodInternalError: the ranks do not agree on dtype or shape; one of them has joined; the operation failed; or
            Horovod has not been initialized.
        MXNetError: what the array was to be computed by has failed; nothing was sent.
    """
    del priority
    received, received_splits = _prepare(tensor, splits, name, process_set).run()
    return received if splits is None else (received, received_splits)


@gives_up("alltoall")
def alltoall_async(
    tensor: mx.nd.NDArray,
    splits: Splits = None,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Begin an `alltoall`, as `allreduce_async` does an allreduce.

    Returns:
        A handle for `poll` and `synchronize`, which gives the rows and the received splits, also where none were given.

    Raises:
        TypeError: as `alltoall`.
        ValueError: as `alltoall`.
        HorovodInternalError: Horovod has not been initialized, or its group has failed.
        MXNetError: as `alltoall`.
    """
    del priority
    return _prepare(tensor, splits, name, process_set).begin()


def _prepare(array: mx.nd.NDArray, splits: Splits, name: str | None, process_set: ProcessSet) -> Prepared[Pair]:
    call = begin_call("alltoall", name, process_set)
    beside, counts = array, splits
    if isinstance(splits, mx.nd.NDArray):
        beside, counts = splits, view_for_reading(splits)

    def convert(exchanged: Exchanged) -> Pair:
        return make_array(exchanged.tensor, array), make_array(exchanged.received_splits, beside)

    return Prepared(call, Alltoall(view_for_reading(array), counts, call.among, call.name), convert)
