"""Collectives on torch tensors under Horovod's names and signatures.

All ranks must call them in the same order with the same shapes and dtypes. Where a tensor requires gradients, the
out-of-place functions are differentiable.
"""

import warnings

import torch

from worker_runtime import collectives
from worker_runtime.collectives import Combination, Reduction
from worker_runtime.errors import NotServedError
from worker_runtime.runtime import RUNTIME
from worker_runtime.torch.autograd import DifferentiableAllgather, DifferentiableAllreduce, DifferentiableBroadcast

Average = Reduction.AVERAGE
Sum = Reduction.SUM
Min = Reduction.MIN
Max = Reduction.MAX
Product = Reduction.PRODUCT


def allreduce(  # noqa: PLR0917 - Horovod's signature
    tensor: torch.Tensor,
    average: bool | None = None,  # noqa: FBT001 - Horovod's signature
    name: str | None = None,
    compression: None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> torch.Tensor:
    """Combine tensors of one shape and dtype over all ranks; the result is a new tensor, the same on all ranks.

    Args:
        tensor: dense CPU tensor of any shape.
        average: deprecated; True for `op=Average`, False for `op=Sum`.
        name: how messages call it.
        compression: not supported yet.
        op: Average (if none is given), Sum, Min, Max or Product.
        prescale_factor: multiplies before.
        postscale_factor: multiplies after.

    Raises:
        ValueError: a wrong argument; nothing was sent.
        HorovodInternalError: the operation failed, or Horovod has not been initialized.
    """
    if compression is not None:
        raise NotServedError("allreduce", "compression")
    how = Combination(choose_reduction(op, average), prescale_factor, postscale_factor)
    result: torch.Tensor = DifferentiableAllreduce.apply(tensor, how, name)  # type: ignore[no-untyped-call]  # torch leaves it untyped
    return result


def allreduce_(  # noqa: PLR0917 - Horovod's signature
    tensor: torch.Tensor,
    average: bool | None = None,  # noqa: FBT001 - Horovod's signature
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> torch.Tensor:
    """`allreduce` in place: the result replaces the values of `tensor`, which is returned."""
    how = Combination(choose_reduction(op, average), prescale_factor, postscale_factor)
    collectives.allreduce_async(RUNTIME.executor, tensor, how, name, into=tensor).wait()
    return tensor


def allgather(tensor: torch.Tensor, name: str | None = None) -> torch.Tensor:
    """The ranks' tensors, one after the other along the first dimension.

    Args:
        tensor: dense CPU tensor; its first dimension may differ between ranks, and be zero, the others must not.
        name: how messages call it.

    Raises:
        ValueError: a wrong argument; nothing was sent.
        HorovodInternalError: the operation failed, or Horovod has not been initialized.
    """
    result: torch.Tensor = DifferentiableAllgather.apply(tensor, name)  # type: ignore[no-untyped-call]  # the same
    return result


def broadcast(tensor: torch.Tensor, root_rank: int, name: str | None = None) -> torch.Tensor:
    """The values of rank `root_rank` in a new tensor on all ranks.

    Args:
        tensor: dense CPU tensor of the same shape and dtype on all ranks.
        root_rank: whose values.
        name: how messages call it.

    Raises:
        ValueError: a wrong argument; nothing was sent.
        HorovodInternalError: the operation failed, or Horovod has not been initialized.
    """
    result: torch.Tensor = DifferentiableBroadcast.apply(tensor, root_rank, name)  # type: ignore[no-untyped-call]  # the same
    return result


def broadcast_(tensor: torch.Tensor, root_rank: int, name: str | None = None) -> torch.Tensor:
    """`broadcast` in place: overwrites `tensor` on all ranks but the root, and returns it."""
    collectives.broadcast_async(RUNTIME.executor, tensor, root_rank, name).wait()
    return tensor


def barrier() -> None:
    """Wait until all ranks have called it."""
    collectives.wait_at_barrier(RUNTIME.executor)


def choose_reduction(op: int | None, average: bool | None = None) -> Reduction:  # noqa: FBT001 - Horovod's argument
    """The reduction that `op`, or the deprecated `average`, asks for.

    Raises:
        ValueError: both are given, or there is no such reduction.
    """
    if average is not None:
        if op is not None:
            raise ValueError("The op parameter supersedes average; give only op")
        warnings.warn("average is deprecated; use op=hvd.Average or op=hvd.Sum", DeprecationWarning, stacklevel=3)
        return Reduction.AVERAGE if average else Reduction.SUM
    if op is None:
        return Reduction.AVERAGE
    try:
        return Reduction(op)
    except ValueError:
        raise ValueError(f"op={op!r} is not supported; it is one of Average, Sum, Min, Max and Product") from None
