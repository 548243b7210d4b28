"""The collectives with their adjoints, and one autograd function for all.

A function runs a collective, and returns its results and its adjoint, which computes the gradients of the inputs from
those of the results. The adjoint is a collective too. Its name derives from the forward call's, so that ranks may run
backward in different orders. It consists of differentiable collectives, so that it has gradients itself.

The derivative is that of the sum of the losses of all ranks of the set: each rank's output depends on every rank's
input, so the gradient of an input comes from all ranks, and backward is a collective.

An allreduce is y = postscale * reduce over r of (prescale * x_r). With G the sum over the ranks of their gradients for
y, the gradient of x_r is:

    Sum       postscale * prescale * G
    Average   postscale * prescale * G / size
    Min, Max  postscale * prescale * G / t where x_r holds the extreme value, t being how many ranks hold it; else 0
    Product   postscale * prescale * G * the product of prescale * x_s over the other ranks s
    Adasum    the Adasum of the ranks' gradients, as Horovod has it; it is not the derivative

(Horovod combines the gradients of Min, Max and Product by minimum, maximum and product, which is not the gradient.)
Those of Product can be differentiated only once: they use a quotient, whose gradient is wrong where a factor is zero.

The others follow Horovod. For allgather and broadcast the gradient of this rank's rows (of the root's values) is the
average of the ranks' gradients for them, so that a loss that every rank computes from all rows has the gradient of one
such loss, not of `size` equal ones. For reducescatter it is the concatenation of the ranks' gradients for their parts,
times both factors, and times the size of the set for Sum. The derivative of the sum of all ranks' losses is `size`
times the gradient of allgather and broadcast, and 1 / `size` of that of reducescatter. For alltoall each row's gradient
returns to the rank that sent the row.

After the loss of a rank that was in the forward call, the sums and averages of gradients are those of the ranks that
are left. An adjoint that needs the lost rank's part fails: it has a collective that cannot run again without it.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, NoReturn

import torch
from torch.autograd import Function

from worker_runtime.api.calls import Call, make_allreduce
from worker_runtime.collectives.allgather import Allgather, find_own_rows
from worker_runtime.collectives.allreduce import AllreduceOfAll
from worker_runtime.collectives.alltoall import Alltoall, Splits
from worker_runtime.collectives.broadcast import Broadcast
from worker_runtime.collectives.combination import AVERAGE, SUM, Combination
from worker_runtime.collectives.reducescatter import Reducescatter
from worker_runtime.coordination.ordering.requests import Reduction

PRODUCT = Combination(Reduction.PRODUCT)
NONLINEAR = (Reduction.MIN, Reduction.MAX, Reduction.PRODUCT)  # their gradients depend on the inputs

Tensors = Sequence[torch.Tensor]


class Ran(NamedTuple):
    """A collective that has run.

    results: the results of the inputs, in their order; more may follow.
    adjoint: computes the inputs' gradients from backward's call, the gradients of the differentiable results, and
        `saved`.
    saved: the tensors that the adjoint needs.
    """

    results: Sequence[torch.Tensor]
    adjoint: Callable[..., Sequence[torch.Tensor]]
    saved: Sequence[torch.Tensor] = ()


class Collective(Function):
    """A differentiable collective."""

    @staticmethod
    def forward(
        ctx: Any,
        call: Call,
        run: Callable[[Call, Sequence[torch.Tensor]], Ran],
        *tensors: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        """Run the collective."""
        return keep(ctx, call, run(call, tensors), tensors, 2)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Run the adjoint.

        The dtypes alone decide which tensors take part; which inputs require a gradient may differ between ranks.
        """
        # Where nothing was saved, it is not read: in a second backward pass torch raises an error for it.
        saved: Sequence[torch.Tensor] = ()
        if ctx.saves:
            saved = ctx.saved_tensors
        found = ctx.adjoint(ctx.call.derive("backward"), [gradients[index] for index in ctx.chosen], saved)
        placed: list[torch.Tensor | None] = [None] * len(ctx.needs_input_grad)
        for index, gradient in zip(ctx.chosen, found, strict=True):
            placed[ctx.first + index] = gradient
        return tuple(placed)


