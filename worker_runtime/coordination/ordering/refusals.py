"""The messages of refused operations: what happened, on which ranks, and what to do.

`find_mismatch` compares the ranks' requests of one name. Its checks have Horovod's order. Notes, which Horovod lacks,
are compared before shapes, because a note explains the shapes. The first check that finds a difference between the
lowest rank and another one gives the message, which so does not depend on which rank asked first.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import TypeAlias, TypeVar

from worker_runtime.coordination.ordering.requests import GLOBAL_SET, Kind, Reduction, Request, Signature, make_title

_AVERAGING = re.compile(r"\w+\.optimizer\.")  # operations that a DistributedOptimizer submits
_OF_OPTIMIZER = (
    " 'optimizer...' averages the gradients of a DistributedOptimizer: all ranks must call step() equally often, train "
    "or freeze the same parameters, and throw gradients away together, as by zero_grad() after backward()."
)
MOST_NAMED = 6  # the largest number of ranks or operations in a message; the others are dots


def name_operation(request: Request) -> str:
    """An operation's name in messages, with its process set: "allreduce 'loss' in process set 1"."""
    title = make_title(request.name)
    if request.process_set != GLOBAL_SET:
        return f"{title} in process set {request.process_set}"
    return title


def name_ranks(ranks: Iterable[int]) -> str:
    """`rank 2`, or `ranks 0, 1, 5`; at most MOST_NAMED."""
    ordered = sorted(ranks)
    shown = ", ".join(str(rank) for rank in ordered[:MOST_NAMED])
    return f"rank{'s' * (len(ordered) > 1)} {shown}{' ...' * (len(ordered) > MOST_NAMED)}"


def explain_join(request: Request, joined: Iterable[int]) -> str:
    """The message when a rank has joined and the operation needs all ranks."""
    ranks = sorted(joined)
    return (
        f"{request.signature.kind.name} is not supported with Join at this time: {name_operation(request)} needs "
        f"all members of its process set, and {name_ranks(ranks)} {_have(ranks)} joined. Until all ranks have joined, "
        "use allreduce alone."
    )


def explain_shutdown(request: Request, left: Mapping[int, str], failures: Mapping[int, Request]) -> str:
    """The message when a needed rank has left.

    Args:
        request: the request that needs the ranks.
        left: how each rank has left: "ended without an error"; "" if it has called shutdown().
        failures: the failed calls of ranks that have left.
    """
    ranks: dict[str, list[int]] = {}
    for rank in sorted(left, key=lambda rank: (bool(left[rank]), rank)):
        ranks.setdefault(left[rank], []).append(rank)
    shown = [
        f"{name_ranks(some)} {how}" if how else f"Horovod has been shut down on {name_ranks(some)}"
        for how, some in ranks.items()
    ]
    return (
        f"{', '.join(shown[:MOST_NAMED])}{', ...' * (len(shown) > MOST_NAMED)}, and {name_operation(request)} needs "
        f"{'it' if len(left) == 1 else 'them'}. All members of a process set must call the same operations before "
        "one of them ends or calls shutdown()."
        + "".join(f" Before that: {explain_failure(failures[rank], rank)}" for rank in sorted(left) if rank in failures)
    )


def explain_removal(request: Request, number: int) -> str:
    """The message when the process set was removed."""
    return (
        f"{name_operation(request)} cannot run: process set {number} has been removed. "
        "Finish all operations of a set on all its members before remove_process_set()."
    )


def explain_failure(request: Request, rank: int) -> str:
    """The message when a rank's call has failed before it was submitted; the note of its FAIL is the error."""
    cause = request.signature.note
    return f"{name_operation(request)} failed on rank {rank} before anything was sent: {cause}"


def explain_deadlock(waits: Mapping[int, Request], joined: Iterable[int]) -> str:
    """The message when every rank waits for an operation that another waiting rank would have to call.

    Args:
        waits: each waiting rank's operation.
        joined: the ranks that wait in join().
    """
    groups: dict[str, list[int]] = {}
    for rank in sorted(waits):
        groups.setdefault(name_operation(waits[rank]), []).append(rank)
    if in_join := sorted(joined):
        groups["all others to join"] = in_join
    waits_for = [f"{name_ranks(ranks)} wait{'s' * (len(ranks) == 1)} for {what}" for what, ranks in groups.items()]
    shown = "; ".join(waits_for[:MOST_NAMED]) + "; ..." * (len(waits_for) > MOST_NAMED)
    is_of_optimizer = any(_AVERAGING.match(request.name) for request in waits.values())
    return (
        f"Mismatched operations: every rank waits for another: {shown}. "
        "Each operation must be called, under the same name, by all members of its process set."
        + _OF_OPTIMIZER
        * is_of_optimizer
    )


