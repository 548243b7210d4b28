"""The collectives of MXNet arrays, with Horovod's names and arguments. `api.calls` implements them."""

from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeVar

import mxnet as mx

from worker_runtime.api import calls, functions
from worker_runtime.api.calls import Arguments, Finish, Form, take_first
from worker_runtime.api.process_set import ProcessSet, global_process_set
from worker_runtime.collectives.combination import choose_combination, choose_for_scatter
from worker_runtime.coordination.ordering.requests import Reduction
from worker_runtime.mxnet.arrays import Views, view_for_reading
from worker_runtime.mxnet.mxnet_errors import raises_mxnet_errors

__all__ = ["allreduce", "allreduce_", "allreduce_async", "allreduce_async_"]
__all__ += ["grouped_allreduce", "grouped_allreduce_", "grouped_allreduce_async", "grouped_allreduce_async_"]
__all__ += ["allgather", "allgather_async", "grouped_allgather", "grouped_allgather_async"]
__all__ += ["alltoall", "alltoall_async", "broadcast", "broadcast_", "broadcast_async", "broadcast_async_"]
__all__ += ["grouped_reducescatter", "grouped_reducescatter_async", "reducescatter", "reducescatter_async"]
__all__ += ["barrier", "join", "poll", "synchronize"]

P = ParamSpec("P")
ResultT = TypeVar("ResultT")
Splits = Any  # integers, or an array of MXNet, which has no types


def collective(form: Form) -> Callable[[Callable[P, Arguments[ResultT]]], Callable[P, ResultT]]:
    """Like `calls.collective`; the function's errors are MXNetErrors too."""
    return lambda build: raises_mxnet_errors(calls.collective(form)(build))


def overwriting(form: Form) -> Callable[[Callable[P, ResultT]], Callable[P, ResultT]]:
    """Like `calls.overwriting`; the function's errors are MXNetErrors too."""
    return lambda like: raises_mxnet_errors(calls.overwriting(form)(like))


def asynchronous(form: Form, finish: Finish = list) -> Callable[[Callable[P, object]], Callable[P, int]]:
    """Like `calls.asynchronous`; the function's errors are MXNetErrors too."""
    return lambda like: raises_mxnet_errors(calls.asynchronous(form, finish)(like))


barrier = raises_mxnet_errors(functions.barrier)
join = raises_mxnet_errors(functions.join)
poll = raises_mxnet_errors(functions.poll)
synchronize = raises_mxnet_errors(functions.synchronize)


@collective(Form("allreduce"))
def allreduce(
    tensor: mx.nd.NDArray,
    average: bool | None = None,
    name: str | None = None,
    priority: int = 0,  # noqa: ARG001 - Horovod's signature
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    op: int | None = None,
) -> Arguments[mx.nd.NDArray]:
    """Reduce an array over the ranks of a process set: postscale_factor * op(prescale_factor * tensor).

    The function waits until MXNet has computed the array, and returns when the result is complete. (Horovod returns
    immediately, and raises errors where the result is read.) A function in place also waits until MXNet has run all
    enqueued operations that read the array. Between an `_async` call and `synchronize`, do not enqueue an operation
    that writes to the array, and for a function in place none that reads it.

    Args:
        tensor: a dense array of `mx.nd` or `mx.np`, of any shape, on any context, with dtype float16, float32, float64,
            int8, uint8, int32 or int64. Shape and dtype are the same on all ranks. It is not changed.
        average: deprecated. True means `op=Average`, False means `op=Sum`.
        name: identifies the operation across ranks and in messages. Without a name, calls are matched by their order.
        priority: ignored.
        prescale_factor: multiplies the input. Integers are multiplied in float64 and truncated toward zero.
        postscale_factor: multiplies the result, in the same way.
        process_set: the ranks that take part.
        op: Average (the default), Sum, Adasum, Min, Max or Product. The average of integers is their exact sum divided
            by the size, truncated toward zero. Sums and products of integers wrap around on overflow; so does an
            average whose sum exceeds int64.

    Returns:
        A new array of the same shape and dtype on the same context, equal on all ranks of the set.

    Raises:
        TypeError: the argument is not an MXNet array.
        ValueError: an argument is wrong; the dtype does not support the op; or an operation of this name is in flight.
            Nothing was sent.
        HorovodInternalError: the ranks give different dtypes, shapes, ops or factors; the operation failed; or Horovod
            has not been initialized.
        MXNetError: the MXNet operation that computes the array failed. Nothing was sent.
    """
    how = choose_combination(op, average, prescale_factor, postscale_factor)
    return Arguments((tensor,), name, process_set, how, take_first, Views())


