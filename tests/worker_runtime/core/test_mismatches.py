"""Cases of what differs between the ranks' questions of one name."""

from dataclasses import replace
from itertools import permutations

import pytest

from worker_runtime.core.mismatches import find_mismatch
from worker_runtime.core.questions import Kind, Question, Reduction, Signature

ALLREDUCE = Signature(Kind.ALLREDUCE, ("float32",), ((4, 2),), Reduction.SUM)
GATHER = Signature(Kind.ALLGATHER, ("float32",), ((2,),))
BROADCAST = Signature(Kind.BROADCAST, ("float32",), ((4,),), root=0)
GROUP = replace(ALLREDUCE, dtypes=("float32",) * 3, shapes=((1,), (2,), (3,)))


def ask(*signatures: Signature, name: str = "allreduce.x") -> dict[int, Question]:
    """These signatures from ranks 0, 1, 2 ..."""
    return {rank: Question(0, name, signature) for rank, signature in enumerate(signatures)}


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        (
            ALLREDUCE,
            replace(ALLREDUCE, dtypes=("float64",)),
            "Mismatched data types: allreduce 'x' has float32 on rank 0 and float64 on rank 1. Convert",
        ),
        (
            GROUP,
            replace(GROUP, dtypes=("float32", "int64", "float32")),
            "has float32 (tensor 2 of 3) on rank 0 and int64 (tensor 2 of 3) on rank 1.",
        ),
        (ALLREDUCE, replace(ALLREDUCE, kind=Kind.BARRIER), "Mismatched operations: allreduce 'x' is ALLREDUCE on rank"),
        (ALLREDUCE, replace(ALLREDUCE, shapes=((4,),)), "Mismatched ALLREDUCE tensor shapes: allreduce 'x' has (4, 2)"),
        (BROADCAST, replace(BROADCAST, shapes=((),)), "Mismatched BROADCAST tensor shapes: allreduce 'x' has (4,) on"),
        (
            replace(ALLREDUCE, kind=Kind.REDUCESCATTER),
            replace(ALLREDUCE, kind=Kind.REDUCESCATTER, shapes=((),)),
            "Mismatched REDUCESCATTER tensor shapes: allreduce 'x' has (4, 2) on rank 0 and () on rank 1.",
        ),
        (GROUP, replace(GROUP, shapes=((1,), (2,), (4,))), "(3,) (tensor 3 of 3) on rank 0 and (4,) (tensor 3 of 3)"),
        (
            ALLREDUCE,
            replace(ALLREDUCE, reduction=Reduction.ADASUM),
            "Mismatched reduction operations: allreduce 'x' has Sum on rank 0 and Adasum on rank 1. Give all ranks",
        ),
        (ALLREDUCE, replace(ALLREDUCE, reduction=None), "has Sum on rank 0 and none on rank 1."),
        (
            GATHER,
            replace(GATHER, shapes=((2, 3),)),
            "allreduce 'x' has 2 dimensions, (*, 2) on rank 0 and 3 dimensions, (*, 2, 3) on rank 1. The tensors must",
        ),
        (
            GATHER,
            replace(GATHER, shapes=((3,),)),
            "(*, 2) on rank 0 and 2 dimensions, (*, 3) on rank 1. Only the first",
        ),
        (
            replace(GATHER, kind=Kind.ALLTOALL),
            replace(GATHER, kind=Kind.ALLTOALL, shapes=((),)),
            "Mismatched ALLTOALL tensor shapes: allreduce 'x' has 2 dimensions, (*, 2) on rank 0 and 1 dimension on",
        ),
        (
            BROADCAST,
            replace(BROADCAST, root=2),
            "Mismatched BROADCAST root ranks: allreduce 'x' has root rank 0 on rank",
        ),
        (
            ALLREDUCE,
            replace(ALLREDUCE, device="cuda"),
            "Mismatched ALLREDUCE CPU/GPU device selection: allreduce 'x' has a CPU tensor on rank 0 and a GPU tensor",
        ),
        (
            GROUP,
            replace(GROUP, dtypes=("float64",), shapes=((9,),)),
            "Mismatched numbers of tensors: allreduce 'x' has 3 tensors on rank 0 and 1 tensor on rank 1. Give all",
        ),
        (
            ALLREDUCE,
            replace(ALLREDUCE, payload_dtype="float32"),
            "sends its data apart on rank 0 and with its question, as float32, on rank 1. Run one version",
        ),
        (
            ALLREDUCE,
            replace(ALLREDUCE, note="fp16"),
            "Mismatched settings: allreduce 'x' has '' on rank 0 and 'fp16' on",
        ),
        (
            ALLREDUCE,
            replace(ALLREDUCE, tolerates_joined=True),
            "Mismatched questions: allreduce 'x' has tolerates_join",
        ),
    ],
)
def test_a_difference_is_told_with_both_sides(one: Signature, other: Signature, expected: str) -> None:
    assert expected in find_mismatch(ask(one, other), {})


