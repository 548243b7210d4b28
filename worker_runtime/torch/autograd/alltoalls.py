"""The gradient of alltoall: each row's gradient goes back to the rank that the row came from."""

from typing import Any

import torch
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from worker_runtime.calls import Call, begin_call
from worker_runtime.collectives import Alltoall
from worker_runtime.collectives.alltoall import Splits
from worker_runtime.process_set import ProcessSet


class HorovodAlltoall(Function):
    """Differentiable alltoall."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401 - torch gives its class no type
        tensor: torch.Tensor,
        splits: Splits | None,
        name: str | None,
        process_set: ProcessSet,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Exchange; the received splits have no gradient."""
        call = begin_call("alltoall", name, process_set)
        received, received_splits = call.executor.run(Alltoall(tensor, splits, call.among, call.name))
        ctx.call, ctx.splits = call, received_splits.tolist()
        ctx.mark_non_differentiable(received_splits)
        return received, received_splits

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor, _: Any) -> tuple[torch.Tensor, None, None, None]:  # noqa: ANN401 - as above
        """Send the rows' gradients back."""
        call: Call = ctx.call.derive("backward")
        returned, _ = call.executor.run(Alltoall(gradient, ctx.splits, call.among, call.name))
        return returned, None, None, None