allreduce_ = overwriting(Form("allreduce", in_place=True))(allreduce)
allreduce_async = asynchronous(Form("allreduce", waits=False), take_first)(allreduce)
allreduce_async_ = asynchronous(Form("allreduce", in_place=True, waits=False), take_first)(allreduce_)


@collective(Form("allreduce", grouped=True))
def grouped_allreduce(
    tensors: Sequence[mx.nd.NDArray],
    average: bool | None = None,
    name: str | None = None,
    priority: int = 0,  # noqa: ARG001 - Horovod's signature
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    op: int | None = None,
) -> Arguments[list[mx.nd.NDArray]]:
    """`allreduce` of several arrays as one operation: it runs when all arrays are ready on all ranks.

    Args:
        tensors: arrays as in `allreduce`. Their number, shapes and dtypes are the same on all ranks. An empty list
            returns immediately; the `_async` functions raise ValueError for it.
        average: deprecated. True means `op=Average`, False means `op=Sum`.
        name: identifies the group across ranks and in messages. Without a name, calls are matched by their order.
        priority: ignored.
        prescale_factor: see `allreduce`.
        postscale_factor: see `allreduce`.
        process_set: the ranks that take part.
        op: see `allreduce`.

    Returns:
        A list of new arrays, in the order of `tensors`.

    Raises:
        TypeError: see `allreduce`.
        ValueError: see `allreduce`.
        HorovodInternalError: see `allreduce`.
        MXNetError: see `allreduce`.
    """
    how = choose_combination(op, average, prescale_factor, postscale_factor)
    return Arguments(tensors, name, process_set, how, list, Views())


grouped_allreduce_ = overwriting(Form("allreduce", grouped=True, in_place=True))(grouped_allreduce)
grouped_allreduce_async = asynchronous(Form("allreduce", grouped=True, waits=False))(grouped_allreduce)
grouped_allreduce_async_ = asynchronous(Form("allreduce", grouped=True, in_place=True, waits=False))(grouped_allreduce_)


@collective(Form("allgather"))
def allgather(
    tensor: mx.nd.NDArray,
    name: str | None = None,
    priority: int = 0,  # noqa: ARG001 - Horovod's signature
    process_set: ProcessSet = global_process_set,
) -> Arguments[mx.nd.NDArray]:
    """Concatenate the arrays of the ranks of a process set along the first dimension, in rank order.

    Args:
        tensor: an array as in `allreduce`, of at least one dimension. The first dimension may differ between ranks, and
            be 0 (MXNet creates such arrays only under `mx.util.np_shape`); the others are the same on all ranks.
        name: identifies the operation across ranks and in messages. Without a name, calls are matched by their order.
        priority: ignored.
        process_set: the ranks that take part.

    Returns:
        A new array of the same dtype on the same context, equal on all ranks of the set.

    Raises:
        TypeError: the argument is not an MXNet array.
        ValueError: an argument is wrong; the array has no dimensions; or an operation of this name is in flight.
            Nothing was sent.
        HorovodInternalError: the ranks give different dtypes or shapes; a rank has called `join()`; the operation
            failed; or Horovod has not been initialized.
        MXNetError: the MXNet operation that computes the array failed. Nothing was sent.
    """
    return Arguments((tensor,), name, process_set, None, take_first, Views())


