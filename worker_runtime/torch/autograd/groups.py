"""A grouped allreduce whose results can be differentiated one after the other."""

from collections.abc import Sequence
from typing import Any

import torch

from worker_runtime.api.calls import Call, begin_call, make_allreduce
from worker_runtime.api.process_set import ProcessSet
from worker_runtime.collectives import Combination
from worker_runtime.torch.autograd.adjoints import NONLINEAR, find_adjoint
from worker_runtime.torch.autograd.collective import Collective, keep, list_differentiable
from worker_runtime.torch.autograd.horovod import HorovodGroupedAllreduce


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


def reduce_group(
    tensors: Sequence[torch.Tensor], name: str | None, how: Combination, process_set: ProcessSet
) -> list[torch.Tensor]:
    """Combine tensors at once; the results can be differentiated together, and one after the other.

    The gradients of Min, Max and Product are made of tensors that autograd frees once they were used, so that each
    result of these keeps its own.
    """
    if how.reduction not in NONLINEAR:
        return list(HorovodGroupedAllreduce.apply(None, name, *how, process_set, *tensors))  # type: ignore[no-untyped-call]  # torch leaves it untyped
    call = begin_call("grouped_allreduce", name, process_set)
    with torch.no_grad():
        results = call.executor.run(make_allreduce(call, tensors, how))
    for index in list_differentiable(results):
        results[index] = GroupMember.apply(call.derive(str(index)), how, index, results[index], *tensors)  # type: ignore[no-untyped-call]  # as above
    return results