def _have(ranks: list[int]) -> str:
    return "has" if len(ranks) == 1 else "have"


T = TypeVar("T")

_SAME_VERSION = "Run one version of the program and of hvdrun on all ranks."


@dataclass(frozen=True, slots=True)
class Difference:
    """A difference between two ranks' requests."""

    head: str
    one: str
    other: str
    advice: str
    verb: str = "has"


_Check: TypeAlias = Callable[[Request, Request], Difference | None]
_OF_ROWS = (
    Kind.ALLGATHER,
    Kind.ALLTOALL,
)  # the ranks may have different numbers of rows


def find_mismatch(asked: Mapping[int, Request], sizes: Mapping[int, tuple[int, ...]]) -> str | None:
    """The message about the first failed rank, or the first difference; None if all requests are equal.

    Args:
        asked: each rank's request of one set and name.
        sizes: the sizes of the ranks that sent some.
    """
    first, *others = sorted(asked)
    for rank in (first, *others):
        if asked[rank].signature.kind is Kind.FAIL:
            return explain_failure(asked[rank], rank)
    for check in _CHECKS:
        for rank in others:
            difference = check(asked[first], asked[rank])
            if difference is not None:
                return _tell(asked[first], difference, first, rank)
    for rank in others:
        difference = _check_sizes(asked[first].signature.kind, sizes.get(first, ()), sizes.get(rank, ()))
        if difference is not None:
            return _tell(asked[first], difference, first, rank)
    return None


def _tell(request: Request, difference: Difference, one: int, other: int) -> str:
    text = (
        f"{difference.head}: {name_operation(request)} {difference.verb} {difference.one} on rank {one} "
        f"and {difference.other} on rank {other}. {difference.advice}"
    )
    if ".noname." in request.name:
        text += " Operations without a name are matched by the order of their calls: naming them makes the order free."
    return text


def _compare(
    head: str, read: Callable[[Request], T], show: Callable[[T], str], advice: str, verb: str = "has"
) -> _Check:
    """A check that the values that `read` returns are equal; a "{}" in the head stands for the kind of operation."""

    def check(one: Request, other: Request) -> Difference | None:
        mine, theirs = read(one), read(other)
        if mine == theirs:
            return None
        return Difference(head.format(one.signature.kind.name), show(mine), show(theirs), advice, verb)

    return check


def _check_dtypes(one: Request, other: Request) -> Difference | None:
    for place, mine, theirs in _pair(one.signature.dtypes, other.signature.dtypes):
        if mine != theirs:
            advice = "Convert the tensors to one dtype on all ranks."
            return Difference("Mismatched data types", mine + place, theirs + place, advice)
    return None


def _check_shapes(one: Request, other: Request) -> Difference | None:
    if one.signature.kind in _OF_ROWS:
        return None
    return _compare_shapes(one.signature, other.signature, _show_shape)


def _check_rows(one: Request, other: Request) -> Difference | None:
    """Compare shapes that lack the first dimension, which may differ."""
    if one.signature.kind not in _OF_ROWS:
        return None
    return _compare_shapes(one.signature, other.signature, _show_rows)


def _compare_shapes(one: Signature, other: Signature, show: Callable[[tuple[int, ...]], str]) -> Difference | None:
    for place, mine, theirs in _pair(one.shapes, other.shapes):
        if mine != theirs:
            if one.kind not in _OF_ROWS:
                advice = "The shapes must be equal on all ranks; allgather takes tensors of different first dimensions."
            elif len(mine) != len(theirs):
                advice = "The tensors must have equally many dimensions on all ranks."
            else:
                advice = "Only the first dimension may differ between ranks."
            return Difference(
                f"Mismatched {one.kind.name} tensor shapes", show(mine) + place, show(theirs) + place, advice
            )
    return None


