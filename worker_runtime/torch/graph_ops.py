"""The collectives as operations of torch.compile's graphs.

An operation communicates when the graph runs, not when torch traces it. Unnamed calls are numbered when the graph runs.
A name from the program is part of the graph; the number of ranks is not. Each operation takes a token and returns the
next one, so that torch never removes, merges or reorders operations. It also returns a ticket: the pickled adjoint for
the backward pass, as a tensor, since a graph passes only tensors.

The operations in a program's graph, `collective` and `sync_batch_norm`, consist of two others that communicate: `run`
and `run_adjoint`. torch caches compiled graphs on disk by the names of the former. If you change their decomposition,
give them new names.
"""

import pickle
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple, Self

import torch
from torch.library import custom_op, define, get_ctx, impl

from worker_runtime.api.calls import Call, begin_call, reports_failure
from worker_runtime.api.process_set import ProcessSet, find_process_set
from worker_runtime.collectives.combination import Combination
from worker_runtime.coordination.ordering.requests import Reduction
from worker_runtime.membership.runtime import RUNTIME
from worker_runtime.torch.autograd.adjoints import Collective, Ran, Tensors, find_adjoint
from worker_runtime.torch.autograd.functions import COLLECTIVES
from worker_runtime.torch.autograd.sync_batch_norms import Statistics, SyncNormalize, measure

TOKEN = torch.zeros(1, dtype=torch.uint8, device="cpu")
_TICKET_BYTES = 512  # more than the size of a ticket without the program's name

_OF_CALL = "str kind, str? name, int process_set, int op, float prescale, float postscale"


