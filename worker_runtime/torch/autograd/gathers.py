"""The gradients of allgather.

The gradient of this rank's rows is the average, over the ranks of the set, of their gradients for these rows. That is
Horovod's choice: a loss that every rank computes from all rows then has the gradient of one such loss, not of `size`
equal ones. (The derivative of the sum of all ranks' losses would be `size` times as much.)
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch.autograd import Function

from worker_runtime.api.calls import Call, begin_call
from worker_runtime.api.process_set import ProcessSet
from worker_runtime.collectives import AVERAGE, Allgather
from worker_runtime.collectives.allgather import find_own_rows
from worker_runtime.torch.autograd.allreduces import reduce


class HorovodAllgather(Function):
    """Differentiable allgather of one tensor."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, name: str | None, process_set: ProcessSet) -> torch.Tensor:  # noqa: ANN401 - torch gives its class no type
        """Gather."""
        (result,) = _gather(ctx, begin_call("allgather", name, process_set), [tensor])
        return result

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, None, None]:  # noqa: ANN401 - as above
        """Average, and take this rank's rows."""
        (result,) = _differentiate(ctx, [gradient])
        return result, None, None


class HorovodGroupedAllgather(Function):
    """Differentiable allgather of several tensors at once."""

    @staticmethod
    def forward(  # its arguments are Horovod's
        ctx: Any,  # noqa: ANN401 - as above
        name: str | None,
        process_set: ProcessSet,
        *tensors: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        """Gather."""
        return tuple(_gather(ctx, begin_call("grouped_allgather", name, process_set), tensors))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # noqa: ANN401 - as above
        """Average, and take this rank's rows of each."""
        return None, None, *_differentiate(ctx, gradients)


class Gather(Function):
    """The same for a call that was begun: what gradients are made of."""

    @staticmethod
    def forward(ctx: Any, call: Call, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:  # noqa: ANN401 - as above
        """Gather."""
        return tuple(_gather(ctx, call, tensors))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # noqa: ANN401 - as above
        """Average, and take this rank's rows of each."""
        return None, *_differentiate(ctx, gradients)


def gather(call: Call, tensors: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
    """Gather tensors, differentiably."""
    results: tuple[torch.Tensor, ...] = Gather.apply(call, *tensors)  # type: ignore[no-untyped-call]  # torch leaves it untyped
    return results


def _gather(ctx: Any, call: Call, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:  # noqa: ANN401 - as above
    gathered = call.executor.run(Allgather(tensors, call.among, call.name))
    ctx.call = call
    ctx.bounds = [find_own_rows(each, call.among) for each in gathered]
    return [each.tensor for each in gathered]


def _differentiate(ctx: Any, gradients: Sequence[torch.Tensor]) -> list[torch.Tensor | None]:  # noqa: ANN401 - as above
    call: Call = ctx.call.derive("backward")
    chosen = [index for index, each in enumerate(gradients) if each.is_floating_point() or each.is_complex()]
    averaged = reduce(call, AVERAGE, [gradients[index] for index in chosen])
    placed: list[torch.Tensor | None] = [None] * len(gradients)
    for index, gradient in zip(chosen, averaged, strict=True):
        begin, end = ctx.bounds[index]
        placed[index] = gradient[begin:end]
    return placed