@collective(Form("allgather", grouped=True))
def grouped_allgather(
    tensors: Sequence[mx.nd.NDArray],
    name: str | None = None,
    priority: int = 0,  # noqa: ARG001 - Horovod's signature
    process_set: ProcessSet = global_process_set,
) -> Arguments[list[mx.nd.NDArray]]:
    """`allgather` of several arrays as one operation: it runs when all arrays are ready on all ranks.

    Args:
        tensors: arrays as in `allgather`. An empty list returns immediately; the `_async` function raises ValueError
            for it.
        name: identifies the group across ranks and in messages. Without a name, calls are matched by their order.
        priority: ignored.
        process_set: the ranks that take part.

    Returns:
        A list of new arrays, in the order of `tensors`.

    Raises:
        TypeError: see `allgather`.
        ValueError: see `allgather`.
        HorovodInternalError: see `allgather`.
        MXNetError: see `allgather`.
    """
    return Arguments(tensors, name, process_set, None, list, Views())


allgather_async = asynchronous(Form("allgather", waits=False), take_first)(allgather)
grouped_allgather_async = asynchronous(Form("allgather", grouped=True, waits=False))(grouped_allgather)


@collective(Form("broadcast"))
def broadcast(
    tensor: mx.nd.NDArray,
    root_rank: int,
    name: str | None = None,
    priority: int = 0,  # noqa: ARG001 - Horovod's signature
    process_set: ProcessSet = global_process_set,
) -> Arguments[mx.nd.NDArray]:
    """Send the array of rank `root_rank` to all ranks of a process set.

    Args:
        tensor: an array as in `allreduce`. On other ranks than the root its values are ignored.
        root_rank: the rank in the job that sends, also when you give a process set.
        name: identifies the operation across ranks and in messages. Without a name, calls are matched by their order.
        priority: ignored.
        process_set: the ranks that take part.

    Returns:
        A new array on the same context, equal on all ranks of the set.

    Raises:
        TypeError: the argument is not an MXNet array.
        ValueError: an argument is wrong; the root is not in the set; or an operation of this name is in flight.
            Nothing was sent.
        HorovodInternalError: the ranks give different dtypes, shapes or roots; a rank has called `join()`; the
            operation failed; or Horovod has not been initialized.
        MXNetError: the MXNet operation that computes the array failed. Nothing was sent.
    """
    return Arguments((tensor,), name, process_set, root_rank, take_first, Views())


broadcast_ = overwriting(Form("broadcast", in_place=True))(broadcast)
broadcast_async = asynchronous(Form("broadcast", waits=False), take_first)(broadcast)
broadcast_async_ = asynchronous(Form("broadcast", in_place=True, waits=False), take_first)(broadcast_)


@collective(Form("alltoall"))
def alltoall(
    tensor: mx.nd.NDArray,
    splits: Splits = None,
    name: str | None = None,
    priority: int = 0,  # noqa: ARG001 - Horovod's signature
    process_set: ProcessSet = global_process_set,
) -> Arguments[mx.nd.NDArray | tuple[mx.nd.NDArray, mx.nd.NDArray]]:
    """Send some rows of an array to each rank of a process set, and receive rows from each.

    Args:
        tensor: an array as in `allreduce`, of at least one dimension. All dimensions but the first are the same on all
            ranks.
        splits: the number of rows for each rank of the set, in rank order: integers, or a one-dimensional array of
            int32 or int64. Their sum must be the number of rows (Horovod silently drops the rest). None sends equally
            many rows to each rank.
        name: identifies the operation across ranks and in messages. Without a name, calls are matched by their order.
        priority: ignored.
        process_set: the ranks that take part.

    Returns:
        The received rows, in the order of the ranks that sent them. If you give `splits`, and always from
        `synchronize`, a tuple of the rows and the number of rows from each rank: a one-dimensional int32 array on the
        context of `splits` (of `tensor` for a list).

    Raises:
        TypeError: the argument is not an MXNet array.
        ValueError: an argument is wrong; the splits do not fit the rows; the rows cannot be divided evenly and no
            splits are given; or an operation of this name is in flight. Nothing was sent.
        HorovodInternalError: the ranks give different dtypes or shapes; a rank has called `join()`; the operation
            failed; or Horovod has not been initialized.
        MXNetError: the MXNet operation that computes the array failed. Nothing was sent.
    """
    beside, counts = tensor, splits
    if isinstance(splits, mx.nd.NDArray):
        beside, counts = splits, view_for_reading(splits)
    return Arguments((tensor,), name, process_set, counts, take_first if splits is None else tuple, Views(beside))


