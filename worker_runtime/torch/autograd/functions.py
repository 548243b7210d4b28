"""The differentiable collectives of programs, and Horovod's autograd functions with Horovod's arguments."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from worker_runtime.api.calls import Call, Form, begin_call, make_allreduce
from worker_runtime.api.process_set import ProcessSet
from worker_runtime.collectives.combination import Combination, choose_combination, choose_for_scatter
from worker_runtime.collectives.tensor_operation import check_untransformed
from worker_runtime.torch.autograd.adjoints import (
    NONLINEAR,
    Collective,
    Ran,
    broadcast,
    differentiate,
    exchange,
    find_adjoint,
    gather,
    keep,
    list_differentiable,
    reduce,
    scatter,
)


class GroupMember(Collective):
    """One tensor of a grouped allreduce that has run. Its gradient is a separate collective.

    All tensors of the group are inputs, so that every rank runs backward, whichever of them require a gradient.
    """

    @staticmethod
    def forward(  # type: ignore[override]  # of one result
        ctx: Any,
        call: Call,
        how: Combination,
        index: int,
        result: torch.Tensor,
        *tensors: torch.Tensor,
    ) -> torch.Tensor:
        """Return the result of the tensor of this index."""
        ctx.mark_dirty(result)  # it is itself the output
        own = tensors[index : index + 1]
        return keep(ctx, call, find_adjoint(how, own, [result]), own, 4 + index)[0]


def run_differentiably(
    form: Form,
    call: Call,
    settings: Any,
    tensors: Sequence[torch.Tensor],
) -> Sequence[torch.Tensor]:
    """Run a collective of the program, so that its results have gradients; see `Arguments`.

    The results of a group can be differentiated together or separately. The gradients of Min, Max and Product need
    saved tensors, which autograd frees after their use, so each result of such a group has a separate function.

    Raises:
        ValueError: torch traces or transforms the call.
    """
    check_untransformed(call.name)
    if not form.grouped or form.kind != "allreduce" or settings.reduction not in NONLINEAR:
        return differentiate(call, COLLECTIVES[form.kind](settings), tensors)
    with torch.no_grad():
        results = call.engine.run(make_allreduce(call, tensors, settings))
    for index in list_differentiable(results):
        results[index] = GroupMember.apply(call.derive(str(index)), settings, index, results[index], *tensors)  # type: ignore[no-untyped-call]  # torch leaves it untyped
    return results


COLLECTIVES: dict[str, Callable[[Any], Callable[[Call, Sequence[torch.Tensor]], Ran]]] = {
    "allreduce": lambda how: partial(reduce, how),
    "allgather": lambda _: gather,
    "broadcast": lambda root: partial(broadcast, root),
    "alltoall": lambda splits: partial(exchange, splits),
    "reducescatter": lambda how: partial(scatter, how),
}


# The tensors, the name, the process set; and a combination, a root or splits.
Given = tuple[Sequence[torch.Tensor], str | None, ProcessSet, Any]


def _make(form: Form, read: Callable[..., Given]) -> type[Collective]:
    """Horovod's autograd function of a collective; `read` gets the arguments of its `apply`."""

    def apply(cls: type[Collective], *arguments: Any) -> Any:
        del cls
        tensors, name, process_set, settings = read(*arguments)
        results = run_differentiably(form, begin_call(form.title, name, process_set), settings, tensors)
        if form.grouped or form.kind == "alltoall":
            return tuple(results)
        return results[0]

    members = {"apply": classmethod(apply), "__doc__": f"Differentiable {form.title}.", "__module__": __name__}
    return type(f"Horovod{form.title.title().replace('_', '')}", (Collective,), members)


HorovodAllreduce = _make(
    Form("allreduce"),
    lambda x, average, name, op, pre, post, where: ((x,), name, where, choose_combination(op, average, pre, post)),
)
HorovodGroupedAllreduce = _make(
    Form("allreduce", grouped=True),
    lambda average, name, op, pre, post, where, *xs: (xs, name, where, choose_combination(op, average, pre, post)),
)
HorovodAllgather = _make(Form("allgather"), lambda x, name, where: ((x,), name, where, None))
HorovodGroupedAllgather = _make(Form("allgather", grouped=True), lambda name, where, *xs: (xs, name, where, None))
HorovodBroadcast = _make(Form("broadcast"), lambda x, root, name, where: ((x,), name, where, root))
HorovodAlltoall = _make(Form("alltoall"), lambda x, splits, name, where: ((x,), name, where, splits))
HorovodReducescatter = _make(
    Form("reducescatter"),
    lambda x, name, op, where, prescale, postscale: ((x,), name, where, choose_for_scatter(op, prescale, postscale)),
)
HorovodGroupedReducescatter = _make(
    Form("reducescatter", grouped=True),
    lambda name, op, where, prescale, postscale, *xs: (xs, name, where, choose_for_scatter(op, prescale, postscale)),
)
