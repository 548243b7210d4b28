"""Why an operation is refused, in sentences: what happened, which ranks it is about, what to do.

`find_mismatch` compares the ranks' questions of one name. Its checks stand in the order in which Horovod makes them.
Horovod has no notes; their check precedes that of the shapes, because a note says where the shapes come from. The first
check that finds a difference between the lowest rank and another one gives the text, so the text does not depend on
which rank asked first.

Long because each sentence stands beside the check that makes it.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import TypeAlias, TypeVar

from worker_runtime.coordination.ordering.questions import GLOBAL_SET, Kind, Question, Reduction, Signature

MOST_NAMED = 6  # so many ranks or operations are named; the rest is dots


def name_operation(question: Question) -> str:
    """An operation as people call it: `allreduce 'loss'`, where it travels as "allreduce.loss"."""
    kind, dot, name = question.name.partition(".")
    title = f"{kind} '{name}'" if dot else kind
    return title if question.process_set == GLOBAL_SET else f"{title} in process set {question.process_set}"


def name_ranks(ranks: Iterable[int]) -> str:
    """`rank 2`, or `ranks 0, 1, 5`; the first few of many."""
    ordered = sorted(ranks)
    shown = ", ".join(str(rank) for rank in ordered[:MOST_NAMED])
    return f"rank{'s' * (len(ordered) > 1)} {shown}{' ...' * (len(ordered) > MOST_NAMED)}"


def explain_join(question: Question, joined: Iterable[int]) -> str:
    """Somebody has joined, and this operation needs a question of everybody."""
    ranks = sorted(joined)
    return (
        f"{question.signature.kind.name} is not supported with Join at this time: {name_operation(question)} needs "
        f"all members of its process set, and {name_ranks(ranks)} {_have(ranks)} joined. Until all ranks have joined, "
        "use allreduce alone."
    )


def explain_shutdown(question: Question, left: Mapping[int, str]) -> str:
    """Somebody has left who is needed.

    Args:
        question: which needs them.
        left: how each has ended: "ended well"; "" where it has called shutdown().
    """
    ranks: dict[str, list[int]] = {}
    for rank in sorted(left, key=lambda rank: (bool(left[rank]), rank)):
        ranks.setdefault(left[rank], []).append(rank)
    told = [
        f"{name_ranks(some)} {how}" if how else f"Horovod has been shut down on {name_ranks(some)}"
        for how, some in ranks.items()
    ]
    return (
        f"{', '.join(told[:MOST_NAMED])}{', ...' * (len(told) > MOST_NAMED)}, and {name_operation(question)} needs "
        f"{'it' if len(left) == 1 else 'them'}. All members of a process set must call the same operations before "
        "one of them ends or calls shutdown()."
    )


def explain_removal(question: Question, number: int) -> str:
    """The process set is gone."""
    return (
        f"{name_operation(question)} cannot run: process set {number} has been removed. "
        "Finish all operations of a set on all its members before remove_process_set()."
    )


def explain_failure(question: Question, rank: int) -> str:
    """A rank's call has failed before anything was sent; its FAIL says why: "ValueError: ..."."""
    cause = question.signature.note
    return f"{name_operation(question)} was given up on rank {rank}, before anything was sent: {cause}"


def explain_deadlock(waits: Mapping[int, Question], joined: Iterable[int]) -> str:
    """Every rank waits for an operation that another, which waits too, would have to call.

    Args:
        waits: each waiting rank's operation.
        joined: the ranks that wait in join().
    """
    groups: dict[str, list[int]] = {}
    for rank in sorted(waits):
        groups.setdefault(name_operation(waits[rank]), []).append(rank)
    if in_join := sorted(joined):
        groups["all others to join"] = in_join
    told = [f"{name_ranks(ranks)} wait{'s' * (len(ranks) == 1)} for {what}" for what, ranks in groups.items()]
    shown = "; ".join(told[:MOST_NAMED]) + "; ..." * (len(told) > MOST_NAMED)
    return (
        f"Mismatched operations: every rank waits for another: {shown}. "
        "Each operation must be called, under the same name, by all members of its process set."
    )


