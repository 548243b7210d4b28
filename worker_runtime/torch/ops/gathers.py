"""Allgather and its variants under Horovod's names and signatures."""

from collections.abc import Sequence

import torch

from worker_runtime.api.calls import begin_call
from worker_runtime.api.giving_up import gives_up
from worker_runtime.api.process_set import ProcessSet, global_process_set
from worker_runtime.collectives import Allgather
from worker_runtime.collectives.allgather import Gathered
from worker_runtime.collectives.untraced import untraced
from worker_runtime.torch.arguments import check_tensor, read_tensors
from worker_runtime.torch.autograd.horovod import HorovodAllgather, HorovodGroupedAllgather
from worker_runtime.torch.graphs import run_in_graph


@gives_up("allgather")
def allgather(
    tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
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
    check_tensor("allgather", tensor)
    if torch.compiler.is_compiling():
        return run_in_graph("allgather", tensor, name, process_set)
    if tensor.requires_grad and torch.is_grad_enabled():
        result: torch.Tensor = HorovodAllgather.apply(tensor, name, process_set)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        return result
    call = begin_call("allgather", name, process_set)
    (gathered,) = call.executor.run(Allgather((tensor,), call.among, call.name))
    return gathered.tensor


@untraced
@gives_up("allgather")
def allgather_async(tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set) -> int:
    """Begin an `allgather`; not differentiable.

    Args:
        tensor: as in `allgather`.
        name: of the call, as in `allgather`.
        process_set: the ranks that take part.

    Returns:
        A handle for `poll` and `synchronize`, which gives the new tensor. Until then `tensor` must be left alone.

    Raises:
        ValueError: as `allgather`.
        HorovodInternalError: Horovod has not been initialized, or its group has failed.
    """
    call = begin_call("allgather", name, process_set)
    executor = call.executor
    return executor.handle_table.add(executor.submit(Allgather((tensor,), call.among, call.name)), _take_tensor)


@untraced
@gives_up("grouped_allgather")
def grouped_allgather(
    tensors: Sequence[torch.Tensor], name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[torch.Tensor]:
    """`allgather` of several tensors as one operation: all of them run, or none.

    Differentiable as `allgather`, by one collective for all tensors.

    Args:
        tensors: at least one, on one device; each as in `allgather`.
        name: of the group.
        process_set: the ranks that take part.

    Returns:
        New tensors, in the order of the call.

    Raises:
        ValueError: as `allgather`; also tensors on several devices, or none at all.
        HorovodInternalError: as `allgather`.
    """
    given = read_tensors("grouped_allgather", tensors)
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in given):
        return list(HorovodGroupedAllgather.apply(name, process_set, *given))  # type: ignore[no-untyped-call]  # torch leaves it untyped
    call = begin_call("grouped_allgather", name, process_set)
    return [gathered.tensor for gathered in call.executor.run(Allgather(given, call.among, call.name))]


@untraced
@gives_up("grouped_allgather")
def grouped_allgather_async(
    tensors: Sequence[torch.Tensor], name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Begin a `grouped_allgather`; not differentiable.

    Args:
        tensors: as in `grouped_allgather`.
        name: of the group.
        process_set: the ranks that take part.

    Returns:
        A handle for `poll` and `synchronize`, which gives a tuple of new tensors. Until then those of the call must be
        left alone.

    Raises:
        ValueError: as `grouped_allgather`.
        HorovodInternalError: as `allgather_async`.
    """
    given = read_tensors("grouped_allgather", tensors)
    call = begin_call("grouped_allgather", name, process_set)
    executor = call.executor
    return executor.handle_table.add(executor.submit(Allgather(given, call.among, call.name)), _take_tensors)


def _take_tensor(gathered: list[Gathered]) -> torch.Tensor:
    return gathered[0].tensor


def _take_tensors(gathered: list[Gathered]) -> tuple[torch.Tensor, ...]:
    return tuple(each.tensor for each in gathered)
