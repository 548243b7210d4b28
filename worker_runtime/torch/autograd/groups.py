"""The collectives of programs, differentiably; the results of a grouped allreduce also one after the other."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from worker_runtime.api.calls import Call, make_allreduce
from worker_runtime.collectives import Combination
from worker_runtime.collectives.tensor_operation import check_place, make_title
from worker_runtime.torch.autograd.adjoints import NONLINEAR, copy, exchange, find_adjoint, gather, reduce, scatter
from worker_runtime.torch.autograd.collective import Collective, Ran, differentiate, keep, list_differentiable


class GroupMember(Collective):
    """One tensor of a grouped allreduce that has run: its gradient is a collective of its own.

    All tensors of the group are inputs, so that the gradient is asked for on every rank, whichever of them want one.
    """

    @staticmethod
    def forward(  # type: ignore[override]  # of one result
        ctx: Any,  # noqa: ANN401 - torch gives its class no type
        call: Call,
        how: Combination,
        index: int,
        result: torch.Tensor,
        *tensors: torch.Tensor,
    ) -> torch.Tensor:
        """Give the result, which is that of the tensor of this index."""
        ctx.mark_dirty(result)  # which is itself the output
        own = tensors[index : index + 1]
        return keep(ctx, call, find_adjoint(how, own, [result]), own, 4 + index)[0]


def run_differentiably(
    kind: str,
    call: Call,
    settings: Any,  # noqa: ANN401 - of each kind another
    tensors: Sequence[torch.Tensor],
) -> Sequence[torch.Tensor]:
    """Run the collective of a program's request, so that its results have gradients; see `Request`.

    The results of a group can be differentiated together, and one after the other. The gradients of Min, Max and
    Product are made of tensors that autograd frees once they were used, so that each result of these keeps its own.

    Raises:
        ValueError: tensors only stand for others here.
    """
    check_place(make_title(call.name))
    if kind != "grouped_allreduce" or settings.reduction not in NONLINEAR:
        return differentiate(call, _COLLECTIVES[kind.removeprefix("grouped_")](settings), tensors)
    with torch.no_grad():
        results = call.engine.run(make_allreduce(call, tensors, settings))
    for index in list_differentiable(results):
        results[index] = GroupMember.apply(call.derive(str(index)), settings, index, results[index], *tensors)  # type: ignore[no-untyped-call]  # torch leaves it untyped
    return results


_COLLECTIVES: dict[str, Callable[[Any], Callable[[Call, Sequence[torch.Tensor]], Ran]]] = {
    "allreduce": lambda how: partial(reduce, how),
    "allgather": lambda _: gather,
    "broadcast": lambda root: partial(copy, root),
    "alltoall": lambda splits: partial(exchange, splits),
    "reducescatter": lambda how: partial(scatter, how),
}
