"""What the stories and laws of the rules do not show: values, cases by kind, and what a question costs."""

import copy

import pytest

from tests.rendezvous.counting import count_steps
from tests.worker_runtime.core.transcript import play
from worker_runtime.core.ordering import IllegalQuestionError, Ordering, Pending
from worker_runtime.core.questions import Failure, Kind, Question, Reduction, Refusal, Release, Signature

LOSS = Question(0, "allreduce.loss", Signature(Kind.ALLREDUCE, ("float32",), ((),), Reduction.SUM))
JOIN = Question(0, "join", Signature(Kind.JOIN))


def test_a_release_carries_the_question_and_the_members() -> None:
    ordering = Ordering(2)
    assert ordering.ask(0, LOSS) == []
    assert ordering.ask(1, copy.deepcopy(LOSS)) == [Release(0, LOSS, (0, 1))]
    assert ordering.find_pending() == []


def test_a_job_of_one_rank_is_answered_at_once() -> None:
    ordering = Ordering(1)
    assert ordering.ask(0, LOSS) == [Release(0, LOSS, (0,))]
    assert ordering.ask(0, JOIN) == [Release(1, JOIN, (0,))]
    assert ordering.find_members(0) == (0,)


def test_what_is_pending_is_told_oldest_first_with_who_is_missing() -> None:
    ordering = Ordering(4)
    other = Question(0, "allreduce.other", LOSS.signature)
    ordering.ask(2, LOSS)
    ordering.ask(0, LOSS)
    ordering.ask(0, other)
    ordering.ask(3, JOIN)
    assert ordering.find_pending() == [
        Pending(LOSS, (0, 2), (1,), 0),
        Pending(other, (0,), (1, 2), 1),
        Pending(JOIN, (3,), (0, 1, 2), 2),
    ]


def test_two_uses_of_one_name_are_told_apart_while_they_wait() -> None:
    ordering = Ordering(2)
    ordering.ask(0, LOSS)
    (first,) = ordering.find_pending()
    ordering.ask(1, LOSS)
    ordering.ask(0, LOSS)
    (second,) = ordering.find_pending()
    assert (first.question, first.asked) == (second.question, second.asked)
    assert first.number != second.number


def test_for_one_that_has_vanished_all_wait_and_nothing_that_it_has_asked_counts() -> None:
    ordering = Ordering(3)
    other = Question(0, "allreduce.other", LOSS.signature)
    ordering.ask(1, LOSS)
    ordering.ask(0, LOSS)
    ordering.ask(1, other)
    ordering.ask(1, JOIN)
    ordering.vanish(1)
    ordering.vanish(1)
    assert [(each.asked, each.missing) for each in ordering.find_pending()] == [((0,), (1, 2))]
    assert ordering.ask(2, LOSS) == []
    assert ordering.wait(0, 0, LOSS.name, is_blocked=True) + ordering.wait(2, 0, LOSS.name, is_blocked=True) == []
    (refusal,) = ordering.leave(1)
    assert isinstance(refusal, Refusal)
    assert refusal.ranks == (0, 2)
    ordering.vanish(1)
    with pytest.raises(IllegalQuestionError):
        ordering.vanish(3)


def test_one_that_has_vanished_may_be_lost() -> None:
    ordering = Ordering(2)
    ordering.vanish(1)
    ordering.ask(0, LOSS)
    assert ordering.lose(1, "it failed") == [Failure("rank 1 was lost: it failed")]
    ordering.vanish(0)


def test_an_answer_is_a_list_of_its_own() -> None:
    ordering = Ordering(3)
    ordering.ask(0, LOSS).append(Refusal(0, "x", (0,), "mine"))
    assert ordering.ask(1, LOSS) == []


@pytest.mark.parametrize("kind", sorted(set(Kind) - {Kind.JOIN, Kind.ADD_SET, Kind.REMOVE_SET}))
@pytest.mark.parametrize("tolerant", ["no", "yes"])
def test_a_joined_rank_is_tolerated_by_kind_or_by_what_the_signature_says(kind: Kind, tolerant: str) -> None:
    (answer,) = play("size 2", "join 1", f"ask 0 x kind={kind.name} tolerant={tolerant}")
    if tolerant == "yes" or kind in (Kind.ALLREDUCE, Kind.COMMIT):
        assert isinstance(answer, Release)
        assert answer.joined == (1,)
    else:
        assert isinstance(answer, Refusal)
        assert answer.ranks == (0,)
        assert answer.reason.startswith(f"{kind.name} is not supported with Join at this time")


@pytest.mark.parametrize("reduction", list(Reduction))
def test_every_reduction_tolerates_a_joined_rank(reduction: Reduction) -> None:
    (answer,) = play("size 2", "join 1", f"ask 0 allreduce.x op={reduction.name}")
    assert isinstance(answer, Release)


@pytest.mark.parametrize(
    "illegal",
    [
        "ask 0 allreduce.x",
        "ask 2 allreduce.y",
        "ask 0 allreduce.y set=1",
        "ask 0 allgather.y extents=-1",
        "ask 0 allreduce.y kind=JOIN",
        "ask 0 join kind=BARRIER",
        "add 0 1,0",
        "remove 0 1",
        "leave 2",
        "lose 2 gone",
    ],
)
def test_what_is_illegal_raises(illegal: str) -> None:
    with pytest.raises(IllegalQuestionError):
        play("size 2", "ask 0 allreduce.x", illegal)


def test_what_is_illegal_changes_nothing() -> None:
    ordering = Ordering(2)
    ordering.ask(0, LOSS)
    before = copy.deepcopy(vars(ordering))
    with pytest.raises(IllegalQuestionError, match=r"rank 0 has asked allreduce\.loss of process set 0 already"):
        ordering.ask(0, LOSS)
    assert vars(ordering) == before


def test_the_steady_state_leaves_nothing_behind() -> None:
    ordering = Ordering(3)
    questions = [Question(0, f"allreduce.{number}", LOSS.signature) for number in range(50)]
    for rank in range(3):
        for question in questions:
            ordering.ask(rank, question)
    state = copy.deepcopy(vars(ordering))
    for rank in range(3):
        for question in questions:
            ordering.ask(rank, question)
    changed = {key for key, value in vars(ordering).items() if value != state[key]}
    assert changed == {"_next_index", "_next_number"}


def test_a_question_costs_no_more_while_a_thousand_others_wait() -> None:
    idle, busy = Ordering(2), Ordering(2)
    for number in range(1000):
        busy.ask(0, Question(0, f"allreduce.{number}", LOSS.signature))

    def count(ordering: Ordering) -> int:
        return count_steps(lambda: (ordering.ask(0, LOSS), ordering.ask(1, LOSS)))

    assert count(busy) == count(idle)
