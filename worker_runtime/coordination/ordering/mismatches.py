"""What differs between the ranks' questions of one name, in a sentence that names both sides.

Checks stand in the order in which Horovod makes them, but for notes, which it has not: they say what the shapes that
follow come from. The first check that finds a difference between the lowest rank and another one gives the text, so
that the text does not depend on who asked first.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import TypeAlias, TypeVar

from worker_runtime.coordination.ordering.questions import Kind, Question, Reduction, Signature
from worker_runtime.coordination.ordering.refusals import explain_failure, name_operation

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
