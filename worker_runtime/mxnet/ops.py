"""Horovod's functions of arrays: their arguments, and what they do; how they do it stands in `api.calls`.

None of them is differentiable, as in Horovod. `priority` has no effect anywhere: what is ready on all ranks first runs
first.

Long because each of them explains its arguments.
"""

from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeVar

import mxnet as mx

from worker_runtime.api import calls, functions
from worker_runtime.api.calls import Request, take_first
from worker_runtime.api.process_set import ProcessSet, global_process_set
from worker_runtime.collectives.combination import choose, choose_for_scatter
from worker_runtime.coordination.ordering.questions import Reduction
from worker_runtime.mxnet.arrays import Views, view_for_reading
from worker_runtime.mxnet.errors import raises_mxnet_errors

__all__ = [
    "allgather",
    "allgather_async",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "alltoall",
    "alltoall_async",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "join",
    "poll",
    "reducescatter",
    "reducescatter_async",
    "synchronize",
]

P = ParamSpec("P")
ResultT = TypeVar("ResultT")
Splits = Any  # integers, or an array: of MXNet's classes no type can be made


def runs(build: Callable[P, Request[ResultT]]) -> Callable[P, ResultT]:
    """As `calls.runs`; its errors are MXNet's too."""
    return raises_mxnet_errors(calls.runs(build))


def overwrites(like: Callable[P, ResultT], name: str) -> Callable[P, ResultT]:
    """As `calls.overwrites`; its errors are MXNet's too."""
    return raises_mxnet_errors(calls.overwrites(like, name))


def begins(like: Callable[P, object], name: str, finish: Callable[[Sequence[Any]], object] = list) -> Callable[P, int]:
    """As `calls.begins`; its errors are MXNet's too."""
    return raises_mxnet_errors(calls.begins(like, name, finish))


barrier = raises_mxnet_errors(functions.barrier)
join = raises_mxnet_errors(functions.join)
poll = raises_mxnet_errors(functions.poll)
synchronize = raises_mxnet_errors(functions.synchronize)


@runs
def allreduce(  # noqa: PLR0917 - Horovod's signature
    tensor: mx.nd.NDArray,
    average: bool | None = None,  # noqa: FBT001 - Horovod's signature
    name: str | None = None,
    priority: int = 0,  # noqa: ARG001 - Horovod's signature
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    op: int | None = None,
) -> Request[mx.nd.NDArray]:
    """Combine arrays of one shape and dtype over the ranks of a set: postscale * reduce(prescale * x).

    It returns when the result is there; Horovod returns at once, and raises where the result is read. It waits until
    MXNet has computed the array; in place, also until what was enqueued and reads the array is done. As long as a
    handle was not waited for, nothing must be enqueued that writes to the array; in place, nothing that reads it.

    Args:
        tensor: dense, of any shape, also without dimensions or elements, of `mx.nd` or `mx.np`, of the dtypes and on
            the contexts in `worker_runtime.mxnet.arrays`; left alone.
        average: deprecated; True for `op=Average`, False for `op=Sum`.
        name: by which the ranks' calls find each other and messages call it; without one, calls are counted.
        priority: without effect, as in all functions here: what is ready on all ranks first runs first.
        prescale_factor: multiplies before; integers in float64, truncated toward zero.
        postscale_factor: multiplies after, likewise.
        process_set: the ranks that take part.
        op: Average (if none is given), Sum, Adasum, Min, Max or Product. The average of integers is their exact sum
            divided by the size, truncated toward zero; sums and products of integers wrap around.

    Returns:
        A new array of the same shape and dtype on the same context, equal on all ranks of the set.

    Raises:
        TypeError: it is no array of MXNet.
        ValueError: a wrong argument, also a dtype that has no such reduction, or a name that is in flight; nothing was
            sent.
        HorovodInternalError: the ranks do not agree on dtype, shape, op or factors; the operation failed; or Horovod
            has not been initialized.
        MXNetError: what the array was to be computed by has failed; nothing was sent.
    """
    how = choose(op, average, prescale_factor, postscale_factor)
    return Request((tensor,), name, process_set, how, take_first, Views())