class Node(NamedTuple):
    """A collective in a graph, in place of a `Call` while torch traces.

    token: the token of all operations.
    kind: the function's name.
    name: the name that the program gives.
    process_set: the key of the set.
    how: a reduction or the root, and the factors; the kind uses some of them.
    """

    token: torch.Tensor
    kind: str
    name: str | None
    process_set: int
    how: tuple[float, ...] = (0, 1.0, 1.0)

    def derive(self, _: str) -> Self:
        """Return itself: the ticket has the name of the gradient's call."""
        return self

    def run(self, tensor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the result and the ticket, and replace the token."""
        token, result, ticket = _run(self.token, tensor, self.kind, self.name, self.process_set, *self.how)
        self.token.copy_(token)
        return result, ticket

    def run_adjoint(
        self, gradient: torch.Tensor, saved: Tensors, ticket: torch.Tensor, shape: torch.Size
    ) -> torch.Tensor:
        """Return the gradient of the input, of this shape, and replace the token."""
        found: torch.Tensor
        token, found = _run_adjoint(self.token, gradient, saved, ticket, self.process_set, shape)
        self.token.copy_(token)
        return found


@custom_op(
    "hvdrun::run", mutates_args=(), schema=f"(Tensor token, Tensor tensor, {_OF_CALL}) -> (Tensor, Tensor, Tensor)"
)
def _run(
    token: torch.Tensor, tensor: torch.Tensor, kind: str, name: str | None, process_set: int, *how: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Communicate; return the next token, the result and the ticket."""
    found = _ASK[kind](tensor, how, name=name, process_set=find_process_set(process_set))
    return token.clone(), *found


@_run.register_fake
def _(
    token: torch.Tensor, tensor: torch.Tensor, kind: str, name: str | None, *_: object
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    match kind:
        case "allgather" | "reducescatter":
            result = tensor.new_empty((get_ctx().new_dynamic_size(), *tensor.shape[1:]))
        case "sync_batch_norm":
            result = tensor.new_empty((1 + 2 * tensor.shape[1],), dtype=torch.float64)
        case _:
            result = tensor.new_empty(tensor.shape)
    return torch.empty_like(token), result, torch.empty(_count_bytes(name), dtype=torch.uint8, device="cpu")


@custom_op("hvdrun::run_adjoint", mutates_args=())
def _run_adjoint(
    token: torch.Tensor,
    gradient: torch.Tensor,
    saved: Sequence[torch.Tensor],
    ticket: torch.Tensor,
    process_set: int,
    shape: Sequence[int],
) -> tuple[torch.Tensor, torch.Tensor]:
    """Communicate in the backward pass; return the next token and the gradient of the input, of this shape."""
    del shape
    name, adjoint = pickle.loads(bytes(ticket.tolist()))  # noqa: S301 - `_ask` has created it in this process
    engine = RUNTIME.engine
    members = engine.find_members(find_process_set(process_set).find_number(name), name)
    (found,) = adjoint(Call(engine, members, name), (gradient,), saved)
    return token.clone(), found.clone(memory_format=torch.contiguous_format)


@_run_adjoint.register_fake
def _(
    token: torch.Tensor, gradient: torch.Tensor, _: Tensors, __: torch.Tensor, ___: int, shape: Sequence[int]
) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.empty_like(token), gradient.new_empty(shape)


def _ask(
    kind: str, tensor: torch.Tensor, how: tuple[float, ...], *, name: str | None, process_set: ProcessSet
) -> tuple[torch.Tensor, torch.Tensor]:
    call = begin_call(kind, name, process_set)
    settings = how[0] if kind == "broadcast" else Combination(Reduction(int(how[0])), *how[1:])
    if kind == "sync_batch_norm":
        ran = measure(call, (tensor,))
    else:
        ran = COLLECTIVES[kind](settings)(call, (tensor,))
    ticket = pickle.dumps((call.derive("backward").name, ran.adjoint)).ljust(_count_bytes(name))
    return ran.results[0].contiguous(), torch.frombuffer(bytearray(ticket), dtype=torch.uint8)


_COLLECTIVES = ("allreduce", "allgather", "broadcast", "reducescatter", "sync_batch_norm")
_ASK = {kind: reports_failure(kind)(partial(_ask, kind)) for kind in _COLLECTIVES}


def _count_bytes(name: str | None) -> int:
    return _TICKET_BYTES + len((name or "").encode())


def _trace(node: Node, tensors: Tensors) -> Ran:
    """The `run` of a `Collective` while torch traces."""
    (tensor,) = tensors
    result, ticket = node.run(tensor)
    op, *factors = node.how
    if node.kind == "allreduce":
        saved = find_adjoint(Combination(Reduction(int(op)), *factors), tensors, (result,)).saved
    else:
        saved = ()
    return Ran((result, ticket), partial(_trace_adjoint, tensor.shape), (ticket, *saved))


def _trace_adjoint(shape: torch.Size, node: Node, gradients: Tensors, saved: Tensors) -> Tensors:
    ticket, *others = saved
    return [node.run_adjoint(gradients[0], others, ticket, shape)]


define("hvdrun::collective", f"(Tensor(a!) token, Tensor tensor, {_OF_CALL}) -> (Tensor, Tensor)")
define(
    "hvdrun::sync_batch_norm",
    "(Tensor(a!) token, Tensor x, Tensor? weight, Tensor? bias, float eps, int process_set) -> "
    "(Tensor, Tensor, Tensor, Tensor)",
)


@impl("hvdrun::collective", "CompositeImplicitAutograd")
def _(
    token: torch.Tensor, tensor: torch.Tensor, kind: str, name: str | None, process_set: int, *how: float
) -> tuple[torch.Tensor, torch.Tensor]:
    node = Node(token, kind, name, process_set, how)
    result: tuple[torch.Tensor, torch.Tensor] = Collective.apply(node, _trace, tensor)  # type: ignore[no-untyped-call]  # torch leaves it untyped
    return result


@impl("hvdrun::sync_batch_norm", "CompositeImplicitAutograd")
def _(
    token: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    eps: float,
    process_set: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    node = Node(token, "sync_batch_norm", None, process_set)
    measured, ticket = node.run(x.detach())
    count, mean, variance = measured.tensor_split([1, 1 + x.shape[1]])
    mean, variance = (each.to(torch.promote_types(x.dtype, torch.float32)) for each in (mean, variance))

    def add(sums: torch.Tensor) -> torch.Tensor:
        return node.run_adjoint(sums, (), ticket, sums.shape)

    statistics = Statistics(mean, variance, count)
    normalized: torch.Tensor = SyncNormalize.apply(x, weight, bias, statistics, eps, add)  # type: ignore[no-untyped-call]  # torch leaves it untyped
    return normalized, mean, variance, count
