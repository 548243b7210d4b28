"""Uses of names by themselves; how they serve the rules is in the transcripts and laws."""

import pytest

from worker_runtime.core.questions import Kind, Question, Signature
from worker_runtime.core.uses import Use, Uses, have_meaning


def begin(*asked: int) -> Use:
    """A use in a set of ranks 0, 2, 4."""
    question = Question(1, "x", Signature(Kind.ALLREDUCE))
    return Use(0, question, (0, 2, 4), dict.fromkeys(asked, question))


def test_who_is_excused_is_owed_nothing_and_late_for_nothing() -> None:
    uses = Uses((0, 2, 4))
    uses.owe("x", "reason", excused={0})
    uses.note_deadlock(begin(0), excused=())
    uses.excuse(2)
    assert [uses.pay(2, "x"), uses.pay(4, "x")] == [None, "reason"]
    assert [uses.is_late(begin(2)), uses.is_late(begin(4))] == [False, True]


def test_a_closed_set_forgets_all() -> None:
    uses = Uses((0, 2, 4))
    uses.pending["x"] = begin(0)
    uses.owe("x", "reason", excused={0})
    uses.note_deadlock(begin(0), excused=())
    uses.ahead["x"] = [(0, "reason")]
    uses.close()
    assert (uses.pending, uses.owed, uses.late, uses.ahead, uses.is_closed) == ({}, {}, {}, {}, True)


@pytest.mark.parametrize(
    ("kind", "extents", "expected"),
    [
        (Kind.ALLGATHER, (0, 3), True),
        (Kind.ALLGATHER, (0, -1), False),
        (Kind.ALLREDUCE, (), True),
        (Kind.ADD_SET, (0, 3), True),
        (Kind.ADD_SET, (), False),
        (Kind.ADD_SET, (0, 4), False),
        (Kind.ADD_SET, (1, 0), False),
        (Kind.REMOVE_SET, (7,), True),
        (Kind.REMOVE_SET, (6,), False),
        (Kind.REMOVE_SET, (7, 7), False),
        (Kind.JOIN, (), True),
        (Kind.JOIN, (0,), False),
    ],
)
def test_extents_have_a_meaning_by_kind(kind: Kind, extents: tuple[int, ...], *, expected: bool) -> None:
    assert have_meaning(kind, extents, size=4, numbers={7}) is expected
