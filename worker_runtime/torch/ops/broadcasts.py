"""Broadcast and its variants under Horovod's names and signatures."""

from operator import itemgetter

import torch
from torch.autograd.graph import increment_version

from worker_runtime.api.calls import begin_call
from worker_runtime.api.giving_up import gives_up
from worker_runtime.api.process_set import ProcessSet, global_process_set
from worker_runtime.collectives import Broadcast
from worker_runtime.collectives.untraced import untraced
from worker_runtime.torch.arguments import check_tensor
from worker_runtime.torch.autograd.horovod import HorovodBroadcast
from worker_runtime.torch.graphs import run_in_graph

_take_first = itemgetter(0)


@gives_up("broadcast")
def broadcast(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
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
        HorovodInternalError: the ranks do not agree on dtype, shape, root or device; one of them has joined; the
            operation failed; or Horovod has not been initialized.
    """
    check_tensor("broadcast", tensor)
    if torch.compiler.is_compiling():
        return run_in_graph("broadcast", tensor, name, process_set, (root_rank, 1.0, 1.0))
    if tensor.requires_grad and torch.is_grad_enabled():
        result: torch.Tensor = HorovodBroadcast.apply(tensor, root_rank, name, process_set)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        return result
    call = begin_call("broadcast", name, process_set)
    (copied,) = call.executor.run(Broadcast((tensor,), root_rank, call.among, call.name))
    return copied


@untraced
@gives_up("broadcast")
def broadcast_async(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Begin a `broadcast`; not differentiable.

    Args:
        tensor: as in `broadcast`.
        root_rank: whose values; its rank in the job, also with a process set.
        name: of the call, as in `broadcast`.
        process_set: the ranks that take part.

    Returns:
        A handle for `poll` and `synchronize`, which gives the new tensor. Until then `tensor` must be left alone.

    Raises:
        ValueError: as `broadcast`.
        HorovodInternalError: Horovod has not been initialized, or its group has failed.
    """
    call = begin_call("broadcast", name, process_set)
    executor = call.executor
    return executor.handle_table.add(
        executor.submit(Broadcast((tensor,), root_rank, call.among, call.name)), _take_first
    )


@untraced
@gives_up("broadcast")
def broadcast_(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """`broadcast` in place: overwrites `tensor` on all ranks but the root, and returns it; not differentiable.

    Autograd takes it for a change, on the root too: a backward pass that needs the earlier values is an error.

    Args:
        tensor: as in `broadcast`; its values are replaced on all ranks but the root.
        root_rank: whose values; its rank in the job, also with a process set.
        name: of the call, as in `broadcast`.
        process_set: the ranks that take part.

    Raises:
        ValueError: as `broadcast`; also when elements of `tensor` share their memory, as after `expand`.
        HorovodInternalError: as `broadcast`.
    """
    call = begin_call("broadcast", name, process_set)
    operation = Broadcast((tensor,), root_rank, call.among, call.name, (tensor,))
    increment_version(tensor)
    call.executor.run(operation)
    return tensor


@untraced
@gives_up("broadcast")
def broadcast_async_(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Begin a `broadcast_`; not differentiable.

    Args:
        tensor: as in `broadcast_`.
        root_rank: whose values; its rank in the job, also with a process set.
        name: of the call, as in `broadcast`.
        process_set: the ranks that take part.

    Returns:
        A handle for `poll` and `synchronize`, which gives `tensor`. Until then it must be left alone.

    Raises:
        ValueError: as `broadcast_`.
        HorovodInternalError: as `broadcast_async`.
    """
    call = begin_call("broadcast", name, process_set)
    executor = call.executor
    operation = Broadcast((tensor,), root_rank, call.among, call.name, (tensor,))
    increment_version(tensor)
    return executor.handle_table.add(executor.submit(operation), _take_first)
