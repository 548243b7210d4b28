"""The collectives as nodes of a graph that torch.compile makes: what comes in is traced, what runs is the runtime's.

Each is a custom operation that overwrites a token. The token makes it an operation with an effect for the compiler,
which neither removes, merges nor reorders those. A name that the program gives is a part of the graph; an unnamed
operation is counted when it runs, and gives a ticket with its name on, from which the backward pass makes its own. No
number of ranks is a part of the graph.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch.autograd import Function
from torch.library import custom_op, get_ctx

from worker_runtime.api.calls import Call, begin_call
from worker_runtime.api.giving_up import gives_up
from worker_runtime.api.process_set import ProcessSet, find_process_set, global_process_set
from worker_runtime.api.reductions import choose_reduction
from worker_runtime.collectives import AVERAGE, Combination
from worker_runtime.membership.runtime import RUNTIME
from worker_runtime.torch.autograd import adjoints
from worker_runtime.torch.autograd.sync_batch_norms import Statistics, differentiate, gather_statistics, normalize
from worker_runtime.torch.compression import Compression, Compressor, compress

_TOKEN = torch.zeros(1, dtype=torch.uint8)
_TICKET_BYTES = 128
_NONLINEAR = tuple(map(int, adjoints.NONLINEAR))


def allreduce(  # noqa: PLR0917 - Horovod's signature
    tensor: torch.Tensor,
    average: bool | None = None,  # noqa: FBT001 - Horovod's signature
    name: str | None = None,
    compression: Compressor = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """As `worker_runtime.torch.allreduce`."""
    compressed, context = compress(compression, tensor)
    how = None if op is None else int(op), average, float(prescale_factor), float(postscale_factor)
    result: torch.Tensor = _Allreduce.apply(compressed, how, name, process_set.key)  # type: ignore[no-untyped-call]  # torch leaves it untyped
    return compression.decompress(result, context)


def allgather(
    tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """As `worker_runtime.torch.allgather`."""
    result: torch.Tensor = _Allgather.apply(tensor, name, process_set.key)  # type: ignore[no-untyped-call]  # as above
    return result


def normalize_batch(
    x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None, eps: float, process_set: ProcessSet
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """What `SyncBatchNorm` gives in training: the result, mean, variance, and how many values as a tensor."""
    result: tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]
    result = _SyncBatchNorm.apply(x, weight, bias, eps, process_set.key)  # type: ignore[no-untyped-call]  # as above
    return result


class _Allreduce(Function):
    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401 - torch gives its class no type
        tensor: torch.Tensor,
        how: tuple[int | None, bool | None, float, float],
        name: str | None,
        key: int,
    ) -> torch.Tensor:
        result: torch.Tensor
        result, ticket = _allreduce(_TOKEN, tensor, *how, name, key)
        ctx.how, ctx.name, ctx.key = how, name, key
        if how[0] in _NONLINEAR:
            ctx.save_for_backward(ticket, tensor, result)
        else:
            ctx.save_for_backward(ticket)
        return result

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # noqa: ANN401 - as above
        ticket, *saved = ctx.saved_tensors
        return _allreduce_backward(_TOKEN, gradient, saved, ticket, *ctx.how, ctx.name, ctx.key), None, None, None


class _Allgather(Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, name: str | None, key: int) -> torch.Tensor:  # noqa: ANN401 - as above
        result: torch.Tensor
        result, ticket, begin = _allgather(_TOKEN, tensor, name, key)
        ctx.save_for_backward(ticket, begin)
        ctx.rows, ctx.name, ctx.key = tensor.shape[0], name, key
        return result

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # noqa: ANN401 - as above
        ticket, begin = ctx.saved_tensors
        return _allgather_backward(_TOKEN, gradient, begin, ctx.rows, ticket, ctx.name, ctx.key), None, None


class _SyncBatchNorm(Function):
    @staticmethod
    def forward(  # noqa: PLR0917 - torch passes no keywords
        ctx: Any,  # noqa: ANN401 - as above
        x: torch.Tensor,
        weight: torch.Tensor | None,
        bias: torch.Tensor | None,
        eps: float,
        key: int,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        result, mean, variance, count, ticket = _sync_batch_norm(_TOKEN, x, weight, bias, eps, key)
        ctx.save_for_backward(x, weight, mean, variance, count, ticket)
        ctx.eps, ctx.key = eps, key
        ctx.mark_non_differentiable(mean, variance, count)
        return result, mean, variance, count

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor, *_: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # noqa: ANN401 - as above
        x, weight, mean, variance, count, ticket = ctx.saved_tensors
        found, scale, shift = _sync_batch_norm_backward(
            _TOKEN, gradient, x, weight, mean, variance, count, ctx.needs_input_grad[0], ticket, ctx.eps, ctx.key
        )
        if weight is None:
            return found, None, None, None, None
        return found, scale.to(weight.dtype), shift.to(weight.dtype), None, None


@custom_op("hvdrun::allreduce", mutates_args=("token",))
def _allreduce(  # noqa: PLR0917 - an operation of torch's has one list of arguments
    token: torch.Tensor,
    tensor: torch.Tensor,
    op: int | None,
    average: bool | None,  # noqa: FBT001 - as above
    prescale: float,
    postscale: float,
    name: str | None,
    key: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    del token
    how = Combination(choose_reduction(op, average), prescale, postscale)

    @gives_up("allreduce")
    def run(name: str | None, process_set: ProcessSet) -> tuple[torch.Tensor, torch.Tensor]:
        call = begin_call("allreduce", name, process_set)
        (result,) = adjoints.reduce(how, call, (tensor,)).results
        return result.contiguous(), _write_ticket(call, name)

    return run(name, find_process_set(key))


@_allreduce.register_fake
def _(_: torch.Tensor, tensor: torch.Tensor, *__: object) -> tuple[torch.Tensor, torch.Tensor]:
    return tensor.new_empty(tensor.shape), _make_ticket()


@custom_op("hvdrun::allreduce_backward", mutates_args=("token",))
def _allreduce_backward(  # noqa: PLR0917 - as above
    token: torch.Tensor,
    gradient: torch.Tensor,
    saved: Sequence[torch.Tensor],
    ticket: torch.Tensor,
    op: int | None,
    average: bool | None,  # noqa: FBT001 - as above
    prescale: float,
    postscale: float,
    name: str | None,
    key: int,
) -> torch.Tensor:
    del token
    how = Combination(choose_reduction(op, average), prescale, postscale)
    tensors, results = (saved[:1], saved[1:]) if saved else ((gradient,), (gradient,))
    ran = adjoints.find_adjoint(how, tensors, results)
    (found,) = ran.adjoint(_derive_call("allreduce", name, ticket, key), (gradient,), ran.saved)
    return found.contiguous()


@_allreduce_backward.register_fake
def _(_: torch.Tensor, gradient: torch.Tensor, *__: object) -> torch.Tensor:
    return gradient.new_empty(gradient.shape)


@custom_op("hvdrun::allgather", mutates_args=("token",))
def _allgather(
    token: torch.Tensor, tensor: torch.Tensor, name: str | None, key: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    del token

    @gives_up("allgather")
    def run(name: str | None, process_set: ProcessSet) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        call = begin_call("allgather", name, process_set)
        result, begin = adjoints.gather_rows(call, tensor)
        return result.contiguous(), _write_ticket(call, name), torch.tensor([begin])

    return run(name, find_process_set(key))


@_allgather.register_fake
def _(_: torch.Tensor, tensor: torch.Tensor, *__: object) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    rows = get_ctx().new_dynamic_size()
    return tensor.new_empty((rows, *tensor.shape[1:])), _make_ticket(), torch.empty(1, dtype=torch.int64)


@custom_op("hvdrun::allgather_backward", mutates_args=("token",))
def _allgather_backward(  # noqa: PLR0917 - as above
    token: torch.Tensor,
    gradient: torch.Tensor,
    begin: torch.Tensor,
    rows: int,
    ticket: torch.Tensor,
    name: str | None,
    key: int,
) -> torch.Tensor:
    del token
    call = _derive_call("allgather", name, ticket, key)
    (averaged,) = adjoints.reduce(AVERAGE, call, (gradient,)).results
    return averaged.narrow(0, int(begin), rows).clone(memory_format=torch.contiguous_format)


@_allgather_backward.register_fake
def _(_: torch.Tensor, gradient: torch.Tensor, __: torch.Tensor, rows: int, *___: object) -> torch.Tensor:
    return gradient.new_empty((rows, *gradient.shape[1:]))


@custom_op("hvdrun::sync_batch_norm", mutates_args=("token",))
def _sync_batch_norm(  # noqa: PLR0917 - as above
    token: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    eps: float,
    key: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    del token
    call = begin_call("sync_batch_norm", None, find_process_set(key))
    mean, variance, count = gathered = gather_statistics(call, x)
    result = normalize(x, weight, bias, gathered, eps).contiguous()
    return result, mean, variance, torch.tensor([float(count)]), _write_ticket(call, None)


@_sync_batch_norm.register_fake
def _(_: torch.Tensor, x: torch.Tensor, *__: object) -> tuple[torch.Tensor, ...]:
    mean, variance = (_make_statistic(x) for _ in range(2))
    return x.new_empty(x.shape), mean, variance, torch.empty(1), _make_ticket()


@custom_op("hvdrun::sync_batch_norm_backward", mutates_args=("token",))
def _sync_batch_norm_backward(  # noqa: PLR0917 - as above
    token: torch.Tensor,
    gradient: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor | None,
    mean: torch.Tensor,
    variance: torch.Tensor,
    count: torch.Tensor,
    wants_input: bool,  # noqa: FBT001 - as above
    ticket: torch.Tensor,
    eps: float,
    key: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    del token
    call = _derive_call("sync_batch_norm", None, ticket, key) if wants_input else None
    statistics = Statistics(mean, variance, int(count))
    result, scale, shift = differentiate(call, gradient, x, weight, statistics, eps)
    return x.new_empty(x.shape) if result is None else result.contiguous(), scale, shift


@_sync_batch_norm_backward.register_fake
def _(_: torch.Tensor, __: torch.Tensor, x: torch.Tensor, *___: object) -> tuple[torch.Tensor, ...]:
    return x.new_empty(x.shape), _make_statistic(x), _make_statistic(x)


def _make_statistic(x: torch.Tensor) -> torch.Tensor:
    return x.new_empty((x.shape[1],), dtype=torch.promote_types(x.dtype, torch.float32))


def _make_ticket() -> torch.Tensor:
    return torch.empty(_TICKET_BYTES, dtype=torch.uint8)


def _write_ticket(call: Call, name: str | None) -> torch.Tensor:
    """The name that an unnamed call has got."""
    text = call.name if name is None else ""
    return torch.tensor(list(text.encode().ljust(_TICKET_BYTES, b"\0")), dtype=torch.uint8)


def _derive_call(kind: str, name: str | None, ticket: torch.Tensor, key: int) -> Call:
    """The call of a gradient, under the name that it has without a compiler too."""
    full = bytes(ticket.tolist()).rstrip(b"\0").decode() if name is None else f"{kind}.{name}"
    executor = RUNTIME.executor
    return Call(executor, executor.find_members(find_process_set(key).find_number(kind), kind), full).derive("backward")