def keep(
    ctx: Any,
    call: Call,
    ran: Ran,
    tensors: Sequence[torch.Tensor],
    first: int = 0,
) -> tuple[torch.Tensor, ...]:
    """Store what `Collective.backward` needs.

    Args:
        ctx: the function's context.
        call: the call that has run.
        ran: its results and adjoint.
        tensors: its inputs.
        first: the index of the first input in the function's arguments.

    Returns:
        The results.
    """
    ctx.call, ctx.first, ctx.adjoint, ctx.saves = call, first, ran.adjoint, bool(ran.saved)
    ctx.chosen = list_differentiable(tensors)
    ctx.save_for_backward(*ran.saved)
    return tuple(ran.results)


def list_differentiable(tensors: Sequence[torch.Tensor]) -> list[int]:
    """The indices of tensors whose dtype has gradients."""
    return [index for index, tensor in enumerate(tensors) if tensor.is_floating_point() or tensor.is_complex()]


def differentiate(
    call: Call, run: Callable[[Call, Sequence[torch.Tensor]], Ran], tensors: Sequence[torch.Tensor]
) -> Sequence[torch.Tensor]:
    """Run a collective differentiably."""
    results: tuple[torch.Tensor, ...] = Collective.apply(call, run, *tensors)  # type: ignore[no-untyped-call]  # torch leaves it untyped
    return results


def reduce(how: Combination, call: Call, tensors: Tensors) -> Ran:
    """Allreduce."""
    return find_adjoint(how, tensors, call.engine.run(make_allreduce(call, tensors, how)))


def find_adjoint(how: Combination, tensors: Tensors, results: Tensors) -> Ran:
    """The adjoint of an allreduce."""
    chosen = list_differentiable(tensors)
    inputs = [tensors[index] for index in chosen]
    match how.reduction:
        case Reduction.MIN | Reduction.MAX:
            return Ran(results, partial(_share_among_holders, how), [*inputs, *(results[index] for index in chosen)])
        case Reduction.PRODUCT:
            return Ran(results, partial(_multiply, how), inputs)
    return Ran(results, partial(_reduce_gradients, how))


def gather(call: Call, tensors: Tensors) -> Ran:
    """Allgather."""
    gathered = call.engine.run(Allgather(tensors, call.among, call.name))
    bounds = [find_own_rows(gathered[index], call.among) for index in list_differentiable(tensors)]
    return Ran([each.tensor for each in gathered], partial(_average_own_rows, bounds))


def scatter(how: Combination, call: Call, tensors: Tensors) -> Ran:
    """Reducescatter."""
    factor = how.prescale * how.postscale
    if how.reduction is Reduction.SUM:
        factor *= call.among.size
    results = call.engine.run(Reducescatter(tensors, how, call.among, call.name))
    return Ran(results, partial(_gather_parts, factor))


def exchange(splits: Splits | None, call: Call, tensors: Tensors) -> Ran:
    """Alltoall of one tensor; the second result is the received splits, which have no gradient."""
    received, received_splits = call.engine.run(Alltoall(tensors[0], splits, call.among, call.name))
    return Ran((received, received_splits), partial(_return_rows, received_splits.tolist()))


def broadcast(root: int, call: Call, tensors: Tensors) -> Ran:
    """Broadcast."""
    results = call.engine.run(Broadcast(tensors, root, call.among, call.name))
    return Ran(results, partial(_average_on_root, root))


def _reduce_gradients(how: Combination, call: Call, gradients: Tensors, _: Tensors) -> Tensors:
    return differentiate(call, partial(reduce, how), gradients)


def _average_own_rows(bounds: Sequence[tuple[int, int]], call: Call, gradients: Tensors, _: Tensors) -> Tensors:
    averaged = differentiate(call, partial(reduce, AVERAGE), gradients)
    return [gradient[begin:end] for gradient, (begin, end) in zip(averaged, bounds, strict=True)]


def _gather_parts(factor: float, call: Call, gradients: Tensors, _: Tensors) -> Tensors:
    gathered = differentiate(call, gather, gradients)
    if factor != 1.0:
        return [gradient * factor for gradient in gathered]
    return gathered


def _return_rows(splits: list[int], call: Call, gradients: Tensors, _: Tensors) -> Tensors:
    return differentiate(call, partial(exchange, splits), gradients)[:1]


