"""Horovod's functions of tensors: their arguments, and what they do; how they do it stands in `api.calls`.

Long because each of them explains its arguments.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import ParamSpec, TypeVar

import torch

from worker_runtime.api import calls
from worker_runtime.api.calls import Request, begin_call, begins, gives_up, overwrites, take_first
from worker_runtime.api.functions import barrier, join, poll, synchronize
from worker_runtime.api.process_set import ProcessSet, global_process_set
from worker_runtime.collectives.alltoall import Splits
from worker_runtime.collectives.combination import choose, choose_for_scatter, choose_reduction
from worker_runtime.collectives.sparse_allreduce import SparseAllreduce
from worker_runtime.coordination.ordering.questions import Reduction
from worker_runtime.reduction.settings import Compressor
from worker_runtime.torch.autograd.functions import run_differentiably
from worker_runtime.torch.compression import Compressed, Compression

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
    "sparse_allreduce_async",
    "synchronize",
]

_TRACED = ("allreduce", "allgather", "broadcast", "reducescatter")  # in compiled graphs

P = ParamSpec("P")
ResultT = TypeVar("ResultT")


def runs(build: Callable[P, Request[ResultT]]) -> Callable[P, ResultT]:
    """As `calls.runs`; what is not in place is differentiable, and some of it an operation of compiled graphs."""
    return calls.runs(build, run_differentiably, trace if build.__name__ in _TRACED else None)


def trace(kind: str, request: Request[torch.Tensor]) -> torch.Tensor:
    """Put a request's collective into the graph that is being traced; differentiable.

    Only then the operations are imported: to register them with torch takes 12 ms, and few programs need them.
    """
    from worker_runtime.torch.graph_ops import TOKEN  # noqa: PLC0415 - see above

    given, name, process_set, settings, _, arrays = request
    (sent,) = given if arrays is None else arrays.read(given, in_place=False)
    op, *factors = settings if isinstance(settings, tuple) else (settings or 0, 1.0, 1.0)  # a root, or nothing
    how = int(op), *map(float, factors)
    result: torch.Tensor = torch.ops.hvdrun.collective(TOKEN, sent, kind, name, process_set.key, *how)[0]
    return result if arrays is None else arrays.wrap([result], given, in_place=False)[0]


def _choose_arrays(title: str, compression: Compressor) -> Compressed | None:
    return None if compression is Compression.none else Compressed(title, compression)


@runs
def allreduce(  # noqa: PLR0917 - Horovod's signature
    tensor: torch.Tensor,
    average: bool | None = None,  # noqa: FBT001 - Horovod's signature
    name: str | None = None,
    compression: Compressor = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Request[torch.Tensor]:
    """Combine tensors of one shape and dtype over the ranks of a set: postscale * reduce(prescale * x).

    The gradient of an input is, with G the sum of all ranks' gradients for the result: for Sum G, for Average G / size,
    for Min and Max G on the ranks that hold the extreme value, in equal shares, for Product G times the product of the
    other ranks' inputs; each times both factors. For Adasum it is, as in Horovod, the Adasum of the gradients.
    Backward is itself a collective, which all ranks of the set must run, and differentiable in turn (for Product
    it is not).

    Args:
        tensor: dense, of any shape, strides and of the dtypes in `worker_runtime.collectives.dtypes`; left alone.
        average: deprecated; True for `op=Average`, False for `op=Sum`.
        name: by which the ranks' calls find each other and messages call it; without one, calls are counted.
        compression: how the tensor is made smaller on its way; gradients pass through it too.
        op: Average (if none is given), Sum, Adasum, Min, Max or Product. The average of integers is their exact sum,
            divided by the size, truncated, while that fits int64; others may wrap around. A NaN makes a Min or Max NaN.
        prescale_factor: multiplies before; integers in float64, truncated toward zero.
        postscale_factor: multiplies after, likewise.
        process_set: the ranks that take part.

    Returns:
        A new tensor of the same shape and dtype, equal on all ranks of the set.

    Raises:
        ValueError: a wrong argument, also a dtype that has no such reduction, or a name that is in flight; nothing was
            sent.
        HorovodInternalError: the ranks do not agree on dtype, shape, op, factors or device; the operation failed; or
            Horovod has not been initialized.
    """
    how = choose(op, average, prescale_factor, postscale_factor)
    arrays = _choose_arrays("allreduce", compression)
    return Request((tensor,), name, process_set, how, take_first, arrays)


@runs
def allreduce_(  # noqa: PLR0917 - Horovod's signature
    tensor: torch.Tensor,
    average: bool | None = None,  # noqa: FBT001 - Horovod's signature
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Request[torch.Tensor]:
    """Combine tensors as `allreduce` does: postscale * reduce(prescale * x); not differentiable.

    What works in place returns `tensor`, whose values the result has replaced. Autograd takes it for the change that it
    is: a backward pass that needs the earlier values is an error.

    Args:
        tensor: as in `allreduce`, and so are the others.
        average: deprecated; True for `op=Average`, False for `op=Sum`.
        name: by which the ranks' calls find each other and messages call it; without one, calls are counted.
        op: Average (if none is given), Sum, Adasum, Min, Max or Product.
        prescale_factor: multiplies before.
        postscale_factor: multiplies after.
        process_set: the ranks that take part.

    Raises:
        ValueError: as `allreduce`; in place, also when elements of `tensor` share their memory, as after `expand`.
        HorovodInternalError: as `allreduce`.
    """
    how = choose(op, average, prescale_factor, postscale_factor)
    return Request((tensor,), name, process_set, how, take_first)


allreduce_async = begins(allreduce_, "allreduce_async")
allreduce_async_ = begins(allreduce_, "allreduce_async_")


@runs
def grouped_allreduce(  # noqa: PLR0917 - Horovod's signature
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,  # noqa: FBT001 - Horovod's signature
    name: str | None = None,
    compression: Compressor = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Request[list[torch.Tensor]]:
    """`allreduce` of several tensors as one operation: all of them run, or none.

    Differentiable as `allreduce`, the results together or one after the other: by one collective for all tensors (for
    Min, Max and Product by one for each).

    Args:
        tensors: at least one, on one device, of any shapes and dtypes; the same on all ranks.
        average: as in `allreduce`, and so are the others.
        name: of the group.
        compression: of each tensor by itself.
        op: for all.
        prescale_factor: for all.
        postscale_factor: for all.
        process_set: the ranks that take part.

    Returns:
        New tensors, in the order of the call.

    Raises:
        ValueError: as `allreduce`; also tensors on several devices, or none at all.
        HorovodInternalError: as `allreduce`.
    """
    how = choose(op, average, prescale_factor, postscale_factor)
    return Request(tensors, name, process_set, how, list, _choose_arrays("grouped_allreduce", compression))


@runs
def grouped_allreduce_(  # noqa: PLR0917 - Horovod's signature
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,  # noqa: FBT001 - Horovod's signature
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Request[list[torch.Tensor]]:
    """`allreduce_` of several tensors as one operation: all of them run, or none; not differentiable.

    What works in place returns the tensors that were given. `synchronize` gives a tuple.

    Args:
        tensors: at least one, on one device, of any shapes and dtypes; the same on all ranks.
        average: as in `allreduce_`, and so are the others.
        name: of the group.
        op: for all.
        prescale_factor: for all.
        postscale_factor: for all.
        process_set: the ranks that take part.

    Raises:
        ValueError: as `allreduce_`; also tensors on several devices, or none at all.
        HorovodInternalError: as `allreduce`.
    """
    how = choose(op, average, prescale_factor, postscale_factor)
    return Request(tensors, name, process_set, how, list)


grouped_allreduce_async = begins(grouped_allreduce_, "grouped_allreduce_async", tuple)
grouped_allreduce_async_ = begins(grouped_allreduce_, "grouped_allreduce_async_", tuple)


@gives_up("sparse_allreduce")
def sparse_allreduce_async(
    tensor: torch.Tensor, name: str | None, op: int | None, process_set: ProcessSet = global_process_set
) -> Callable[[], torch.Tensor]:
    """Begin to add up, or to average, sparse tensors over the ranks of a set; not differentiable.

    Args:
        tensor: sparse COO, coalesced or not, also without elements, of the same shape and dtype on all ranks; left
            alone, also by the caller until the result is there.
        name: by which the ranks' calls find each other and messages call it; None counts the calls.
        op: Sum or Average; other ops are an error (Horovod does not look).
        process_set: the ranks that take part.

    Returns:
        What waits, when it is called, and gives the result: sparse, of the same shape, with the elements of all ranks
        one after the other. It is not coalesced. The average divides by the size of the set.

    Raises:
        ValueError: a wrong argument, or a name that is in flight; nothing was sent.
        HorovodInternalError: Horovod has not been initialized, or its group has failed. What is returned raises it
            where the ranks do not agree on dtype, shape or op, or the operation failed.
    """
    reduction = choose_reduction(op)
    call = begin_call("sparse_allreduce", name, process_set)
    handle = call.engine.submit(SparseAllreduce(tensor, reduction, call.among, call.name))
    return partial(call.engine.wait, handle)


@runs
def allgather(
    tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Request[torch.Tensor]:
    """The tensors of the ranks of a set, one after the other along the first dimension, in rank order.

    The gradient of an input is the average, over the ranks, of their gradients for its rows (Horovod's choice: the
    derivative of the sum of all losses would be `size` times as much). Backward is itself a collective, which all ranks
    of the set must run, and differentiable in turn.

    Args:
        tensor: dense, of at least one dimension, of any strides and of the dtypes in
            `worker_runtime.collectives.dtypes`. The first dimension may differ between ranks, and be zero; the others
            must not.
        name: by which the ranks' calls find each other and messages call it; without one, calls are counted.
        process_set: the ranks that take part.

    Returns:
        A new tensor of the same dtype, equal on all ranks of the set.

    Raises:
        ValueError: a wrong argument, also a tensor without dimensions, or a name that is in flight; nothing was sent.
        HorovodInternalError: the ranks do not agree on dtype, shape or device; one of them has joined; the operation
            failed; or Horovod has not been initialized.
    """
    return Request((tensor,), name, process_set, None, take_first)


@runs
def grouped_allgather(
    tensors: Sequence[torch.Tensor], name: str | None = None, process_set: ProcessSet = global_process_set
) -> Request[list[torch.Tensor]]:
    """`allgather` of several tensors as one operation: all of them run, or none.

    Differentiable as `allgather`, by one collective for all tensors.

    Args:
        tensors: at least one, on one device; each as in `allgather`.
        name: of the group.
        process_set: the ranks that take part.

    Returns:
        New tensors, in the order of the call; as a tuple from `synchronize`.

    Raises:
        ValueError: as `allgather`; also tensors on several devices, or none at all.
        HorovodInternalError: as `allgather`.
    """
    return Request(tensors, name, process_set, None, list)


allgather_async = begins(allgather, "allgather_async")
grouped_allgather_async = begins(grouped_allgather, "grouped_allgather_async", tuple)


@runs
def broadcast(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Request[torch.Tensor]:
    """The values of rank `root_rank` in a new tensor on all ranks of a set.

    The gradient of the root's tensor is the average of all ranks' gradients for the result (Horovod's choice: the
    derivative of the sum of all losses would be `size` times as much), that of the others' is zero. Backward is itself
    a collective, which all ranks of the set must run, and differentiable in turn.

    Args:
        tensor: dense, of any shape and strides and of the dtypes in `worker_runtime.collectives.dtypes`; shape and
            dtype are the same on all ranks, and its values count on the root alone. Left alone.
        root_rank: whose values; its rank in the job, also with a process set.
        name: by which the ranks' calls find each other and messages call it; without one, calls are counted.
        process_set: the ranks that take part.

    Returns:
        A new tensor, equal on all ranks of the set.

    Raises:
        ValueError: a wrong argument, also a root that is not in the set, or a name that is in flight; nothing was sent.
            In place, also when elements of `tensor` share their memory, as after `expand`.
        HorovodInternalError: the ranks do not agree on dtype, shape, root or device; one of them has joined; the
            operation failed; or Horovod has not been initialized.
    """
    return Request((tensor,), name, process_set, root_rank, take_first)


broadcast_ = overwrites(broadcast, "broadcast_")
broadcast_async = begins(broadcast, "broadcast_async")
broadcast_async_ = begins(broadcast_, "broadcast_async_")


@runs
def alltoall(
    tensor: torch.Tensor,
    splits: Splits | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Request[torch.Tensor | tuple[torch.Tensor, torch.Tensor]]:
    """Give each rank of a set some of the rows, and get some from each.

    The gradient of a row goes back to the rank that it came from. Backward is itself a collective, which all ranks of
    the set must run, and differentiable in turn.

    Args:
        tensor: dense, of at least one dimension, of any strides and of the dtypes in
            `worker_runtime.collectives.dtypes`; the dimensions but the first are the same on all ranks.
        splits: how many rows go to each rank of the set, in order: integers, or a tensor of int32 or int64 of one
            dimension. Together they are all rows: Horovod silently drops those left over, here that is an error. None
            gives each rank as many.
        name: by which the ranks' calls find each other and messages call it; without one, calls are counted.
        process_set: the ranks that take part.

    Returns:
        The rows that the ranks gave to this one, in rank order. Where splits were given, and from `synchronize` always,
        also how many each gave: int32 of one dimension, on the device of the splits (the CPU for a list).

    Raises:
        ValueError: a wrong argument, also splits that do not fit, rows that cannot be divided evenly without splits, or
            a name that is in flight; nothing was sent.
        HorovodInternalError: the ranks do not agree on dtype, shape or device; one of them has joined; the operation
            failed; or Horovod has not been initialized.
    """
    finish = take_first if splits is None else tuple
    return Request((tensor,), name, process_set, splits, finish)


alltoall_async = begins(alltoall, "alltoall_async", tuple)


@runs
def reducescatter(  # noqa: PLR0917 - Horovod's signature
    tensor: torch.Tensor,
    name: str | None = None,
    compression: Compressor = Compression.none,
    op: int = Reduction.AVERAGE,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Request[torch.Tensor]:
    """Combine tensors over the ranks of a set, of which each rank gets its part of the rows.

    The gradient of the input is the concatenation of the ranks' gradients for their parts, times both factors, and
    times the size of the set where the op is Sum (Horovod's choice: the derivative of the sum of all losses would be
    `size` times less, for Sum and for Average). Backward is itself a collective, which all ranks of the set must run,
    and differentiable in turn.

    Args:
        tensor: dense, of at least one dimension, of the same shape and dtype on all ranks, of any strides and of the
            dtypes in `worker_runtime.collectives.dtypes`; left alone.
        name: by which the ranks' calls find each other and messages call it; without one, calls are counted.
        compression: how the tensor is made smaller on its way; gradients pass through it too.
        op: Average or Sum; of integers as in `allreduce`.
        process_set: the ranks that take part.
        prescale_factor: multiplies before; integers in float64, truncated toward zero.
        postscale_factor: multiplies after, likewise.

    Returns:
        This rank's rows, in a new tensor: where they cannot be divided evenly, the first ranks have one more each.

    Raises:
        ValueError: a wrong argument, also a tensor without dimensions, or a name that is in flight; nothing was sent.
        HorovodInternalError: the op is another one; the ranks do not agree on dtype, shape, op, factors or device; one
            of them has joined; the operation failed; or Horovod has not been initialized.
    """
    how = choose_for_scatter(op, prescale_factor, postscale_factor)
    arrays = _choose_arrays("reducescatter", compression)
    return Request((tensor,), name, process_set, how, take_first, arrays)


@begins
def reducescatter_async(  # noqa: PLR0917 - Horovod's signature
    tensor: torch.Tensor,
    name: str | None = None,
    op: int = Reduction.AVERAGE,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Request[torch.Tensor]:
    """Begin a `reducescatter`; not differentiable.

    Args:
        tensor: as in `reducescatter`, and so are the others.
        name: of the call.
        op: Average or Sum.
        process_set: the ranks that take part.
        prescale_factor: multiplies before.
        postscale_factor: multiplies after.

    Returns:
        A handle for `poll` and `synchronize`, which gives this rank's rows. Until then `tensor` must be left alone.

    Raises:
        ValueError: as `reducescatter`.
        HorovodInternalError: the op is another one, Horovod has not been initialized, or its group has failed.
    """
    how = choose_for_scatter(op, prescale_factor, postscale_factor)
    return Request((tensor,), name, process_set, how, take_first)


@runs
def grouped_reducescatter(  # noqa: PLR0917 - Horovod's signature
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    compression: Compressor = Compression.none,
    op: int = Reduction.AVERAGE,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Request[list[torch.Tensor]]:
    """`reducescatter` of several tensors as one operation: all of them run, or none.

    Differentiable as `reducescatter`, by one collective for all tensors.

    Args:
        tensors: at least one, on one device; each as in `reducescatter`.
        name: of the group.
        compression: of each tensor by itself.
        op: for all, and so are the others.
        process_set: the ranks that take part.
        prescale_factor: for all.
        postscale_factor: for all.

    Returns:
        This rank's rows of each, in the order of the call.

    Raises:
        ValueError: as `reducescatter`; also tensors on several devices, or none at all.
        HorovodInternalError: as `reducescatter`.
    """
    how = choose_for_scatter(op, prescale_factor, postscale_factor)
    return Request(tensors, name, process_set, how, list, _choose_arrays("grouped_reducescatter", compression))


@begins
def grouped_reducescatter_async(  # noqa: PLR0917 - Horovod's signature
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    op: int = Reduction.AVERAGE,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Request[tuple[torch.Tensor, ...]]:
    """Begin a `grouped_reducescatter`; not differentiable.

    Args:
        tensors: as in `grouped_reducescatter`, and so are the others.
        name: of the group.
        op: Average or Sum.
        process_set: the ranks that take part.
        prescale_factor: multiplies before.
        postscale_factor: multiplies after.

    Returns:
        A handle for `poll` and `synchronize`, which gives a tuple of this rank's rows of each. Until then the given
        tensors must be left alone.

    Raises:
        ValueError: as `grouped_reducescatter`.
        HorovodInternalError: as `reducescatter_async`.
    """
    how = choose_for_scatter(op, prescale_factor, postscale_factor)
    return Request(tensors, name, process_set, how, tuple)
