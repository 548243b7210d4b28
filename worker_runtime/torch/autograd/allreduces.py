"""The gradients of allreduce.

What is differentiated is the sum of the losses of all ranks of the set: each rank's output depends on every rank's
input, so the gradient of an input comes from all ranks, and the backward pass is a collective too. It is named after
the forward call, so that ranks which run their backward passes in other orders still meet.

With y = postscale * reduce over r of (prescale * x_r), and G = the sum over the ranks of their gradients for y:

    Sum       postscale * prescale * G
    Average   postscale * prescale * G / size
    Min, Max  postscale * prescale * G / t where x_r holds the extreme value, t being how many ranks hold it; else 0
    Product   postscale * prescale * G * the product of prescale * x_s over the other ranks s
    Adasum    the Adasum of the ranks' gradients, as Horovod has it; it is not the derivative

Horovod combines the gradients of Min, Max and Product by minimum, maximum and product, which is no gradient at all.

Gradients are made of the same differentiable collectives, so that they have gradients themselves; those of Product have
none, since the quotient that they are made of has a wrong one where a factor is zero.
"""

from collections.abc import Sequence
from typing import Any, NoReturn

import torch
from torch.autograd import Function

from worker_runtime.api.calls import Call, begin_call, make_allreduce
from worker_runtime.api.process_set import ProcessSet
from worker_runtime.api.reductions import choose_reduction
from worker_runtime.collectives import SUM, Combination
from worker_runtime.coordination.ordering.questions import Reduction

PRODUCT = Combination(Reduction.PRODUCT)
_NONLINEAR = (Reduction.MIN, Reduction.MAX, Reduction.PRODUCT)  # their gradients are made of the inputs


class HorovodAllreduce(Function):
    """Differentiable allreduce of one tensor."""

    @staticmethod
    def forward(  # noqa: PLR0917 - Horovod's signature
        ctx: Any,  # noqa: ANN401 - torch gives its class no type
        tensor: torch.Tensor,
        average: bool | None,  # noqa: FBT001 - Horovod's signature
        name: str | None,
        op: int | None,
        prescale_factor: float,
        postscale_factor: float,
        process_set: ProcessSet,
    ) -> torch.Tensor:
        """Combine."""
        how = Combination(choose_reduction(op, average), prescale_factor, postscale_factor)
        (result,) = _reduce(ctx, begin_call("allreduce", name, process_set), [tensor], how)
        return result

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # noqa: ANN401 - as above
        """As the module's table says; a collective."""
        (result,) = _differentiate(ctx, [gradient])
        return result, None, None, None, None, None, None


class HorovodGroupedAllreduce(Function):
    """Differentiable allreduce of several tensors at once."""

    @staticmethod
    def forward(  # noqa: PLR0917 - Horovod's signature
        ctx: Any,  # noqa: ANN401 - as above
        average: bool | None,  # noqa: FBT001 - Horovod's signature
        name: str | None,
        op: int | None,
        prescale_factor: float,
        postscale_factor: float,
        process_set: ProcessSet,
        *tensors: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        """Combine."""
        how = Combination(choose_reduction(op, average), prescale_factor, postscale_factor)
        return tuple(_reduce(ctx, begin_call("grouped_allreduce", name, process_set), tensors, how))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # noqa: ANN401 - as above
        """As the module's table says; one collective for all (two for Product)."""
        return None, None, None, None, None, None, *_differentiate(ctx, gradients)


class GroupMember(Function):
    """One tensor of a grouped allreduce that has run: its gradient is a collective of its own.

    All tensors of the group are inputs, so that the gradient is asked for on every rank, whichever of them want one.
    """

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401 - as above
        call: Call,
        how: Combination,
        index: int,
        result: torch.Tensor,
        *tensors: torch.Tensor,
    ) -> torch.Tensor:
        """Give the result, which is that of the tensor of this index."""
        ctx.count, ctx.index = len(tensors), index
        ctx.mark_dirty(result)  # which is itself the output
        _keep(ctx, call, how, tensors[index : index + 1], [result])
        return result

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # noqa: ANN401 - as above
        """As the module's table says."""
        gradients: list[torch.Tensor | None] = [None] * ctx.count
        (gradients[ctx.index],) = _differentiate(ctx, [gradient])
        return None, None, None, None, *gradients


