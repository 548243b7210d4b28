"""The gradients of the out-of-place collectives, as Horovod defines them.

Their backward is itself a collective, so all ranks must run backward through them in the same order.
"""

from typing import Any

import torch
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from worker_runtime import collectives
from worker_runtime.collectives import AVERAGE, Combination, Reduction
from worker_runtime.runtime import RUNTIME


class DifferentiableAllreduce(Function):
    """The gradient of a sum (average) is the sum (average) of the ranks' gradients, with the same factors."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, how: Combination, name: str | None) -> torch.Tensor:  # noqa: ANN401 - torch gives its class no type
        """Combine."""
        ctx.how, ctx.name = how, name
        return collectives.allreduce_async(RUNTIME.executor, tensor, how, name).wait()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:  # noqa: ANN401 - as above
        """Combine the gradients in the same way.

        Raises:
            NotImplementedError: the gradient of a minimum, maximum or product is not that of any one rank.
        """
        reduction = ctx.how.reduction
        if reduction not in (Reduction.AVERAGE, Reduction.SUM):
            raise NotImplementedError(f"allreduce with op={reduction.name.title()} has no gradient; detach its input")
        return collectives.allreduce_async(RUNTIME.executor, gradient, ctx.how, ctx.name).wait(), None, None


class DifferentiableAllgather(Function):
    """The gradient of this rank's rows is the average of what all ranks have for them."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, name: str | None) -> torch.Tensor:  # noqa: ANN401 - as above
        """Gather."""
        parts = collectives.allgather(RUNTIME.executor, tensor, name)
        ctx.rows = [part.shape[0] for part in parts]
        return torch.cat(parts)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:  # noqa: ANN401 - as above
        """Average, and take this rank's rows."""
        executor = RUNTIME.executor
        averaged = collectives.allreduce_async(executor, gradient, AVERAGE).wait()
        return torch.split(averaged, ctx.rows)[executor.rank], None


class DifferentiableBroadcast(Function):
    """The root's gradient is the average of all ranks'; the others' values were not used."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, root: int, name: str | None) -> torch.Tensor:  # noqa: ANN401 - as above
        """Copy the root's values into a new tensor."""
        ctx.root = root
        copy = tensor.detach().clone()
        return collectives.broadcast_async(RUNTIME.executor, copy, root, name).wait()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:  # noqa: ANN401 - as above
        """Average on the root, zeros elsewhere."""
        executor = RUNTIME.executor
        averaged = collectives.allreduce_async(executor, gradient, AVERAGE).wait()
        return averaged if executor.rank == ctx.root else torch.zeros_like(averaged), None, None