@pytest.mark.parametrize(("factors", "name"), [((0.5, 1.0), "prescale"), ((1.0, 0.5), "postscale")])
def test_factors_that_differ_are_told(factors: tuple[float, float], name: str) -> None:
    text = find_mismatch({0: ask(ALLREDUCE)[0], 1: ask(ALLREDUCE)[0]._replace(factors=factors)}, {})
    assert text.startswith(f"Mismatched {name} factors: allreduce 'x' has 1.0 on rank 0 and 0.5 on rank 1. Give all")


def test_no_difference_is_none() -> None:
    assert find_mismatch(ask(ALLREDUCE, replace(ALLREDUCE)), {}) is None
    assert find_mismatch(ask(GATHER, GATHER), {0: (1,), 1: (5,)}) is None


def test_the_first_difference_in_the_order_of_checks_is_told_whichever_rank_has_it() -> None:
    text = find_mismatch(ask(ALLREDUCE, replace(ALLREDUCE, shapes=()), replace(ALLREDUCE, dtypes=("int32",))), {})
    assert text.startswith("Mismatched data types: allreduce 'x' has float32 on rank 0 and int32 on rank 2.")


def test_what_the_ranks_note_is_told_before_the_shapes_that_come_from_it() -> None:
    text = find_mismatch(ask(replace(ALLREDUCE, note="2 parts"), replace(ALLREDUCE, note="1 part", shapes=((9,),))), {})
    assert "'2 parts' on rank 0 and '1 part' on rank 1" in text
    assert "allgather" not in text


def test_the_text_does_not_depend_on_who_asked_first() -> None:
    asked = ask(ALLREDUCE, replace(ALLREDUCE, shapes=((9,),)), replace(ALLREDUCE, shapes=((7,),)))
    assert len({find_mismatch(dict(order), {}) for order in permutations(asked.items())}) == 1


@pytest.mark.parametrize(
    ("kind", "extents", "expected"),
    [
        (Kind.ALLTOALL, {0: (1, 1), 1: (2,)}, "Mismatched ALLTOALL extents: x has 2 numbers on rank 0 and 1 number on"),
        (Kind.ALLGATHER, {1: (2,)}, "Mismatched ALLGATHER extents: x has 0 numbers on rank 0 and 1 number on rank 1."),
        (Kind.ADD_SET, {0: (0, 1), 1: (0,)}, "Mismatched process sets: x has the ranks [0, 1] on rank 0 and [0] on"),
        (
            Kind.REMOVE_SET,
            {0: (1,), 1: (2,)},
            "Mismatched process sets: x is about set [1] on rank 0 and [2] on rank 1.",
        ),
    ],
)
def test_extents_must_be_equally_many_and_those_of_sets_equal(
    kind: Kind, extents: dict[int, tuple[int, ...]], expected: str
) -> None:
    assert find_mismatch(ask(Signature(kind), Signature(kind), name="x"), extents).startswith(expected)


def test_unnamed_operations_bring_advice_about_names() -> None:
    text = find_mismatch(ask(ALLREDUCE, BROADCAST, name="allreduce.noname.7"), {})
    assert text.endswith("naming them makes the order free.")
