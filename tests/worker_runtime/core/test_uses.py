"""Uses of names by themselves; how they serve the rules is in the transcripts and laws."""

import pytest

from worker_runtime.core.questions import Kind, Question, Signature
from worker_runtime.core.uses import Use, Uses, have_meaning


def begin(*asked: int, kind: Kind = Kind.ALLREDUCE, name: str = "x") -> Use:
    """A use in a set of ranks 0, 2, 4."""
    question = Question(1, name, Signature(kind))
    return Use(0, question, (0, 2, 4), dict.fromkeys(asked, question))


def test_a_refusal_is_owed_once_to_each_that_has_not_asked() -> None:
    uses = Uses((0, 2, 4))
    uses.owe("x", "first", excused={0})
    uses.owe("x", "second", excused={0, 4})
    assert [uses.pay(2, "x"), uses.pay(2, "x"), uses.pay(2, "x")] == ["first", "second", None]
    assert [uses.pay(0, "x"), uses.pay(4, "y")] == [None, None]
    assert [uses.pay(4, "x"), uses.pay(4, "x")] == ["first", None]
    assert uses.owed == {}


def test_who_is_excused_is_owed_nothing_and_late_for_nothing() -> None:
    uses = Uses((0, 2, 4))
    uses.owe("x", "reason", excused={0})
    uses.note_deadlock(begin(0), excused=())
    uses.excuse(2)
    assert [uses.pay(2, "x"), uses.pay(4, "x")] == [None, "reason"]
    assert [uses.is_late(begin(2)), uses.is_late(begin(4))] == [False, True]


def test_late_is_a_question_of_those_alone_that_had_not_asked_in_a_deadlock() -> None:
    uses = Uses((0, 2, 4))
    assert not uses.is_late(begin(2))
    uses.note_deadlock(begin(0), excused={4})
    assert uses.is_late(begin(2))
    assert not uses.is_late(begin(2, name="y"))
    assert not uses.is_late(begin(0, 2))
    assert not uses.is_late(begin(4))
    uses.note_deadlock(begin(2), excused=(0, 4))
    assert not uses.is_late(begin(2))


def test_a_closed_set_forgets_all() -> None:
    uses = Uses((0, 2, 4))
    uses.pending["x"] = begin(0)
    uses.owe("x", "reason", excused={0})
    uses.note_deadlock(begin(0), excused=())
    uses.ahead["x"] = [(0, "reason")]
    uses.close()
    assert (uses.pending, uses.owed, uses.late, uses.ahead, uses.is_closed) == ({}, {}, {}, {}, True)


@pytest.mark.parametrize("kind", list(Kind))
def test_allreduce_and_commit_tolerate_joined_ranks(kind: Kind) -> None:
    use = begin(0, kind=kind)
    assert (use.find_intolerant() is None) == (kind in (Kind.ALLREDUCE, Kind.COMMIT))


@pytest.mark.parametrize("kind", list(Kind))
def test_others_tolerate_joined_ranks_where_they_say_so_save_those_of_the_job(kind: Kind) -> None:
    question = Question(1, "x", Signature(kind, tolerates_joined=True))
    use = Use(0, question, (0, 2), {0: question})
    assert (use.find_intolerant() is None) == (kind not in (Kind.JOIN, Kind.ADD_SET, Kind.REMOVE_SET))


def test_whatever_one_rank_asks_decides_whether_joined_ranks_are_tolerated() -> None:
    use = begin(0)
    use.asked[2] = Question(1, "x", Signature(Kind.BARRIER))
    assert use.find_intolerant() is use.asked[2]


def test_extents_are_in_the_order_of_members_with_zeros_for_who_is_absent() -> None:
    use = begin(4, 0)
    assert use.collect_extents() == ()
    use.extents = {4: (5, 6), 0: (1, 2)}
    assert use.collect_extents() == ((1, 2), (0, 0), (5, 6))
    assert use.find_absent() == [2]


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
