"""Who waits, by itself; how it serves the rules is in the transcripts and laws."""

from worker_runtime.core.questions import Kind, Question, Signature, Wanted
from worker_runtime.core.uses import Use
from worker_runtime.core.waits import Waits, list_oldest_first


def begin(number: int, *asked: int, note: str = "") -> Use:
    """A use in a set of ranks 0, 1, 2."""
    question = Question(1, f"x{number}", Signature(Kind.ALLREDUCE, note=note))
    return Use(number, question, (0, 1, 2), dict.fromkeys(asked, question))


def test_who_is_blocked_is_idle_too_until_its_answer_comes() -> None:
    waits, use = Waits(), begin(0, 0, 1)
    waits.begin(0, use, is_blocked=False)
    waits.begin(1, use, is_blocked=True)
    assert (list(waits.idle), list(waits.blocked)) == ([0, 1], [1])
    waits.end(use)
    assert waits == Waits()


def test_a_rank_that_waits_for_something_else_by_then_goes_on_waiting() -> None:
    waits, former, later = Waits(), begin(0, 0), begin(1, 0)
    waits.begin(0, former, is_blocked=True)
    waits.begin(0, later, is_blocked=True)
    waits.end(former)
    assert waits.blocked == {0: later}
    waits.stop(0)
    assert waits == Waits()


def test_what_is_waited_for_is_told_once_oldest_first_to_those_that_are_missed_and_have_not_joined() -> None:
    waits = Waits()
    waits.begin(0, begin(4, 0, note="thrown away"), is_blocked=False)
    waits.begin(1, begin(3, 1), is_blocked=False)
    assert waits.call_for_help({2}) == [Wanted(0, 1, "x3", ""), Wanted(1, 1, "x4", "thrown away")]
    assert waits.call_for_help({2}) == []
    assert [use.number for use in list_oldest_first(waits.idle)] == [3, 4]
