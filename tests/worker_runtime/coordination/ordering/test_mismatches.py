"""Cases of what differs between the ranks' requests of one name."""

from dataclasses import replace
from itertools import permutations
from typing import Any

import pytest

from worker_runtime.coordination.ordering.refusals import find_mismatch
from worker_runtime.coordination.ordering.requests import Kind, Reduction, Request, Signature

ALLREDUCE = Signature(Kind.ALLREDUCE, ("float32",), ((4, 2),), Reduction.SUM)
GATHER = Signature(Kind.ALLGATHER, ("float32",), ((2,),))
BROADCAST = Signature(Kind.BROADCAST, ("float32",), ((4,),), root=0)
SCATTER, EXCHANGE = replace(ALLREDUCE, kind=Kind.REDUCESCATTER), replace(GATHER, kind=Kind.ALLTOALL)
GROUP = replace(ALLREDUCE, dtypes=("float32",) * 3, shapes=((1,), (2,), (3,)))

MIXED = ("float32", "int64", "float32")
SHAPES, ROWS = "ALLREDUCE tensor shapes", "ALLGATHER tensor shapes"
DEVICES, WAYS, TOLERANCE = "ALLREDUCE CPU/GPU device selection", "ways of the data", "tolerates_joined"


def ask(*signatures: Signature, name: str = "allreduce.x") -> dict[int, Request]:
    """These signatures from ranks 0, 1, 2 ..."""
    return {rank: Request(0, name, signature) for rank, signature in enumerate(signatures)}


@pytest.mark.parametrize(
    ("one", "change", "what", "text"),  # what each of two ranks has, and the advice
    [
        (ALLREDUCE, {"dtypes": ("float64",)}, "data types", "has float32 | float64 | Convert"),
        (GROUP, {"dtypes": MIXED}, "data types", "has float32 (tensor 2 of 3) | int64 (tensor 2 of 3) | Convert"),
        (ALLREDUCE, {"kind": Kind.BARRIER}, "operations", "is ALLREDUCE | BARRIER | Give different operations"),
        (ALLREDUCE, {"shapes": ((4,),)}, "ALLREDUCE tensor shapes", "has (4, 2) | (4,) | The shapes must be equal"),
        (BROADCAST, {"shapes": ((),)}, "BROADCAST tensor shapes", "has (4,) | () | The shapes must be equal"),
        (SCATTER, {"shapes": ((),)}, "REDUCESCATTER tensor shapes", "has (4, 2) | () | The shapes must be equal"),
        (GROUP, {"shapes": ((1,), (2,), ())}, SHAPES, "has (3,) (tensor 3 of 3) | () (tensor 3 of 3) | The shapes"),
        (ALLREDUCE, {"reduction": Reduction.ADASUM}, "reduction operations", "has Sum | Adasum | Give all ranks"),
        (ALLREDUCE, {"reduction": None}, "reduction operations", "has Sum | none | Give all ranks the same op"),
        (GATHER, {"shapes": ((2, 3),)}, ROWS, "has 2 dimensions, (*, 2) | 3 dimensions, (*, 2, 3) | The tensors must"),
        (GATHER, {"shapes": ((3,),)}, ROWS, "has 2 dimensions, (*, 2) | 2 dimensions, (*, 3) | Only the first"),
        (EXCHANGE, {"shapes": ((),)}, "ALLTOALL tensor shapes", "has 2 dimensions, (*, 2) | 1 dimension | The tensors"),
        (BROADCAST, {"root": 2}, "BROADCAST root ranks", "has root rank 0 | root rank 2 | Give all ranks the same"),
        (ALLREDUCE, {"device": "cuda"}, DEVICES, "has a CPU tensor | a GPU tensor | Put the tensor on the same kind"),
        (GROUP, {"dtypes": ("int8",), "shapes": ((9,),)}, "numbers of tensors", "has 3 tensors | 1 tensor | Give all"),
        (ALLREDUCE, {"payload_dtype": "int8"}, WAYS, "sends its data apart | with its request, as int8, | Run one"),
        (ALLREDUCE, {"note": "fp16"}, "settings", "has '' | 'fp16' | Give all ranks the same arguments"),
        (ALLREDUCE, {"tolerates_joined": True}, "requests", f"has {TOLERANCE} False | {TOLERANCE} True | Run one"),
    ],
)
def test_a_difference_is_reported_with_both_sides(one: Signature, change: dict[str, Any], what: str, text: str) -> None:
    mine, theirs, advice = text.split(" | ")
    text = find_mismatch(ask(one, replace(one, **change)), {})
    assert text.startswith(f"Mismatched {what}: allreduce 'x' {mine} on rank 0 and {theirs} on rank 1. {advice}")


