"""The text of stall warnings and of the stall limit; the transcripts show it whole."""

import pytest

from worker_runtime.core.ordering import Pending
from worker_runtime.core.questions import Kind, Question, Signature
from worker_runtime.core.stalls import describe_stall, describe_stall_limit


def wait(name: str, asked: tuple[int, ...], missing: tuple[int, ...], seconds: float) -> tuple[Pending, float]:
    """A question that has waited for so long."""
    return Pending(Question(0, name, Signature(Kind.ALLREDUCE)), asked, missing), seconds


@pytest.mark.parametrize("describe", [describe_stall, describe_stall_limit])
def test_nothing_is_said_before_the_time(describe: object) -> None:
    assert callable(describe)
    assert describe([], 60) is None
    assert describe([wait("a", (0,), (1,), 60)], 60) is None
    assert describe([wait("a", (0,), (1,), 60.1)], 60) is not None


def test_a_warning_names_who_is_missing_and_for_what() -> None:
    text = describe_stall([wait("allreduce.a", (0,), (1, 2), 70), wait("allreduce.b", (0, 1), (2,), 65)], 60)
    assert text is not None
    assert text.startswith(
        "One or more tensors were submitted to be reduced, gathered or broadcasted by subset of ranks and are waiting "
        "for remainder of ranks for more than 60 seconds. "
    )
    assert text.splitlines()[1:] == [
        "Missing ranks:",
        "1: [allreduce.a], and waits itself for [allreduce.b]",
        "2: [allreduce.a, allreduce.b]",
    ]


def test_what_has_not_waited_long_is_not_missed_but_shown_as_what_a_missing_rank_waits_for() -> None:
    text = describe_stall([wait("allreduce.a", (0,), (1,), 70), wait("allreduce.b", (1,), (0,), 5)], 60)
    assert text is not None
    assert text.splitlines()[2:] == ["1: [allreduce.a], and waits itself for [allreduce.b]"]


def test_six_names_of_each_rank_are_shown() -> None:
    names = "abcdefg"
    six = describe_stall([wait(name, (0,), (1,), 70) for name in names[:6]], 60)
    seven = describe_stall([wait(name, (0,), (1,), 70) for name in names], 60)
    assert six is not None
    assert six.endswith("1: [a, b, c, d, e, f]")
    assert seven is not None
    assert seven.endswith("1: [a, b, c, d, e, f ...]")


def test_the_limit_marks_the_ranks_and_names_the_oldest_operation() -> None:
    text = describe_stall_limit([wait("allreduce.a", (0,), (1, 2), 130), wait("allreduce.b", (0,), (2,), 125)], 120)
    assert text is not None
    assert text.startswith(
        "allreduce 'a' and 1 more waited for ranks 1, 2 for more than 120 seconds, the stall limit. "
        "Horovod has been shut down."
    )
    assert text.splitlines()[2:] == ["1!: [allreduce.a]", "2!: [allreduce.a, allreduce.b]"]
