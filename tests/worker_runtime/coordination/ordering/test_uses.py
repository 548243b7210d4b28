"""Uses of names by themselves; how they serve the rules is in the transcripts and laws."""

from worker_runtime.coordination.ordering.questions import Kind, Question, Signature
from worker_runtime.coordination.ordering.uses import Use, Uses


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
