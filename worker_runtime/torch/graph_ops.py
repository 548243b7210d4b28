"""The collectives as operations of torch.compile's graphs.

An operation communicates when the graph runs, not when torch traces it. Unnamed calls are numbered when the graph runs.
A name from the program is part of the graph; the number of ranks is not. Each operation takes a token and returns the
next one, so that torch never removes, merges or reorders operations. It also returns a ticket: the pickled adjoint for
the backward pass, as a tensor, since a graph passes only tensors.

The operations in a program's graph, `collective_v2` and `sync_batch_norm_v2`, consist of two others that communicate:
`run_v2` and `run_adjoint_v2`. torch caches compiled graphs on disk by these names. If you change the decomposition of
the former, or the shapes of the latter's results, give them new names.
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
from worker_runtime.coordination.operation import Members
from worker_runtime.coordination.ordering.requests import Reduction
from worker_runtime.membership.runtime import RUNTIME
from worker_runtime.torch.autograd.adjoints import Collective, Ran, Tensors, find_adjoint
from worker_runtime.torch.autograd.functions import COLLECTIVES
from worker_runtime.torch.autograd.sync_batch_norms import Statistics, SyncNormalize, measure

TOKEN = torch.zeros(1, dtype=torch.uint8, device="cpu")
_TICKET_BYTES = 512 + 2048  # more than a ticket without the program's name needs, with a bit for each of 16,384 ranks

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
        token, found = _run_adjoint(self.token, gradient, saved, ticket, shape)
        self.token.copy_(token)
        return found


@custom_op(
    "hvdrun::run_v2", mutates_args=(), schema=f"(Tensor token, Tensor tensor, {_OF_CALL}) -> (Tensor, Tensor, Tensor)"
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
            result = tensor.new_empty((2 + 2 * tensor.shape[1],), dtype=torch.float64)
        case _:
            result = tensor.new_empty(tensor.shape)
    return torch.empty_like(token), result, torch.empty(_count_bytes(name), dtype=torch.uint8, device="cpu")


@custom_op("hvdrun::run_adjoint_v2", mutates_args=())
def _run_adjoint(
    token: torch.Tensor,
    gradient: torch.Tensor,
    saved: Sequence[torch.Tensor],
    ticket: torch.Tensor,
    shape: Sequence[int],
) -> tuple[torch.Tensor, torch.Tensor]:
    """Communicate in the backward pass; return the next token and the gradient of the input, of this shape."""
    del shape
    name, adjoint, members = pickle.loads(ticket.numpy().tobytes())  # noqa: S301 - `_ask` has created it in this process
    # As in an eager program these are the members of the forward call, some of which may be lost.
    (found,) = adjoint(Call(RUNTIME.engine, _unpack_members(*members), name), (gradient,), saved)
    return token.clone(), found.clone(memory_format=torch.contiguous_format)


@_run_adjoint.register_fake
def _(
    token: torch.Tensor, gradient: torch.Tensor, _: Tensors, __: torch.Tensor, shape: Sequence[int]
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
    ticket = pickle.dumps((call.derive("backward").name, ran.adjoint, _pack_members(call.among)))
    padded = bytearray(ticket.ljust(_count_bytes(name)))
    return ran.results[0].contiguous(), torch.frombuffer(padded, dtype=torch.uint8)


def _pack_members(members: Members) -> tuple[int, int, int, int]:
    """The members with their ranks as the bits of a number."""
    return members.number, sum(1 << rank for rank in members.ranks), members.rank, members.generation


def _unpack_members(number: int, bits: int, rank: int, generation: int) -> Members:
    ranks = tuple(position for position in range(bits.bit_length()) if bits >> position & 1)
    return Members(number, ranks, rank, generation)


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


define("hvdrun::collective_v2", f"(Tensor(a!) token, Tensor tensor, {_OF_CALL}) -> (Tensor, Tensor)")
define(
    "hvdrun::sync_batch_norm_v2",
    "(Tensor(a!) token, Tensor x, Tensor? weight, Tensor? bias, float eps, int process_set) -> "
    "(Tensor, Tensor, Tensor, Tensor)",
)


@impl("hvdrun::collective_v2", "CompositeImplicitAutograd")
def _(
    token: torch.Tensor, tensor: torch.Tensor, kind: str, name: str | None, process_set: int, *how: float
) -> tuple[torch.Tensor, torch.Tensor]:
    node = Node(token, kind, name, process_set, how)
    result: tuple[torch.Tensor, torch.Tensor] = Collective.apply(node, _trace, tensor)  # type: ignore[no-untyped-call]  # torch leaves it untyped
    return result


@impl("hvdrun::sync_batch_norm_v2", "CompositeImplicitAutograd")
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
    count, own, mean, variance = measured.tensor_split([1, 2, 2 + x.shape[1]])
    mean, variance = (each.to(torch.promote_types(x.dtype, torch.float32)) for each in (mean, variance))

    def add(sums: torch.Tensor) -> torch.Tensor:
        return node.run_adjoint(sums, (), ticket, sums.shape)

    statistics = Statistics(mean, variance, count, own)
    normalized: torch.Tensor = SyncNormalize.apply(x, weight, bias, statistics, eps, add)  # type: ignore[no-untyped-call]  # torch leaves it untyped
    return normalized, mean, variance, count
