"""The gradients of reducescatter.

The gradient of the input is the concatenation of all ranks' gradients for their parts, times both factors, and times
the size of the set where the op is Sum. That is Horovod's choice, and the counterpart of its allgather: the derivative
of the sum of all ranks' losses would be `size` times less, for Sum and for Average.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch.autograd import Function

from worker_runtime.api.calls import Call, begin_call
from worker_runtime.api.process_set import ProcessSet
from worker_runtime.collectives import Combination, Reducescatter
from worker_runtime.coordination.ordering.questions import Reduction
from worker_runtime.torch.autograd.gathers import gather


class HorovodReducescatter(Function):
    """Differentiable reducescatter of one tensor."""

    @staticmethod
    def forward(  # noqa: PLR0917 - Horovod's signature
        ctx: Any,  # noqa: ANN401 - torch gives its class no type
        tensor: torch.Tensor,
        name: str | None,
        op: int,
        process_set: ProcessSet,
        prescale_factor: float,
        postscale_factor: float,
    ) -> torch.Tensor:
        """Combine and cut."""
        how = Combination(Reduction(op), prescale_factor, postscale_factor)
        (result,) = _reduce(ctx, begin_call("reducescatter", name, process_set), [tensor], how)
        return result

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # noqa: ANN401 - as above
        """Gather the parts' gradients."""
        (result,) = _differentiate(ctx, [gradient])
        return result, None, None, None, None, None


class HorovodGroupedReducescatter(Function):
    """Differentiable reducescatter of several tensors at once."""

    @staticmethod
    def forward(  # noqa: PLR0917 - Horovod's signature
        ctx: Any,  # noqa: ANN401 - as above
        name: str | None,
        op: int,
        process_set: ProcessSet,
        prescale_factor: float,
        postscale_factor: float,
        *tensors: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        """Combine and cut."""
        how = Combination(Reduction(op), prescale_factor, postscale_factor)
        return tuple(_reduce(ctx, begin_call("grouped_reducescatter", name, process_set), tensors, how))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # noqa: ANN401 - as above
        """Gather the parts' gradients."""
        return None, None, None, None, None, *_differentiate(ctx, gradients)


def _reduce(ctx: Any, call: Call, tensors: Sequence[torch.Tensor], how: Combination) -> list[torch.Tensor]:  # noqa: ANN401 - as above
    ctx.call = call
    ctx.factor = how.prescale * how.postscale * (call.among.size if how.reduction is Reduction.SUM else 1)
    return call.executor.run(Reducescatter(tensors, how, call.among, call.name))


def _differentiate(ctx: Any, gradients: Sequence[torch.Tensor]) -> list[torch.Tensor | None]:  # noqa: ANN401 - as above
    call: Call = ctx.call.derive("backward")
    chosen = [index for index, each in enumerate(gradients) if each.is_floating_point() or each.is_complex()]
    gathered = gather(call, [gradients[index] for index in chosen])
    placed: list[torch.Tensor | None] = [None] * len(gradients)
    for index, gradient in zip(chosen, gathered, strict=True):
        placed[index] = gradient if ctx.factor == 1.0 else gradient * ctx.factor
    return placed