def _check_rest(one: Request, other: Request) -> Difference | None:
    """Compare all fields, for those without another check."""
    for field in fields(Signature):
        mine, theirs = getattr(one.signature, field.name), getattr(other.signature, field.name)
        if mine != theirs:
            head = "Mismatched requests"
            return Difference(head, f"{field.name} {mine!r}", f"{field.name} {theirs!r}", _SAME_VERSION)
    return None


def _check_sizes(kind: Kind, one: tuple[int, ...], other: tuple[int, ...]) -> Difference | None:
    """Compare the numbers of sizes; for ADD_SET and REMOVE_SET the sizes themselves."""
    if kind in (Kind.ADD_SET, Kind.REMOVE_SET):
        if one == other:
            return None
        head, advice = "Mismatched process sets", "All ranks must add and remove the same sets in the same order."
        verb = "has the ranks" if kind is Kind.ADD_SET else "is about set"
        return Difference(head, f"[{_show_list(one)}]", f"[{_show_list(other)}]", advice, verb)
    if len(one) == len(other):
        return None
    head = f"Mismatched {kind.name} sizes"
    return Difference(head, _count(len(one), "number"), _count(len(other), "number"), _SAME_VERSION)


def _pair(mine: tuple[T, ...], theirs: tuple[T, ...]) -> Iterator[tuple[str, T, T]]:
    """Pairs of values, tensor by tensor, with the tensor's place in a group; none if the numbers of tensors differ."""
    if len(mine) == len(theirs):
        for position, (my, their) in enumerate(zip(mine, theirs, strict=True), start=1):
            yield (f" (tensor {position} of {len(mine)})" if len(mine) > 1 else ""), my, their


def _show_shape(shape: tuple[int, ...]) -> str:
    return f"({_show_list(shape)}{',' * (len(shape) == 1)})"


def _show_rows(shape: tuple[int, ...]) -> str:
    if shape:
        return f"{_count(len(shape) + 1, 'dimension')}, (*, {_show_list(shape)})"
    return "1 dimension"


def _show_list(numbers: tuple[int, ...]) -> str:
    return ", ".join(str(number) for number in numbers)


def _show_reduction(reduction: Reduction | None) -> str:
    if reduction is not None:
        return reduction.name.capitalize()
    return "none"


def _show_device(device: str) -> str:
    return f"a {'CPU' if device == 'cpu' else 'GPU'} tensor"


def _show_payload(dtype: str) -> str:
    if dtype:
        return f"with its request, as {dtype},"
    return "apart"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"


_ROOTS = "Give all ranks the same root_rank, which is a rank of the whole job also in a process set."
_DEVICES = "Put the tensor on the same kind of device on all ranks."
_DIFFERENT_NAMES = "Give different operations different names."
_CHECKS: tuple[_Check, ...] = (
    _check_dtypes,
    _compare("Mismatched operations", lambda it: it.signature.kind, lambda kind: kind.name, _DIFFERENT_NAMES, "is"),
    _compare("Mismatched settings", lambda it: it.signature.note, "'{}'".format, "Give all ranks the same arguments."),
    _check_shapes,
    _compare("Mismatched prescale factors", lambda it: it.factors[0], repr, "Give all ranks the same prescale_factor."),
    _compare(
        "Mismatched postscale factors", lambda it: it.factors[1], repr, "Give all ranks the same postscale_factor."
    ),
    _compare(
        "Mismatched reduction operations",
        lambda it: it.signature.reduction,
        _show_reduction,
        "Give all ranks the same op.",
    ),
    _check_rows,
    _compare("Mismatched {} root ranks", lambda it: it.signature.root, "root rank {}".format, _ROOTS),
    _compare("Mismatched {} CPU/GPU device selection", lambda it: it.signature.device, _show_device, _DEVICES),
    _compare(
        "Mismatched numbers of tensors",
        lambda it: len(it.signature.dtypes),
        lambda count: _count(count, "tensor"),
        "Give all ranks the same list of tensors.",
    ),
    _compare(
        "Mismatched ways of the data",
        lambda it: it.signature.payload_dtype,
        _show_payload,
        _SAME_VERSION,
        "sends its data",
    ),
    _check_rest,
)
