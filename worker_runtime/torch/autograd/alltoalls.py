"""The gradient of alltoall: each row's gradient goes back to the rank that the row came from."""

from typing import Any

import torch
from torch.autograd import Function

from worker_runtime.api.calls import Call, begin_call
from worker_runtime.api.process_set import ProcessSet
from worker_runtime.collectives import Alltoall
from worker_runtime.collectives.alltoall import Splits


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
        return _exchange(ctx, begin_call("alltoall", name, process_set), splits, tensor)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor, _: Any) -> tuple[torch.Tensor, None, None, None]:  # noqa: ANN401 - as above
        """Send the rows' gradients back."""
        return _return_rows(ctx, gradient), None, None, None


class Exchange(Function):
    """The same for a call that was begun: what gradients are made of."""

    @staticmethod
    def forward(ctx: Any, call: Call, splits: Splits, tensor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:  # noqa: ANN401 - as above
        """Exchange; the received splits have no gradient."""
        return _exchange(ctx, call, splits, tensor)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor, _: Any) -> tuple[None, None, torch.Tensor]:  # noqa: ANN401 - as above
        """Send the rows' gradients back."""
        return None, None, _return_rows(ctx, gradient)


def _exchange(
    ctx: Any,  # noqa: ANN401 - as above
    call: Call,
    splits: Splits | None,
    tensor: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    received, received_splits = call.executor.run(Alltoall(tensor, splits, call.among, call.name))
    ctx.call, ctx.splits = call, received_splits.tolist()
    ctx.mark_non_differentiable(received_splits)
    return received, received_splits


def _return_rows(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # noqa: ANN401 - as above
    returned: torch.Tensor = Exchange.apply(ctx.call.derive("backward"), ctx.splits, gradient)[0]  # type: ignore[no-untyped-call]  # torch leaves it untyped
    return returned