@pytest.mark.parametrize(("factors", "name"), [((0.5, 1.0), "prescale"), ((1.0, 0.5), "postscale")])
def test_factors_that_differ_are_reported(factors: tuple[float, float], name: str) -> None:
    text = find_mismatch({0: ask(ALLREDUCE)[0], 1: ask(ALLREDUCE)[0]._replace(factors=factors)}, {})
    assert text.startswith(f"Mismatched {name} factors: allreduce 'x' has 1.0 on rank 0 and 0.5 on rank 1. Give all")


def test_equal_requests_have_no_mismatch() -> None:
    assert find_mismatch(ask(ALLREDUCE, replace(ALLREDUCE)), {}) is None
    assert find_mismatch(ask(GATHER, GATHER), {0: (1,), 1: (5,)}) is None


def test_the_first_difference_in_the_order_of_checks_is_reported_whichever_rank_has_it() -> None:
    text = find_mismatch(ask(ALLREDUCE, replace(ALLREDUCE, shapes=()), replace(ALLREDUCE, dtypes=("int32",))), {})
    assert text.startswith("Mismatched data types: allreduce 'x' has float32 on rank 0 and int32 on rank 2.")


def test_a_difference_of_notes_is_reported_before_the_shapes_that_come_from_it() -> None:
    text = find_mismatch(ask(replace(ALLREDUCE, note="2 parts"), replace(ALLREDUCE, note="1 part", shapes=((9,),))), {})
    assert "'2 parts' on rank 0 and '1 part' on rank 1" in text
    assert "allgather" not in text


def test_the_text_does_not_depend_on_the_order_of_the_requests() -> None:
    asked = ask(ALLREDUCE, replace(ALLREDUCE, shapes=((9,),)), replace(ALLREDUCE, shapes=((7,),)))
    assert len({find_mismatch(dict(order), {}) for order in permutations(asked.items())}) == 1


@pytest.mark.parametrize(
    ("kind", "sizes", "expected"),
    [
        (Kind.ALLTOALL, {0: (1, 1), 1: (2,)}, "Mismatched ALLTOALL sizes: x has 2 numbers on rank 0 and 1 number on"),
        (Kind.ALLGATHER, {1: (2,)}, "Mismatched ALLGATHER sizes: x has 0 numbers on rank 0 and 1 number on rank 1."),
        (Kind.ADD_SET, {0: (0, 1), 1: (0,)}, "Mismatched process sets: x has the ranks [0, 1] on rank 0 and [0] on"),
        (
            Kind.REMOVE_SET,
            {0: (1,), 1: (2,)},
            "Mismatched process sets: x is about set [1] on rank 0 and [2] on rank 1.",
        ),
    ],
)
def test_sizes_must_be_equally_many_and_those_of_sets_equal(
    kind: Kind, sizes: dict[int, tuple[int, ...]], expected: str
) -> None:
    assert find_mismatch(ask(Signature(kind), Signature(kind), name="x"), sizes).startswith(expected)


def test_unnamed_operations_bring_advice_about_names() -> None:
    text = find_mismatch(ask(ALLREDUCE, BROADCAST, name="allreduce.noname.7"), {})
    assert text.endswith("naming them makes the order free.")
