"""Allreduce and its variants under Horovod's names and signatures.

Long because there are eight of them, and each explains its arguments.
"""

from collections.abc import Sequence
from operator import itemgetter

import torch
from torch.autograd.graph import increment_version

from worker_runtime.api.calls import begin_call, make_allreduce
from worker_runtime.api.giving_up import gives_up
from worker_runtime.api.process_set import ProcessSet, global_process_set
from worker_runtime.api.reductions import choose_reduction
from worker_runtime.collectives import Combination
from worker_runtime.collectives.untraced import untraced
from worker_runtime.torch.arguments import check_tensor, read_tensors
from worker_runtime.torch.autograd.groups import reduce_group
from worker_runtime.torch.autograd.horovod import HorovodAllreduce
from worker_runtime.torch.compression import Compression, Compressor, compress
from worker_runtime.torch.graphs import run_in_graph

_take_first = itemgetter(0)


@gives_up("allreduce")
def allreduce(  # noqa: PLR0917 - Horovod's signature
    tensor: torch.Tensor,
    average: bool | None = None,  # noqa: FBT001 - Horovod's signature
    name: str | None = None,
    compression: Compressor = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
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
    how = Combination(choose_reduction(op, average), prescale_factor, postscale_factor)
    check_tensor("allreduce", tensor)
    compressed, context = compress(compression, tensor)
    if torch.compiler.is_compiling():
        result = run_in_graph("allreduce", compressed, name, process_set, how)
    elif compressed.requires_grad and torch.is_grad_enabled():
        result = HorovodAllreduce.apply(compressed, None, name, *how, process_set)  # type: ignore[no-untyped-call]  # torch leaves it untyped
    else:
        call = begin_call("allreduce", name, process_set)
        (result,) = call.executor.run(make_allreduce(call, (compressed,), how))
    return result if compression is Compression.none else compression.decompress(result, context)


@untraced
@gives_up("allreduce")
def allreduce_async(  # noqa: PLR0917 - Horovod's signature
    tensor: torch.Tensor,
    average: bool | None = None,  # noqa: FBT001 - Horovod's signature
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Begin an `allreduce`; not differentiable.

    Args:
        tensor: as in `allreduce`, and so are the others.
        average: deprecated.
        name: of the call.
        op: how to combine.
        prescale_factor: multiplies before.
        postscale_factor: multiplies after.
        process_set: the ranks that take part.

    Returns:
        A handle for `poll` and `synchronize`, which gives the new tensor. Until then `tensor` must be left alone.

    Raises:
        ValueError: as `allreduce`.
        HorovodInternalError: Horovod has not been initialized, or its group has failed.
    """
    how = Combination(choose_reduction(op, average), prescale_factor, postscale_factor)
    call = begin_call("allreduce", name, process_set)
    executor = call.executor
    return executor.handle_table.add(executor.submit(make_allreduce(call, (tensor,), how)), _take_first)


@untraced
@gives_up("allreduce")
def allreduce_(  # noqa: PLR0917 - Horovod's signature
    tensor: torch.Tensor,
    average: bool | None = None,  # noqa: FBT001 - Horovod's signature
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """`allreduce` in place: the result replaces the values of `tensor`, which is returned; not differentiable.

    Autograd takes it for the change that it is: a backward pass that needs the earlier values is an error.

    Args:
        tensor: as in `allreduce`, and so are the others; its values are replaced.
        average: deprecated.
        name: of the call.
        op: how to combine.
        prescale_factor: multiplies before.
        postscale_factor: multiplies after.
        process_set: the ranks that take part.

    Raises:
        ValueError: as `allreduce`; also when elements of `tensor` share their memory, as after `expand`.
        HorovodInternalError: as `allreduce`.
    """
    how = Combination(choose_reduction(op, average), prescale_factor, postscale_factor)
    call = begin_call("allreduce", name, process_set)
    targets = (tensor,)
    operation = make_allreduce(call, targets, how, targets)
    increment_version(targets)
    call.executor.run(operation)
    return tensor


@untraced
@gives_up("allreduce")
def allreduce_async_(  # noqa: PLR0917 - Horovod's signature
    tensor: torch.Tensor,
    average: bool | None = None,  # noqa: FBT001 - Horovod's signature
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Begin an `allreduce_`; not differentiable.

    Args:
        tensor: as in `allreduce_`, and so are the others.
        average: deprecated.
        name: of the call.
        op: how to combine.
        prescale_factor: multiplies before.
        postscale_factor: multiplies after.
        process_set: the ranks that take part.

    Returns:
        A handle for `poll` and `synchronize`, which gives `tensor`. Until then it must be left alone.

    Raises:
        ValueError: as `allreduce_`.
        HorovodInternalError: as `allreduce_async`.
    """
    how = Combination(choose_reduction(op, average), prescale_factor, postscale_factor)
    call = begin_call("allreduce", name, process_set)
    executor, targets = call.executor, (tensor,)
    operation = make_allreduce(call, targets, how, targets)
    increment_version(targets)
    return executor.handle_table.add(executor.submit(operation), _take_first)


@untraced
@gives_up("grouped_allreduce")
def grouped_allreduce(  # noqa: PLR0917 - Horovod's signature
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,  # noqa: FBT001 - Horovod's signature
    name: str | None = None,
    compression: Compressor = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[torch.Tensor]:
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
    reduction = choose_reduction(op, average)
    pairs = [compress(compression, tensor) for tensor in read_tensors("grouped_allreduce", tensors)]
    compressed = [tensor for tensor, _ in pairs]
    how = Combination(reduction, prescale_factor, postscale_factor)
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in compressed):
        results = reduce_group(compressed, name, how, process_set)
    else:
        call = begin_call("grouped_allreduce", name, process_set)
        results = call.executor.run(make_allreduce(call, compressed, how))
    return [compression.decompress(result, context) for result, (_, context) in zip(results, pairs, strict=True)]


@untraced
@gives_up("grouped_allreduce")
def grouped_allreduce_async(  # noqa: PLR0917 - Horovod's signature
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,  # noqa: FBT001 - Horovod's signature
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Begin a `grouped_allreduce`; not differentiable.

    Args:
        tensors: as in `grouped_allreduce`, and so are the others.
        average: deprecated.
        name: of the group.
        op: how to combine.
        prescale_factor: multiplies before.
        postscale_factor: multiplies after.
        process_set: the ranks that take part.

    Returns:
        A handle for `poll` and `synchronize`, which gives a tuple of new tensors. Until then those of the call must be
        left alone.

    Raises:
        ValueError: as `grouped_allreduce`.
        HorovodInternalError: as `allreduce_async`.
    """
    how = Combination(choose_reduction(op, average), prescale_factor, postscale_factor)
    given = read_tensors("grouped_allreduce", tensors)
    call = begin_call("grouped_allreduce", name, process_set)
    executor = call.executor
    return executor.handle_table.add(executor.submit(make_allreduce(call, given, how)), tuple)


@untraced
@gives_up("grouped_allreduce")
def grouped_allreduce_(  # noqa: PLR0917 - Horovod's signature
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,  # noqa: FBT001 - Horovod's signature
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[torch.Tensor]:
    """`grouped_allreduce` in place: returns the tensors that were given, with new values; not differentiable.

    Autograd takes note, as with `allreduce_`.

    Args:
        tensors: as in `grouped_allreduce`, and so are the others; their values are replaced.
        average: deprecated.
        name: of the group.
        op: how to combine.
        prescale_factor: multiplies before.
        postscale_factor: multiplies after.
        process_set: the ranks that take part.

    Raises:
        ValueError: as `grouped_allreduce`; also when elements of a tensor share their memory, as after `expand`.
        HorovodInternalError: as `allreduce`.
    """
    how = Combination(choose_reduction(op, average), prescale_factor, postscale_factor)
    targets = read_tensors("grouped_allreduce", tensors)
    call = begin_call("grouped_allreduce", name, process_set)
    operation = make_allreduce(call, targets, how, targets)
    increment_version(targets)
    return call.executor.run(operation)


@untraced
@gives_up("grouped_allreduce")
def grouped_allreduce_async_(  # noqa: PLR0917 - Horovod's signature
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,  # noqa: FBT001 - Horovod's signature
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Begin a `grouped_allreduce_`; not differentiable.

    Args:
        tensors: as in `grouped_allreduce_`, and so are the others.
        average: deprecated.
        name: of the group.
        op: how to combine.
        prescale_factor: multiplies before.
        postscale_factor: multiplies after.
        process_set: the ranks that take part.

    Returns:
        A handle for `poll` and `synchronize`, which gives a tuple of the tensors that were given. Until then they must
        be left alone.

    Raises:
        ValueError: as `grouped_allreduce_`.
        HorovodInternalError: as `allreduce_async`.
    """
    how = Combination(choose_reduction(op, average), prescale_factor, postscale_factor)
    targets = read_tensors("grouped_allreduce", tensors)
    call = begin_call("grouped_allreduce", name, process_set)
    executor = call.executor
    operation = make_allreduce(call, targets, how, targets)
    increment_version(targets)
    return executor.handle_table.add(executor.submit(operation), tuple)