def _average_on_root(root: int, call: Call, gradients: Tensors, _: Tensors) -> Tensors:
    averaged = differentiate(call, partial(reduce, AVERAGE), gradients)
    if call.among.rank == root:
        return averaged
    # The zeros are computed from it: all ranks run the collective of a second differentiation, or none.
    return [each.masked_fill(each.new_ones((), dtype=torch.bool), 0) for each in averaged]


def _share_among_holders(how: Combination, call: Call, gradients: Tensors, saved: Tensors) -> Tensors:
    """The gradient of an extreme value goes to the ranks that hold it, in equal shares.

    Multiplication by factors may round different values to equal ones. So with factors, another collective finds the
    extreme value of the unscaled inputs. (A negative prescale reverses their order.)
    """
    inputs, results = saved[: len(gradients)], saved[len(gradients) :]
    factor = how.prescale * how.postscale
    if (how.prescale, how.postscale) != (1.0, 1.0):
        is_min = (how.reduction is Reduction.MIN) == (how.prescale >= 0)
        plain = Combination(Reduction.MIN if is_min else Reduction.MAX)
        plain_inputs = [mine.detach() for mine in inputs]
        # A rank that is lost may have held the extreme value.
        results = call.engine.run(AllreduceOfAll(plain_inputs, plain, call.among, call.derive("extremes").name))

    holds = [mine == extreme for mine, extreme in zip(inputs, results, strict=True)]
    counts = [is_held.to(torch.int32) for is_held in holds]
    summed = differentiate(call, partial(reduce, SUM), [*gradients, *counts])
    totals, holders = summed[: len(gradients)], summed[len(gradients) :]
    return [
        # No rank holds an extreme value that is NaN: its count is 0.
        torch.where(is_held, total * factor / count.clamp(min=1), 0).to(total.dtype)
        for total, count, is_held in zip(totals, holders, holds, strict=True)
    ]


def _multiply(how: Combination, call: Call, gradients: Tensors, inputs: Tensors) -> Tensors:
    found: Tensors = MultiplyByOthers.apply(call, how, *gradients, *inputs)  # type: ignore[no-untyped-call]  # torch leaves it untyped
    return found


class MultiplyByOthers(Function):
    """The gradients of a product, which cannot be differentiated again."""

    @staticmethod
    def forward(ctx: Any, call: Call, how: Combination, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Multiply the gradients, the first half of the tensors, by the product of the other ranks' inputs."""
        del ctx
        half = len(tensors) // 2
        return tuple(_multiply_by_others(call, how, tensors[:half], tensors[half:]))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> NoReturn:
        """Raise RuntimeError.

        Raises:
            RuntimeError: always.
        """
        del ctx, gradients
        raise RuntimeError("an allreduce with op=Product can be differentiated once only")


def _multiply_by_others(
    call: Call, how: Combination, gradients: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]
) -> list[torch.Tensor]:
    """The gradients times the product of the other ranks' factors, the derivative of a product by one factor.

    It is the product of all factors that are not zero, divided by this rank's; the number of zeros tells where other
    ranks have one. It is computed in at least float32, with the precision of a division, and overflows where the
    product of all factors does.
    """
    wide = [(mine.to(torch.promote_types(mine.dtype, torch.float32)) * how.prescale) for mine in inputs]
    zeros = [mine == 0 for mine in wide]
    divisors = [mine.masked_fill(is_zero, 1) for mine, is_zero in zip(wide, zeros, strict=True)]
    counts = [is_zero.to(torch.int32) for is_zero in zeros]
    engine = call.engine
    # Of a rank that is lost the factor is missing.
    products = engine.submit(AllreduceOfAll(divisors, PRODUCT, call.among, call.derive("products").name))
    summed = engine.run(AllreduceOfAll([*gradients, *counts], SUM, call.among, call.name))
    found = []
    for index, product in enumerate(engine.wait(products)):
        total, count = summed[index], summed[len(gradients) + index]
        is_others_zero = (count - counts[index]) > 0
        others = (product / divisors[index]).masked_fill(is_others_zero, 0)
        found.append((total * others * (how.prescale * how.postscale)).to(gradients[index].dtype))
    return found
