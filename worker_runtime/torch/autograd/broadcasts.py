"""The gradient of broadcast.

The gradient of the root's tensor is the average of all ranks' gradients for the result, as Horovod has it (see
`gathers` for what that means); the other ranks' values were not used, so that their gradients are zeros.
"""

from typing import Any

import torch
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from worker_runtime.calls import Call, begin_call, make_allreduce
from worker_runtime.collectives import AVERAGE, Broadcast
from worker_runtime.process_set import ProcessSet


class HorovodBroadcast(Function):
    """Differentiable broadcast."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401 - torch gives its class no type
        tensor: torch.Tensor,
        root_rank: int,
        name: str | None,
        process_set: ProcessSet,
    ) -> torch.Tensor:
        """Copy the root's values into a new tensor."""
        call = begin_call("broadcast", name, process_set)
        ctx.call, ctx.root = call, root_rank
        (result,) = call.executor.run(Broadcast((tensor,), root_rank, call.among, call.name))
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:  # noqa: ANN401 - as above
        """Average on the root, zeros elsewhere."""
        call: Call = ctx.call.derive("backward")
        (averaged,) = call.executor.run(make_allreduce(call, (gradient,), AVERAGE))
        return averaged if call.among.rank == ctx.root else torch.zeros_like(averaged), None, None, None
