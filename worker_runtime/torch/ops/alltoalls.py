"""Alltoall under Horovod's names and signatures."""

import torch

from worker_runtime.api.calls import begin_call
from worker_runtime.api.giving_up import gives_up
from worker_runtime.api.process_set import ProcessSet, global_process_set
from worker_runtime.collectives import Alltoall
from worker_runtime.collectives.alltoall import Exchanged, Splits
from worker_runtime.collectives.untraced import untraced
from worker_runtime.torch.arguments import check_tensor
from worker_runtime.torch.autograd.horovod import HorovodAlltoall


@untraced
@gives_up("alltoall")
def alltoall(
    tensor: torch.Tensor,
    splits: Splits | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
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
        The rows that the ranks gave to this one, in rank order. Where splits were given, also how many each gave: int32
        of one dimension, on the device of the splits (the CPU for a list).

    Raises:
        ValueError: a wrong argument, also splits that do not fit, rows that cannot be divided evenly without splits, or
            a name that is in flight; nothing was sent.
        HorovodInternalError: the ranks do not agree on dtype, shape or device; one of them has joined; the operation
            failed; or Horovod has not been initialized.
    """
    check_tensor("alltoall", tensor)
    if tensor.requires_grad and torch.is_grad_enabled():
        received, received_splits = HorovodAlltoall.apply(tensor, splits, name, process_set)  # type: ignore[no-untyped-call]  # torch leaves it untyped
    else:
        call = begin_call("alltoall", name, process_set)
        received, received_splits = call.executor.run(Alltoall(tensor, splits, call.among, call.name))
    return received if splits is None else (received, received_splits)


@untraced
@gives_up("alltoall")
def alltoall_async(
    tensor: torch.Tensor,
    splits: Splits | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Begin an `alltoall`; not differentiable.

    Args:
        tensor: as in `alltoall`.
        splits: how many rows go to each rank, as in `alltoall`.
        name: of the call.
        process_set: the ranks that take part.

    Returns:
        A handle for `poll` and `synchronize`, which gives the rows and the received splits, also where none were given.
        Until then `tensor` must be left alone.

    Raises:
        ValueError: as `alltoall`.
        HorovodInternalError: Horovod has not been initialized, or its group has failed.
    """
    call = begin_call("alltoall", name, process_set)
    executor = call.executor
    return executor.handle_table.add(executor.submit(Alltoall(tensor, splits, call.among, call.name)), _take_pair)


def _take_pair(exchanged: Exchanged) -> tuple[torch.Tensor, torch.Tensor]:
    return exchanged.tensor, exchanged.received_splits
