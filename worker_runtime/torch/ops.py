"""The collectives of PyTorch tensors, with Horovod's names and arguments. `api.calls` implements them."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import ParamSpec, TypeVar

import torch

from worker_runtime.api import calls
from worker_runtime.api.calls import Arguments, Form, asynchronous, overwriting, reports_failure, take_first
from worker_runtime.api.functions import barrier, join, poll, synchronize
from worker_runtime.api.process_set import ProcessSet, global_process_set
from worker_runtime.collectives.alltoall import Splits
from worker_runtime.collectives.combination import choose_combination, choose_for_scatter, choose_reduction
from worker_runtime.collectives.sparse_allreduce import SparseAllreduce
from worker_runtime.coordination.ordering.requests import Reduction
from worker_runtime.reduction.settings import Compressor
from worker_runtime.torch.autograd.functions import run_differentiably
from worker_runtime.torch.compression import Compressed, Compression

__all__ = ["allreduce", "allreduce_", "allreduce_async", "allreduce_async_", "sparse_allreduce_async"]
__all__ += ["grouped_allreduce", "grouped_allreduce_", "grouped_allreduce_async", "grouped_allreduce_async_"]
__all__ += ["allgather", "allgather_async", "grouped_allgather", "grouped_allgather_async"]
__all__ += ["alltoall", "alltoall_async", "broadcast", "broadcast_", "broadcast_async", "broadcast_async_"]
__all__ += ["grouped_reducescatter", "grouped_reducescatter_async", "reducescatter", "reducescatter_async"]
__all__ += ["barrier", "join", "poll", "synchronize"]

P = ParamSpec("P")
ResultT = TypeVar("ResultT")


def collective(
    form: Form, *, is_traced: bool = False
) -> Callable[[Callable[P, Arguments[ResultT]]], Callable[P, ResultT]]:
    """Like `calls.collective`; also differentiable unless in place, and if `is_traced`, part of compiled graphs."""
    return calls.collective(form, None if form.in_place else run_differentiably, trace if is_traced else None)


def trace(kind: str, arguments: Arguments[torch.Tensor]) -> torch.Tensor:
    """Add a collective to the graph that torch.compile traces; differentiable.

    The graph operations are imported here and not at the top: registering them takes 12 ms, and few programs compile.
    """
    from worker_runtime.torch.graph_ops import TOKEN  # noqa: PLC0415 - few programs compile

    given, name, process_set, settings, _, arrays = arguments
    if arrays is not None:
        (sent,) = arrays.read(given, in_place=False)
    else:
        (sent,) = given
    if isinstance(settings, tuple):
        op, *factors = settings
    else:
        op, factors = settings or 0, [1.0, 1.0]  # a root, or nothing
    how = int(op), *map(float, factors)
    result: torch.Tensor = torch.ops.hvdrun.collective_v2(TOKEN, sent, kind, name, process_set.key, *how)[0]
    if arrays is not None:
        (result,) = arrays.wrap([result], given, in_place=False)
    return result


def _choose_arrays(title: str, compression: Compressor) -> Compressed | None:
    if compression is Compression.none:
        return None
    return Compressed(title, compression)


@collective(Form("allreduce"), is_traced=True)
def allreduce(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: Compressor = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Arguments[torch.Tensor]:
    """Reduce a tensor over the ranks of a process set: postscale_factor * op(prescale_factor * tensor).

    Differentiable: backward is a collective too, and all ranks of the set must run it. Let G be the sum of the result's
    gradients over the ranks. Then the gradient of `tensor`, before it is multiplied by both factors, is:

    - Sum: G. Average: G / size.
    - Min, Max: G on the ranks that have the extreme value, divided by their number; 0 on the others.
    - Product: G times the product of the other ranks' inputs.
    - Adasum: the Adasum of the ranks' gradients, as in Horovod.

    Except for Product, the backward pass is differentiable again.

    Args:
        tensor: a dense tensor of any shape and strides, with a dtype of `worker_runtime.collectives.dtypes`. Shape and
            dtype are the same on all ranks. It is not changed.
        average: deprecated. True means `op=Average`, False means `op=Sum`.
        name: identifies the operation across ranks and in messages. Without a name, calls are matched by their order.
        compression: compresses the tensor for the transfer; gradients are compressed too.
        op: Average (the default), Sum, Adasum, Min, Max or Product. The average of integers is their exact sum divided
            by the size, truncated toward zero. Sums and products of integers wrap around on overflow; so does an
            average whose sum exceeds int64. Min and Max return NaN where a rank has NaN.
        prescale_factor: multiplies the input. Integers are multiplied in float64 and truncated toward zero.
        postscale_factor: multiplies the result, in the same way.
        process_set: the ranks that take part.

    Returns:
        A new tensor of the same shape and dtype, equal on all ranks of the set.

    Raises:
        ValueError: an argument is wrong; the dtype does not support the op; or an operation of this name is in flight.
            Nothing was sent.
        HorovodInternalError: the ranks give different dtypes, shapes, ops, factors or device types; the operation
            failed; or Horovod has not been initialized.
    """
    how = choose_combination(op, average, prescale_factor, postscale_factor)
    arrays = _choose_arrays("allreduce", compression)
    return Arguments((tensor,), name, process_set, how, take_first, arrays)


@collective(Form("allreduce", in_place=True))
def allreduce_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Arguments[torch.Tensor]:
    """Like `allreduce`: postscale_factor * op(prescale_factor * tensor); not differentiable.

    The functions whose names end in an underscore work in place: they overwrite `tensor` with the result, and return
    it. As after any change in place, torch raises an error if a backward pass needs the earlier values.

    Args:
        tensor: see `allreduce`.
        average: deprecated. True means `op=Average`, False means `op=Sum`.
        name: identifies the operation across ranks and in messages. Without a name, calls are matched by their order.
        op: Average (the default), Sum, Adasum, Min, Max or Product.
        prescale_factor: multiplies the input.
        postscale_factor: multiplies the result.
        process_set: the ranks that take part.

    Raises:
        ValueError: see `allreduce`. In place, also where elements of `tensor` share memory, as after `expand`.
        HorovodInternalError: see `allreduce`.
    """
    how = choose_combination(op, average, prescale_factor, postscale_factor)
    return Arguments((tensor,), name, process_set, how, take_first)


allreduce_async = asynchronous(Form("allreduce", waits=False))(allreduce_)
allreduce_async_ = asynchronous(Form("allreduce", in_place=True, waits=False))(allreduce_)


@collective(Form("allreduce", grouped=True))
def grouped_allreduce(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    compression: Compressor = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Arguments[list[torch.Tensor]]:
    """`allreduce` of several tensors as one operation: it runs when all tensors are ready on all ranks.

    Differentiable like `allreduce`; the results may be used in one backward pass or in several. Backward is one
    collective for all tensors (for Min, Max and Product one for each).

    Args:
        tensors: at least one tensor, all on one device. Their number, shapes and dtypes are the same on all ranks.
        average: deprecated. True means `op=Average`, False means `op=Sum`.
        name: identifies the group across ranks and in messages. Without a name, calls are matched by their order.
        compression: see `allreduce`; compresses each tensor separately.
        op: see `allreduce`.
        prescale_factor: see `allreduce`.
        postscale_factor: see `allreduce`.
        process_set: the ranks that take part.

    Returns:
        A list of new tensors, in the order of `tensors`.

    Raises:
        ValueError: see `allreduce`; also where the list is empty, or the tensors are on several devices.
        HorovodInternalError: see `allreduce`.
    """
    how = choose_combination(op, average, prescale_factor, postscale_factor)
    return Arguments(tensors, name, process_set, how, list, _choose_arrays("grouped_allreduce", compression))


@collective(Form("allreduce", grouped=True, in_place=True))
def grouped_allreduce_(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Arguments[list[torch.Tensor]]:
    """`allreduce_` of several tensors as one operation: it runs when all tensors are ready on all ranks.

    Not differentiable. The functions whose names end in an underscore overwrite the tensors, and return them in a list.
    `synchronize` returns a tuple.

    Args:
        tensors: at least one tensor, all on one device. Their number, shapes and dtypes are the same on all ranks.
        average: deprecated. True means `op=Average`, False means `op=Sum`.
        name: identifies the group across ranks and in messages. Without a name, calls are matched by their order.
        op: see `allreduce`.
        prescale_factor: see `allreduce`.
        postscale_factor: see `allreduce`.
        process_set: the ranks that take part.

    Raises:
        ValueError: see `allreduce_`; also where the list is empty, or the tensors are on several devices.
        HorovodInternalError: see `allreduce`.
    """
    how = choose_combination(op, average, prescale_factor, postscale_factor)
    return Arguments(tensors, name, process_set, how, list)


grouped_allreduce_async = asynchronous(Form("allreduce", grouped=True, waits=False), tuple)(grouped_allreduce_)
grouped_allreduce_async_ = asynchronous(Form("allreduce", grouped=True, in_place=True, waits=False), tuple)(
    grouped_allreduce_
)


@reports_failure("sparse_allreduce")
def sparse_allreduce_async(
    tensor: torch.Tensor, name: str | None, op: int | None, process_set: ProcessSet = global_process_set
) -> Callable[[], torch.Tensor]:
    """Start to sum or average a sparse tensor over the ranks of a process set; not differentiable.

    Args:
        tensor: a sparse COO tensor, coalesced or not, of the same shape and dtype on all ranks; the number of elements
            may differ, and be 0. Do not change it before the result is complete.
        name: identifies the operation across ranks and in messages; None matches calls by their order.
        op: Sum or Average. Another op raises ValueError (Horovod ignores it).
        process_set: the ranks that take part.

    Returns:
        A function without arguments that waits and returns the result: a sparse tensor of the same shape with the
        elements of all ranks, not coalesced. For Average its values are divided by the size of the set.

    Raises:
        ValueError: an argument is wrong, or an operation of this name is in flight. Nothing was sent.
        HorovodInternalError: Horovod has not been initialized, or an earlier error ended this generation. The returned
            function raises it where the ranks give different dtypes, shapes or ops, or the operation failed.
    """
    reduction = choose_reduction(op)
    call = calls.begin_call("sparse_allreduce", name, process_set)
    handle = call.engine.submit(SparseAllreduce(tensor, reduction, call.among, call.name))
    return partial(call.engine.wait, handle)


@collective(Form("allgather"), is_traced=True)
def allgather(
    tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Arguments[torch.Tensor]:
    """Concatenate the tensors of the ranks of a process set along the first dimension, in rank order.

    Differentiable: backward is a collective too, and all ranks of the set must run it. The gradient of `tensor` is the
    average over the ranks of the gradients of its rows. This follows Horovod; the derivative of the sum of all losses
    is `size` times as large. The backward pass is differentiable again.

    Args:
        tensor: a dense tensor of at least one dimension, of any strides, with a dtype of
            `worker_runtime.collectives.dtypes`. The first dimension may differ between ranks, and be 0; the others
            are the same on all ranks.
        name: identifies the operation across ranks and in messages. Without a name, calls are matched by their order.
        process_set: the ranks that take part.

    Returns:
        A new tensor of the same dtype, equal on all ranks of the set.

    Raises:
        ValueError: an argument is wrong; the tensor has no dimensions; or an operation of this name is in flight.
            Nothing was sent.
        HorovodInternalError: the ranks give different dtypes, shapes or device types; a rank has called `join()`; the
            operation failed; or Horovod has not been initialized.
    """
    return Arguments((tensor,), name, process_set, None, take_first)


@collective(Form("allgather", grouped=True))
def grouped_allgather(
    tensors: Sequence[torch.Tensor], name: str | None = None, process_set: ProcessSet = global_process_set
) -> Arguments[list[torch.Tensor]]:
    """`allgather` of several tensors as one operation: it runs when all tensors are ready on all ranks.

    Differentiable like `allgather`, by one collective for all tensors.

    Args:
        tensors: at least one tensor, all on one device; each as in `allgather`.
        name: identifies the group across ranks and in messages. Without a name, calls are matched by their order.
        process_set: the ranks that take part.

    Returns:
        A list of new tensors, in the order of `tensors`; from `synchronize` a tuple.

    Raises:
        ValueError: see `allgather`; also where the list is empty, or the tensors are on several devices.
        HorovodInternalError: see `allgather`.
    """
    return Arguments(tensors, name, process_set, None, list)


allgather_async = asynchronous(Form("allgather", waits=False))(allgather)
grouped_allgather_async = asynchronous(Form("allgather", grouped=True, waits=False), tuple)(grouped_allgather)


@collective(Form("broadcast"), is_traced=True)
def broadcast(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Arguments[torch.Tensor]:
    """Send the tensor of rank `root_rank` to all ranks of a process set.

    Differentiable: backward is a collective too, and all ranks of the set must run it. The gradient of the root's
    tensor is the average of the result's gradients over the ranks; on the other ranks it is 0. This follows Horovod;
    the derivative of the sum of all losses is `size` times as large. The backward pass is differentiable again.

    Args:
        tensor: a dense tensor of any shape and strides, with a dtype of `worker_runtime.collectives.dtypes`. Shape and
            dtype are the same on all ranks. On other ranks than the root its values are ignored.
        root_rank: the rank in the job that sends, also when you give a process set.
        name: identifies the operation across ranks and in messages. Without a name, calls are matched by their order.
        process_set: the ranks that take part.

    Returns:
        A new tensor, equal on all ranks of the set.

    Raises:
        ValueError: an argument is wrong; the root is not in the set; or an operation of this name is in flight.
            Nothing was sent. In place, also where elements of `tensor` share memory, as after `expand`.
        HorovodInternalError: the ranks give different dtypes, shapes, roots or device types; a rank has called
            `join()`; the operation failed; or Horovod has not been initialized.
    """
    return Arguments((tensor,), name, process_set, root_rank, take_first)


broadcast_ = overwriting(Form("broadcast", in_place=True))(broadcast)
broadcast_async = asynchronous(Form("broadcast", waits=False))(broadcast)
broadcast_async_ = asynchronous(Form("broadcast", in_place=True, waits=False))(broadcast_)


@collective(Form("alltoall"))
def alltoall(
    tensor: torch.Tensor,
    splits: Splits | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Arguments[torch.Tensor | tuple[torch.Tensor, torch.Tensor]]:
    """Send some rows of a tensor to each rank of a process set, and receive rows from each.

    Differentiable: backward is a collective too, and all ranks of the set must run it. It returns the gradient of each
    row to the rank that sent the row. The backward pass is differentiable again.

    Args:
        tensor: a dense tensor of at least one dimension, of any strides, with a dtype of
            `worker_runtime.collectives.dtypes`. All dimensions but the first are the same on all ranks.
        splits: the number of rows for each rank of the set, in rank order: integers, or a one-dimensional tensor of
            int32 or int64. Their sum must be the number of rows (Horovod silently drops the rest). None sends equally
            many rows to each rank.
        name: identifies the operation across ranks and in messages. Without a name, calls are matched by their order.
        process_set: the ranks that take part.

    Returns:
        The received rows, in the order of the ranks that sent them. If you give `splits`, and always from
        `synchronize`, a tuple of the rows and the number of rows from each rank: a one-dimensional int32 tensor on the
        device of `splits` (the CPU for a list).

    Raises:
        ValueError: an argument is wrong; the splits do not fit the rows; the rows cannot be divided evenly and no
            splits are given; or an operation of this name is in flight. Nothing was sent.
        HorovodInternalError: the ranks give different dtypes, shapes or device types; a rank has called `join()`; the
            operation failed; or Horovod has not been initialized.
    """
    finish = take_first if splits is None else tuple
    return Arguments((tensor,), name, process_set, splits, finish)


alltoall_async = asynchronous(Form("alltoall", waits=False), tuple)(alltoall)


@collective(Form("reducescatter"), is_traced=True)
def reducescatter(
    tensor: torch.Tensor,
    name: str | None = None,
    compression: Compressor = Compression.none,
    op: int = Reduction.AVERAGE,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Arguments[torch.Tensor]:
    """Reduce a tensor over the ranks of a process set, and give each rank its part of the rows.

    Differentiable: backward is a collective too, and all ranks of the set must run it. The gradient of `tensor` is the
    concatenation of the gradients of all ranks' parts, times both factors, and for Sum times the size of the set. This
    follows Horovod; the derivative of the sum of all losses is smaller by a factor of `size`, for Sum and for Average.
    The backward pass is differentiable again.

    Args:
        tensor: a dense tensor of at least one dimension, of any strides, with a dtype of
            `worker_runtime.collectives.dtypes`. Shape and dtype are the same on all ranks. It is not changed.
        name: identifies the operation across ranks and in messages. Without a name, calls are matched by their order.
        compression: compresses the tensor for the transfer; gradients are compressed too.
        op: Average or Sum. Integers are reduced as by `allreduce`.
        process_set: the ranks that take part.
        prescale_factor: multiplies the input. Integers are multiplied in float64 and truncated toward zero.
        postscale_factor: multiplies the result, in the same way.

    Returns:
        This rank's rows, in a new tensor. Where the rows cannot be divided evenly, the first ranks get one row more.

    Raises:
        ValueError: an argument is wrong; the tensor has no dimensions; or an operation of this name is in flight.
            Nothing was sent.
        HorovodInternalError: the op is neither Average nor Sum; the ranks give different dtypes, shapes, ops, factors
            or device types; a rank has called `join()`; the operation failed; or Horovod has not been initialized.
    """
    how = choose_for_scatter(op, prescale_factor, postscale_factor)
    arrays = _choose_arrays("reducescatter", compression)
    return Arguments((tensor,), name, process_set, how, take_first, arrays)


@asynchronous(Form("reducescatter", waits=False))
def reducescatter_async(
    tensor: torch.Tensor,
    name: str | None = None,
    op: int = Reduction.AVERAGE,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Arguments[torch.Tensor]:
    """Start a `reducescatter`; not differentiable.

    Args:
        tensor: see `reducescatter`. Do not change it before `synchronize` returns.
        name: identifies the operation across ranks and in messages. Without a name, calls are matched by their order.
        op: Average or Sum.
        process_set: the ranks that take part.
        prescale_factor: multiplies the input.
        postscale_factor: multiplies the result.

    Returns:
        A handle for `poll` and `synchronize`; `synchronize` returns this rank's rows.

    Raises:
        ValueError: see `reducescatter`.
        HorovodInternalError: the op is neither Average nor Sum; Horovod has not been initialized; or an earlier error
            ended this generation.
    """
    how = choose_for_scatter(op, prescale_factor, postscale_factor)
    return Arguments((tensor,), name, process_set, how, take_first)


@collective(Form("reducescatter", grouped=True))
def grouped_reducescatter(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    compression: Compressor = Compression.none,
    op: int = Reduction.AVERAGE,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Arguments[list[torch.Tensor]]:
    """`reducescatter` of several tensors as one operation: it runs when all tensors are ready on all ranks.

    Differentiable like `reducescatter`, by one collective for all tensors.

    Args:
        tensors: at least one tensor, all on one device; each as in `reducescatter`.
        name: identifies the group across ranks and in messages. Without a name, calls are matched by their order.
        compression: see `reducescatter`; compresses each tensor separately.
        op: Average or Sum.
        process_set: the ranks that take part.
        prescale_factor: multiplies the inputs.
        postscale_factor: multiplies the results.

    Returns:
        A list of this rank's rows of each tensor, in the order of `tensors`.

    Raises:
        ValueError: see `reducescatter`; also where the list is empty, or the tensors are on several devices.
        HorovodInternalError: see `reducescatter`.
    """
    how = choose_for_scatter(op, prescale_factor, postscale_factor)
    return Arguments(tensors, name, process_set, how, list, _choose_arrays("grouped_reducescatter", compression))


@asynchronous(Form("reducescatter", grouped=True, waits=False))
def grouped_reducescatter_async(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    op: int = Reduction.AVERAGE,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Arguments[tuple[torch.Tensor, ...]]:
    """Start a `grouped_reducescatter`; not differentiable.

    Args:
        tensors: see `grouped_reducescatter`. Do not change them before `synchronize` returns.
        name: identifies the group across ranks and in messages. Without a name, calls are matched by their order.
        op: Average or Sum.
        process_set: the ranks that take part.
        prescale_factor: multiplies the inputs.
        postscale_factor: multiplies the results.

    Returns:
        A handle for `poll` and `synchronize`; `synchronize` returns a tuple of this rank's rows of each tensor.

    Raises:
        ValueError: see `grouped_reducescatter`.
        HorovodInternalError: see `reducescatter_async`.
    """
    how = choose_for_scatter(op, prescale_factor, postscale_factor)
    return Arguments(tensors, name, process_set, how, tuple)