allreduce_ = overwrites(allreduce, "allreduce_")
allreduce_async = begins(allreduce, "allreduce_async", take_first)
allreduce_async_ = begins(allreduce_, "allreduce_async_", take_first)


@runs
def grouped_allreduce(  # noqa: PLR0917 - Horovod's signature
    tensors: Sequence[mx.nd.NDArray],
    average: bool | None = None,  # noqa: FBT001 - Horovod's signature
    name: str | None = None,
    priority: int = 0,  # noqa: ARG001 - Horovod's signature
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    op: int | None = None,
) -> Request[list[mx.nd.NDArray]]:
    """`allreduce` of several arrays as one operation: all of them run, or none.

    Args:
        tensors: of any shapes and dtypes; the same on all ranks. Without any nothing is done, and nothing can be begun.
        average: as in `allreduce`, and so are the others.
        name: of the group.
        priority: without effect.
        prescale_factor: for all.
        postscale_factor: for all.
        process_set: the ranks that take part.
        op: for all.

    Returns:
        New arrays, in the order of the call.

    Raises:
        TypeError: as `allreduce`.
        ValueError: as `allreduce`.
        HorovodInternalError: as `allreduce`.
        MXNetError: as `allreduce`.
    """
    how = choose(op, average, prescale_factor, postscale_factor)
    return Request(tensors, name, process_set, how, list, Views())


grouped_allreduce_ = overwrites(grouped_allreduce, "grouped_allreduce_")
grouped_allreduce_async = begins(grouped_allreduce, "grouped_allreduce_async")
grouped_allreduce_async_ = begins(grouped_allreduce_, "grouped_allreduce_async_")


@runs
def allgather(
    tensor: mx.nd.NDArray,
    name: str | None = None,
    priority: int = 0,  # noqa: ARG001 - Horovod's signature
    process_set: ProcessSet = global_process_set,
) -> Request[mx.nd.NDArray]:
    """The arrays of the ranks of a set, one after the other along the first dimension, in rank order.

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
    return Request((tensor,), name, process_set, None, take_first, Views())


@runs
def grouped_allgather(
    tensors: Sequence[mx.nd.NDArray],
    name: str | None = None,
    priority: int = 0,  # noqa: ARG001 - Horovod's signature
    process_set: ProcessSet = global_process_set,
) -> Request[list[mx.nd.NDArray]]:
    """`allgather` of several arrays as one operation: all of them run, or none.

    Args:
        tensors: each as in `allgather`. Without any nothing is done, and nothing can be begun.
        name: of the group.
        priority: without effect.
        process_set: the ranks that take part.

    Returns:
        New arrays, in the order of the call.

    Raises:
        TypeError: as `allgather`.
        ValueError: as `allgather`.
        HorovodInternalError: as `allgather`.
        MXNetError: as `allgather`.
    """
    return Request(tensors, name, process_set, None, list, Views())


allgather_async = begins(allgather, "allgather_async", take_first)
grouped_allgather_async = begins(grouped_allgather, "grouped_allgather_async")


@runs
def broadcast(
    tensor: mx.nd.NDArray,
    root_rank: int,
    name: str | None = None,
    priority: int = 0,  # noqa: ARG001 - Horovod's signature
    process_set: ProcessSet = global_process_set,
) -> Request[mx.nd.NDArray]:
    """The values of rank `root_rank` in a new array on all ranks of a set.

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
    return Request((tensor,), name, process_set, root_rank, take_first, Views())


broadcast_ = overwrites(broadcast, "broadcast_")
broadcast_async = begins(broadcast, "broadcast_async", take_first)
broadcast_async_ = begins(broadcast_, "broadcast_async_", take_first)


