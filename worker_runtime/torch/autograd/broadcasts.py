"""The gradient of broadcast.

The gradient of the root's tensor is the average of all ranks' gradients for the result, as Horovod has it (see
`gathers` for what that means); the other ranks' values were not used, so that their gradients are zeros.
"""

from typing import Any

import torch
from torch.autograd import Function

from worker_runtime.api.calls import Call, begin_call
from worker_runtime.api.process_set import ProcessSet
from worker_runtime.collectives import AVERAGE, Broadcast
from worker_runtime.torch.autograd.allreduces import reduce


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
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:  # noqa: ANN401 - as above
        """Average on the root, zeros elsewhere."""
        call: Call = ctx.call.derive("backward")
        (averaged,) = reduce(call, AVERAGE, (gradient,))
        if call.among.rank != ctx.root:  # zeros that still come from it: all ranks differentiate it again, or none
            averaged = averaged.masked_fill(averaged.new_ones((), dtype=torch.bool), 0)
        return averaged, None, None, None