class Reduce(Function):
    """The same for a call that was begun: what gradients are made of."""

    @staticmethod
    def forward(ctx: Any, call: Call, how: Combination, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:  # noqa: ANN401 - as above
        """Combine."""
        return tuple(_reduce(ctx, call, tensors, how))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # noqa: ANN401 - as above
        """As the module's table says."""
        return None, None, *_differentiate(ctx, gradients)


class MultiplyByOthers(Function):
    """The gradients of a product, which have none."""

    @staticmethod
    def forward(ctx: Any, call: Call, how: Combination, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:  # noqa: ANN401 - as above
        """Multiply the gradients, the first half of the tensors, by the product of the other ranks' inputs."""
        del ctx
        half = len(tensors) // 2
        return tuple(_multiply_by_others(call, how, tensors[:half], tensors[half:]))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> NoReturn:  # noqa: ANN401 - as above
        """Refuse.

        Raises:
            RuntimeError: always.
        """
        del ctx, gradients
        raise RuntimeError("an allreduce with op=Product can be differentiated once only")


def reduce_group(
    tensors: Sequence[torch.Tensor], name: str | None, how: Combination, process_set: ProcessSet
) -> list[torch.Tensor]:
    """Combine tensors at once; the results can be differentiated together, and one after the other.

    The gradients of Min, Max and Product are made of tensors that autograd frees once they were used, so that each
    result of these keeps its own.
    """
    if how.reduction not in _NONLINEAR:
        return list(HorovodGroupedAllreduce.apply(None, name, *how, process_set, *tensors))  # type: ignore[no-untyped-call]  # torch leaves it untyped
    call = begin_call("grouped_allreduce", name, process_set)
    with torch.no_grad():
        results = call.executor.run(make_allreduce(call, tensors, how))
    return [
        GroupMember.apply(call.derive(str(index)), how, index, result, *tensors)  # type: ignore[no-untyped-call]  # as above
        if _is_differentiable(result)
        else result
        for index, result in enumerate(results)
    ]


def reduce(call: Call, how: Combination, tensors: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
    """Combine tensors, differentiably."""
    results: tuple[torch.Tensor, ...] = Reduce.apply(call, how, *tensors)  # type: ignore[no-untyped-call]  # torch leaves it untyped
    return results


def _reduce(ctx: Any, call: Call, tensors: Sequence[torch.Tensor], how: Combination) -> list[torch.Tensor]:  # noqa: ANN401 - as above
    results = call.executor.run(make_allreduce(call, tensors, how))
    _keep(ctx, call, how, tensors, results)
    return results


def _keep(
    ctx: Any,  # noqa: ANN401 - as above
    call: Call,
    how: Combination,
    tensors: Sequence[torch.Tensor],
    results: Sequence[torch.Tensor],
) -> None:
    """Note what `_differentiate` needs."""
    ctx.call, ctx.how = call, how
    match how.reduction:
        case Reduction.MIN | Reduction.MAX:
            ctx.save_for_backward(*tensors, *results)
        case Reduction.PRODUCT:
            ctx.save_for_backward(*tensors)


def _differentiate(ctx: Any, gradients: Sequence[torch.Tensor]) -> list[torch.Tensor | None]:  # noqa: ANN401 - as above
    """The gradients of all inputs; None of those that have none by their dtype.

    Which take part follows from the dtypes alone, and not from which inputs want a gradient: ranks may differ in that.
    """
    how: Combination = ctx.how
    call: Call = ctx.call.derive("backward")
    chosen = [index for index, gradient in enumerate(gradients) if _is_differentiable(gradient)]
    given = [gradients[index] for index in chosen]
    # Read only where something was saved: after a first backward pass torch refuses even none.
    saved: Sequence[torch.Tensor] = ctx.saved_tensors if how.reduction in _NONLINEAR else ()
    inputs = [saved[index] for index in chosen] if saved else []
    match how.reduction:
        case Reduction.MIN | Reduction.MAX:
            results = [saved[len(gradients) + index] for index in chosen]
            found = _share_among_holders(call, how, given, inputs, results)
        case Reduction.PRODUCT:
            found = MultiplyByOthers.apply(call, how, *given, *inputs)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        case _:
            found = list(reduce(call, how, given))
    placed: list[torch.Tensor | None] = [None] * len(gradients)
    for index, gradient in zip(chosen, found, strict=True):
        placed[index] = gradient
    return placed


def _share_among_holders(
    call: Call,
    how: Combination,
    gradients: Sequence[torch.Tensor],
    inputs: Sequence[torch.Tensor],
    results: Sequence[torch.Tensor],
) -> list[torch.Tensor]:
    """The gradient of an extreme value goes to the ranks that hold it, in equal shares.

    Factors are arithmetic, after which values that differed may be equal; so with factors the extreme value is found
    anew without them, by another collective. (A negative prescale turns the order around.)
    """
    factor = how.prescale * how.postscale
    if (how.prescale, how.postscale) != (1.0, 1.0):
        is_min = (how.reduction is Reduction.MIN) == (how.prescale >= 0)
        plain = Combination(Reduction.MIN if is_min else Reduction.MAX)
        plain_inputs = [mine.detach() for mine in inputs]
        results = call.executor.run(make_allreduce(call.derive("extremes"), plain_inputs, plain))
    holds = [mine == extreme for mine, extreme in zip(inputs, results, strict=True)]
    counts = [is_held.to(torch.int32) for is_held in holds]
    summed = reduce(call, SUM, [*gradients, *counts])
    totals, holders = summed[: len(gradients)], summed[len(gradients) :]
    return [
        torch.where(is_held, total * factor / count.clamp(min=1), 0).to(total.dtype)  # none holds a value that is NaN
        for total, count, is_held in zip(totals, holders, holds, strict=True)
    ]


def _multiply_by_others(
    call: Call, how: Combination, gradients: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]
) -> list[torch.Tensor]:
    """The derivative of a product by one factor is the product of the others.

    It is made as the product of all factors that are not zero, divided by the own one; with the number of zeros it
    follows where others have a zero. It is computed in at least float32, and is as exact as a division; where the
    product of all overflows, so does it.
    """
    wide = [(mine.to(torch.promote_types(mine.dtype, torch.float32)) * how.prescale) for mine in inputs]
    zeros = [mine == 0 for mine in wide]
    divisors = [mine.masked_fill(is_zero, 1) for mine, is_zero in zip(wide, zeros, strict=True)]
    counts = [is_zero.to(torch.int32) for is_zero in zeros]
    executor = call.executor
    products = executor.submit(make_allreduce(call.derive("products"), divisors, PRODUCT))
    summed = executor.run(make_allreduce(call, [*gradients, *counts], SUM))
    found = []
    for index, product in enumerate(executor.wait(products)):
        total, count = summed[index], summed[len(gradients) + index]
        is_others_zero = (count - counts[index]) > 0
        others = (product / divisors[index]).masked_fill(is_others_zero, 0)
        found.append((total * others * (how.prescale * how.postscale)).to(gradients[index].dtype))
    return found


def _is_differentiable(gradient: torch.Tensor) -> bool:
    return gradient.is_floating_point() or gradient.is_complex()