@runs
def alltoall(
    tensor: mx.nd.NDArray,
    splits: Splits = None,
    name: str | None = None,
    priority: int = 0,  # noqa: ARG001 - Horovod's signature
    process_set: ProcessSet = global_process_set,
) -> Request[mx.nd.NDArray | tuple[mx.nd.NDArray, mx.nd.NDArray]]:
    """Give each rank of a set some of the rows, and get some from each.

    Args:
        tensor: as in `allreduce`, of at least one dimension; the others than the first are the same on all ranks.
        splits: how many rows go to each rank of the set, in order: integers, or an array of int32 or int64 of one
            dimension. Together they are all rows: Horovod silently drops those left over, here that is an error. None
            gives each rank as many.
        name: by which the ranks' calls find each other and messages call it; without one, calls are counted.
        priority: without effect.
        process_set: the ranks that take part.

    Returns:
        The rows that the ranks gave to this one, in rank order. Where splits were given, and from `synchronize` always,
        also how many each gave: int32 of one dimension, beside the splits (beside `tensor` for a list).

    Raises:
        TypeError: it is no array of MXNet.
        ValueError: a wrong argument, also splits that do not fit, rows that cannot be divided evenly without splits, or
            a name that is in flight; nothing was sent.
        HorovodInternalError: the ranks do not agree on dtype or shape; one of them has joined; the operation failed; or
            Horovod has not been initialized.
        MXNetError: what the array was to be computed by has failed; nothing was sent.
    """
    beside, counts = tensor, splits
    if isinstance(splits, mx.nd.NDArray):
        beside, counts = splits, view_for_reading(splits)
    return Request((tensor,), name, process_set, counts, take_first if splits is None else tuple, Views(beside))


alltoall_async = begins(alltoall, "alltoall_async", tuple)


@runs
def reducescatter(  # noqa: PLR0917 - Horovod's signature
    tensor: mx.nd.NDArray,
    op: int = Reduction.AVERAGE,
    name: str | None = None,
    priority: int = 0,  # noqa: ARG001 - Horovod's signature
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Request[mx.nd.NDArray]:
    """Combine arrays over the ranks of a set, of which each rank gets its part of the rows.

    Args:
        tensor: as in `allreduce`, of at least one dimension, of the same shape and dtype on all ranks; left alone.
        op: Average or Sum; of integers as in `allreduce`.
        name: by which the ranks' calls find each other and messages call it; without one, calls are counted.
        priority: without effect.
        process_set: the ranks that take part.
        prescale_factor: multiplies before; integers in float64, truncated toward zero.
        postscale_factor: multiplies after, likewise.

    Returns:
        This rank's rows, in a new array on the same context: where they cannot be divided evenly, the first ranks have
        one more each; there may be none.

    Raises:
        TypeError: it is no array of MXNet.
        ValueError: a wrong argument, also an array without dimensions, or a name that is in flight; nothing was sent.
        HorovodInternalError: the op is another one; the ranks do not agree on dtype, shape, op or factors; one of them
            has joined; the operation failed; or Horovod has not been initialized.
        MXNetError: what the array was to be computed by has failed; nothing was sent.
    """
    how = choose_for_scatter(op, prescale_factor, postscale_factor)
    return Request((tensor,), name, process_set, how, take_first, Views())


@runs
def grouped_reducescatter(  # noqa: PLR0917 - Horovod's signature
    tensors: Sequence[mx.nd.NDArray],
    op: int = Reduction.AVERAGE,
    name: str | None = None,
    priority: int = 0,  # noqa: ARG001 - Horovod's signature
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Request[list[mx.nd.NDArray]]:
    """`reducescatter` of several arrays as one operation: all of them run, or none.

    Args:
        tensors: each as in `reducescatter`. Without any nothing is done, and nothing can be begun.
        op: for all, and so are the others.
        name: of the group.
        priority: without effect.
        process_set: the ranks that take part.
        prescale_factor: for all.
        postscale_factor: for all.

    Returns:
        This rank's rows of each, in the order of the call.

    Raises:
        TypeError: as `reducescatter`.
        ValueError: as `reducescatter`.
        HorovodInternalError: as `reducescatter`.
        MXNetError: as `reducescatter`.
    """
    how = choose_for_scatter(op, prescale_factor, postscale_factor)
    return Request(tensors, name, process_set, how, list, Views())


reducescatter_async = begins(reducescatter, "reducescatter_async", take_first)
grouped_reducescatter_async = begins(grouped_reducescatter, "grouped_reducescatter_async")