alltoall_async = asynchronous(Form("alltoall", waits=False), tuple)(alltoall)


@collective(Form("reducescatter"))
def reducescatter(
    tensor: mx.nd.NDArray,
    op: int = Reduction.AVERAGE,
    name: str | None = None,
    priority: int = 0,  # noqa: ARG001 - Horovod's signature
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Arguments[mx.nd.NDArray]:
    """Reduce an array over the ranks of a process set, and give each rank its part of the rows.

    Args:
        tensor: an array as in `allreduce`, of at least one dimension.
        op: Average or Sum. Integers are reduced as by `allreduce`.
        name: identifies the operation across ranks and in messages. Without a name, calls are matched by their order.
        priority: ignored.
        process_set: the ranks that take part.
        prescale_factor: multiplies the input. Integers are multiplied in float64 and truncated toward zero.
        postscale_factor: multiplies the result, in the same way.

    Returns:
        This rank's rows, possibly none, in a new array on the same context. Where the rows cannot be divided evenly,
        the first ranks get one row more.

    Raises:
        TypeError: the argument is not an MXNet array.
        ValueError: an argument is wrong; the array has no dimensions; or an operation of this name is in flight.
            Nothing was sent.
        HorovodInternalError: the op is neither Average nor Sum; the ranks give different dtypes, shapes, ops or
            factors; a rank has called `join()`; the operation failed; or Horovod has not been initialized.
        MXNetError: the MXNet operation that computes the array failed. Nothing was sent.
    """
    how = choose_for_scatter(op, prescale_factor, postscale_factor)
    return Arguments((tensor,), name, process_set, how, take_first, Views())


@collective(Form("reducescatter", grouped=True))
def grouped_reducescatter(
    tensors: Sequence[mx.nd.NDArray],
    op: int = Reduction.AVERAGE,
    name: str | None = None,
    priority: int = 0,  # noqa: ARG001 - Horovod's signature
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Arguments[list[mx.nd.NDArray]]:
    """`reducescatter` of several arrays as one operation: it runs when all arrays are ready on all ranks.

    Args:
        tensors: arrays as in `reducescatter`. An empty list returns immediately; the `_async` function raises
            ValueError for it.
        op: Average or Sum.
        name: identifies the group across ranks and in messages. Without a name, calls are matched by their order.
        priority: ignored.
        process_set: the ranks that take part.
        prescale_factor: multiplies the inputs.
        postscale_factor: multiplies the results.

    Returns:
        A list of this rank's rows of each array, in the order of `tensors`.

    Raises:
        TypeError: see `reducescatter`.
        ValueError: see `reducescatter`.
        HorovodInternalError: see `reducescatter`.
        MXNetError: see `reducescatter`.
    """
    how = choose_for_scatter(op, prescale_factor, postscale_factor)
    return Arguments(tensors, name, process_set, how, list, Views())


reducescatter_async = asynchronous(Form("reducescatter", waits=False), take_first)(reducescatter)
grouped_reducescatter_async = asynchronous(Form("reducescatter", grouped=True, waits=False))(grouped_reducescatter)
