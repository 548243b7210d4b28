"""Horovod's autograd functions, with its arguments, for programs that look inside it."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from worker_runtime.api.calls import begin_call
from worker_runtime.api.process_set import ProcessSet
from worker_runtime.collectives.combination import choose, choose_for_scatter
from worker_runtime.torch.autograd.collective import Collective
from worker_runtime.torch.autograd.groups import run_differentiably

# The tensors, the name, the process set; and a combination, a root or splits.
Given = tuple[Sequence[torch.Tensor], str | None, ProcessSet, Any]


def _make(kind: str, read: Callable[..., Given]) -> type[Collective]:
    """The function of a collective; `read` takes Horovod's arguments of `apply`."""

    def apply(cls: type[Collective], *arguments: Any) -> Any:  # noqa: ANN401 - of each kind others
        del cls
        tensors, name, process_set, settings = read(*arguments)
        results = run_differentiably(kind, begin_call(kind, name, process_set), settings, tensors)
        return tuple(results) if kind.startswith(("grouped_", "alltoall")) else results[0]

    members = {"apply": classmethod(apply), "__doc__": f"Differentiable {kind}.", "__module__": __name__}
    return type(f"Horovod{kind.title().replace('_', '')}", (Collective,), members)


HorovodAllreduce = _make(
    "allreduce",
    lambda x, average, name, op, pre, post, where: (
        (x,),
        name,
        where,
        choose(op, average, pre, post),
    ),
)
HorovodGroupedAllreduce = _make(
    "grouped_allreduce",
    lambda average, name, op, pre, post, where, *xs: (
        xs,
        name,
        where,
        choose(op, average, pre, post),
    ),
)
HorovodAllgather = _make("allgather", lambda x, name, where: ((x,), name, where, None))
HorovodGroupedAllgather = _make("grouped_allgather", lambda name, where, *xs: (xs, name, where, None))
HorovodBroadcast = _make("broadcast", lambda x, root, name, where: ((x,), name, where, root))
HorovodAlltoall = _make("alltoall", lambda x, splits, name, where: ((x,), name, where, splits))
HorovodReducescatter = _make(
    "reducescatter",
    lambda x, name, op, where, prescale, postscale: ((x,), name, where, choose_for_scatter(op, prescale, postscale)),
)
HorovodGroupedReducescatter = _make(
    "grouped_reducescatter",
    lambda name, op, where, prescale, postscale, *xs: (xs, name, where, choose_for_scatter(op, prescale, postscale)),
)
