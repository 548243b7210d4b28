"""Reducescatter and its variants under Horovod's names and signatures, whose order differs from allreduce's."""

from collections.abc import Sequence
from operator import itemgetter

import torch

from worker_runtime.api.calls import begin_call
from worker_runtime.api.giving_up import gives_up
from worker_runtime.api.process_set import ProcessSet, global_process_set
from worker_runtime.api.reductions import Average, choose_scatter_reduction
from worker_runtime.collectives import Combination, Reducescatter
from worker_runtime.collectives.untraced import untraced
from worker_runtime.torch.arguments import check_tensor, read_tensors
from worker_runtime.torch.autograd.horovod import HorovodGroupedReducescatter, HorovodReducescatter
from worker_runtime.torch.compression import Compression, Compressor, compress
from worker_runtime.torch.graphs import run_in_graph

_take_first = itemgetter(0)


@gives_up("reducescatter")
def reducescatter(  # noqa: PLR0917 - Horovod's signature
    tensor: torch.Tensor,
    name: str | None = None,
    compression: Compressor = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> torch.Tensor:
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
    how = Combination(choose_scatter_reduction(op), prescale_factor, postscale_factor)
    check_tensor("reducescatter", tensor)
    compressed, context = compress(compression, tensor)
    if torch.compiler.is_compiling():
        result = run_in_graph("reducescatter", compressed, name, process_set, how)
    elif compressed.requires_grad and torch.is_grad_enabled():
        result = HorovodReducescatter.apply(  # type: ignore[no-untyped-call]  # torch leaves it untyped
            compressed, name, how.reduction, process_set, prescale_factor, postscale_factor
        )
    else:
        call = begin_call("reducescatter", name, process_set)
        (result,) = call.executor.run(Reducescatter((compressed,), how, call.among, call.name))
    return result if compression is Compression.none else compression.decompress(result, context)


@untraced
@gives_up("reducescatter")
def reducescatter_async(  # noqa: PLR0917 - Horovod's signature
    tensor: torch.Tensor,
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
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
    how = Combination(choose_scatter_reduction(op), prescale_factor, postscale_factor)
    call = begin_call("reducescatter", name, process_set)
    executor = call.executor
    return executor.handle_table.add(executor.submit(Reducescatter((tensor,), how, call.among, call.name)), _take_first)


@untraced
@gives_up("grouped_reducescatter")
def grouped_reducescatter(  # noqa: PLR0917 - Horovod's signature
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    compression: Compressor = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[torch.Tensor]:
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
    reduction = choose_scatter_reduction(op)
    pairs = [compress(compression, tensor) for tensor in read_tensors("grouped_reducescatter", tensors)]
    compressed = [tensor for tensor, _ in pairs]
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in compressed):
        results: Sequence[torch.Tensor] = HorovodGroupedReducescatter.apply(  # type: ignore[no-untyped-call]  # torch leaves it untyped
            name, reduction, process_set, prescale_factor, postscale_factor, *compressed
        )
    else:
        call = begin_call("grouped_reducescatter", name, process_set)
        how = Combination(reduction, prescale_factor, postscale_factor)
        results = call.executor.run(Reducescatter(compressed, how, call.among, call.name))
    return [compression.decompress(result, context) for result, (_, context) in zip(results, pairs, strict=True)]


@untraced
@gives_up("grouped_reducescatter")
def grouped_reducescatter_async(  # noqa: PLR0917 - Horovod's signature
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
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
    how = Combination(choose_scatter_reduction(op), prescale_factor, postscale_factor)
    given = read_tensors("grouped_reducescatter", tensors)
    call = begin_call("grouped_reducescatter", name, process_set)
    executor = call.executor
    return executor.handle_table.add(executor.submit(Reducescatter(given, how, call.among, call.name)), tuple)