def _have(ranks: list[int]) -> str:
    return "has" if len(ranks) == 1 else "have"


T = TypeVar("T")

_SAME_VERSION = "Run one version of the program and of hvdrun on all ranks."


@dataclass(frozen=True, slots=True)
class Difference:
    """What one rank has, and what another has instead."""

    head: str
    one: str
    other: str
    advice: str
    verb: str = "has"


_Check: TypeAlias = Callable[[Question, Question], Difference | None]


def find_mismatch(asked: Mapping[int, Question], sizes: Mapping[int, tuple[int, ...]]) -> str | None:
    """A sentence about the first rank that has failed, or the first difference; None where all is equal.

    Args:
        asked: each rank's question, of one set and name.
        sizes: of the ranks that gave any.
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


def _tell(question: Question, difference: Difference, one: int, other: int) -> str:
    text = (
        f"{difference.head}: {name_operation(question)} {difference.verb} {difference.one} on rank {one} "
        f"and {difference.other} on rank {other}. {difference.advice}"
    )
    if ".noname." in question.name:
        text += " Operations without a name are matched by the order of their calls: naming them makes the order free."
    return text


def _check_dtypes(one: Signature, other: Signature) -> Difference | None:
    for place, mine, theirs in _pair(one, one.dtypes, other.dtypes):
        if mine != theirs:
            advice = "Convert the tensors to one dtype on all ranks."
            return Difference("Mismatched data types", mine + place, theirs + place, advice)
    return None


def _check_kinds(one: Signature, other: Signature) -> Difference | None:
    if one.kind is other.kind:
        return None
    advice = "Give different operations different names."
    return Difference("Mismatched operations", one.kind.name, other.kind.name, advice, "is")


def _check_shapes(one: Signature, other: Signature) -> Difference | None:
    if one.kind in (Kind.ALLGATHER, Kind.ALLTOALL):
        return None
    for place, mine, theirs in _pair(one, one.shapes, other.shapes):
        if mine != theirs:
            head = f"Mismatched {one.kind.name} tensor shapes"
            advice = "The shapes must be equal on all ranks; allgather takes tensors of different first dimensions."
            return Difference(head, _show_shape(mine) + place, _show_shape(theirs) + place, advice)
    return None


def _check_factors(one: Question, other: Question) -> Difference | None:
    for name, mine, theirs in zip(("prescale", "postscale"), one.factors, other.factors, strict=True):
        if mine != theirs:
            advice = f"Give all ranks the same {name}_factor."
            return Difference(f"Mismatched {name} factors", f"{mine!r}", f"{theirs!r}", advice)
    return None


def _check_reductions(one: Signature, other: Signature) -> Difference | None:
    if one.reduction is other.reduction:
        return None
    mine, theirs = _show_reduction(one.reduction), _show_reduction(other.reduction)
    return Difference("Mismatched reduction operations", mine, theirs, "Give all ranks the same op.")


def _check_rows(one: Signature, other: Signature) -> Difference | None:
    """What is gathered or exchanged: the shapes lack the first dimension, which may differ."""
    if one.kind not in (Kind.ALLGATHER, Kind.ALLTOALL):
        return None
    head = f"Mismatched {one.kind.name} tensor shapes"
    for place, mine, theirs in _pair(one, one.shapes, other.shapes):
        if len(mine) != len(theirs):
            advice = "The tensors must have equally many dimensions on all ranks."
            return Difference(head, f"{_show_rows(mine)}{place}", f"{_show_rows(theirs)}{place}", advice)
        if mine != theirs:
            advice = "Only the first dimension may differ between ranks."
            return Difference(head, f"{_show_rows(mine)}{place}", f"{_show_rows(theirs)}{place}", advice)
    return None


def _check_roots(one: Signature, other: Signature) -> Difference | None:
    if one.root == other.root:
        return None
    head = f"Mismatched {one.kind.name} root ranks"
    advice = "Give all ranks the same root_rank, which is a rank of the whole job also in a process set."
    return Difference(head, f"root rank {one.root}", f"root rank {other.root}", advice)


def _check_devices(one: Signature, other: Signature) -> Difference | None:
    if one.device == other.device:
        return None
    head = f"Mismatched {one.kind.name} CPU/GPU device selection"
    advice = "Put the tensor on the same kind of device on all ranks."
    return Difference(head, _show_device(one), _show_device(other), advice)


def _check_counts(one: Signature, other: Signature) -> Difference | None:
    mine, theirs = len(one.dtypes), len(other.dtypes)
    if mine == theirs:
        return None
    advice = "Give all ranks the same list of tensors."
    return Difference("Mismatched numbers of tensors", _count(mine, "tensor"), _count(theirs, "tensor"), advice)


def _check_payloads(one: Signature, other: Signature) -> Difference | None:
    if one.payload_dtype == other.payload_dtype:
        return None
    mine, theirs = _show_payload(one), _show_payload(other)
    return Difference("Mismatched ways of the data", mine, theirs, _SAME_VERSION, "sends its data")


def _check_notes(one: Signature, other: Signature) -> Difference | None:
    if one.note == other.note:
        return None
    advice = "Give all ranks the same arguments."
    return Difference("Mismatched settings", f"'{one.note}'", f"'{other.note}'", advice)


def _check_rest(one: Signature, other: Signature) -> Difference | None:
    """Whatever no other check speaks of."""
    for field in fields(Signature):
        mine, theirs = getattr(one, field.name), getattr(other, field.name)
        if mine != theirs:
            return Difference(
                "Mismatched questions", f"{field.name} {mine!r}", f"{field.name} {theirs!r}", _SAME_VERSION
            )
    return None


def _check_sizes(kind: Kind, one: tuple[int, ...], other: tuple[int, ...]) -> Difference | None:
    """Of how many numbers they are, as a rule; those that say which process set is meant must be equal."""
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


def _in_signatures(check: Callable[[Signature, Signature], Difference | None]) -> _Check:
    return lambda one, other: check(one.signature, other.signature)


_CHECKS: tuple[_Check, ...] = (
    *map(_in_signatures, (_check_dtypes, _check_kinds, _check_notes, _check_shapes)),
    _check_factors,
    *map(_in_signatures, (_check_reductions, _check_rows, _check_roots, _check_devices)),
    *map(_in_signatures, (_check_counts, _check_payloads, _check_rest)),
)


def _pair(one: Signature, mine: tuple[T, ...], theirs: tuple[T, ...]) -> Iterator[tuple[str, T, T]]:
    """Tensor by tensor, with where it stands in a group; nothing when there are not equally many."""
    if len(mine) != len(theirs):
        return
    for position, (my, their) in enumerate(zip(mine, theirs, strict=True), start=1):
        yield (f" (tensor {position} of {len(one.dtypes)})" if len(mine) > 1 else ""), my, their


def _show_shape(shape: tuple[int, ...]) -> str:
    return f"({_show_list(shape)}{',' * (len(shape) == 1)})"


def _show_rows(shape: tuple[int, ...]) -> str:
    return f"{_count(len(shape) + 1, 'dimension')}, (*, {_show_list(shape)})" if shape else "1 dimension"


def _show_list(numbers: tuple[int, ...]) -> str:
    return ", ".join(str(number) for number in numbers)


def _show_reduction(reduction: Reduction | None) -> str:
    return "none" if reduction is None else reduction.name.capitalize()


def _show_device(signature: Signature) -> str:
    return f"a {'CPU' if signature.device == 'cpu' else 'GPU'} tensor"


def _show_payload(signature: Signature) -> str:
    return f"with its question, as {signature.payload_dtype}," if signature.payload_dtype else "apart"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"
