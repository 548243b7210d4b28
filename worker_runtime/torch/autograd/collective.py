"""The one autograd function of the collectives, over a collective and its adjoint.

A collective is run by a function that gives its results and its adjoint: what makes the gradients of the inputs of
those of the results. The adjoint is a collective too, named after the forward call, so that ranks which run their
backward passes in other orders still meet; it is made of differentiable collectives, so that it has gradients itself.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch.autograd import Function

from worker_runtime.api.calls import Call


class Ran(NamedTuple):
    """A collective that has run.

    results: of the inputs, in their order; more may follow.
    adjoint: of the backward pass' call, the gradients of those results that have some, and `saved`.
    saved: tensors that the adjoint needs.
    """

    results: Sequence[torch.Tensor]
    adjoint: Callable[..., Sequence[torch.Tensor]]
    saved: Sequence[torch.Tensor] = ()


class Collective(Function):
    """Differentiable collective; what Horovod's functions take part of their arguments for."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401 - torch gives its class no type
        call: Call,
        run: Callable[[Call, Sequence[torch.Tensor]], Ran],
        *tensors: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        """Run the collective."""
        return keep(ctx, call, run(call, tensors), tensors, 2)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # noqa: ANN401 - as above
        """Run the adjoint.

        Which tensors take part follows from the dtypes alone, and not from which inputs want a gradient: ranks may
        differ in that.
        """
        # Read only where something was saved: after a first backward pass torch refuses even none.
        saved: Sequence[torch.Tensor] = ctx.saved_tensors if ctx.saves else ()
        found = ctx.adjoint(ctx.call.derive("backward"), [gradients[index] for index in ctx.chosen], saved)
        placed: list[torch.Tensor | None] = [None] * len(ctx.needs_input_grad)
        for index, gradient in zip(ctx.chosen, found, strict=True):
            placed[ctx.first + index] = gradient
        return tuple(placed)


def keep(
    ctx: Any,  # noqa: ANN401 - as above
    call: Call,
    ran: Ran,
    tensors: Sequence[torch.Tensor],
    first: int = 0,
) -> tuple[torch.Tensor, ...]:
    """Note what `Collective.backward` needs.

    Args:
        ctx: of the function.
        call: that has run.
        ran: what it gave.
        tensors: its inputs.
        first: where they begin among the function's arguments.

    Returns:
        The results.
    """
    ctx.call, ctx.first, ctx.adjoint, ctx.saves = call, first, ran.adjoint, bool(ran.saved)
    ctx.chosen = list_differentiable(tensors)
    ctx.save_for_backward(*ran.saved)
    return tuple(ran.results)


def list_differentiable(tensors: Sequence[torch.Tensor]) -> list[int]:
    """Which have gradients by their dtype."""
    return [index for index, tensor in enumerate(tensors) if tensor.is_floating_point() or tensor.is_complex()]


def differentiate(
    call: Call, run: Callable[[Call, Sequence[torch.Tensor]], Ran], tensors: Sequence[torch.Tensor]
) -> Sequence[torch.Tensor]:
    """Run a collective of a call that was begun, differentiably."""
    results: tuple[torch.Tensor, ...] = Collective.apply(call, run, *tensors)  # type: ignore[no-untyped-call]  # torch leaves it untyped
    return results
