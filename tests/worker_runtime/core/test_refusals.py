"""The sentences in which an operation is refused."""

import pytest

from worker_runtime.core.questions import Kind, Question, Signature
from worker_runtime.core.refusals import (
    explain_deadlock,
    explain_given_up,
    explain_join,
    explain_removal,
    explain_shutdown,
    name_operation,
    name_ranks,
)

GATHER = Question(0, "allgather.loss", Signature(Kind.ALLGATHER))


@pytest.mark.parametrize(
    ("number", "name", "expected"),
    [
        (0, "allreduce.loss", "allreduce 'loss'"),
        (0, "allreduce.layer.0.weight", "allreduce 'layer.0.weight'"),
        (0, "join", "join"),
        (3, "allgather.x", "allgather 'x' in process set 3"),
    ],
)
def test_an_operation_is_called_as_in_the_program(number: int, name: str, expected: str) -> None:
    assert name_operation(Question(number, name, Signature(Kind.ALLREDUCE))) == expected


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [
        ([2], "rank 2"),
        ([3, 1], "ranks 1, 3"),
        (range(6), "ranks 0, 1, 2, 3, 4, 5"),
        (range(7), "ranks 0, 1, 2, 3, 4, 5 ..."),
    ],
)
def test_few_of_many_ranks_are_named(ranks: list[int], expected: str) -> None:
    assert name_ranks(ranks) == expected


def test_a_join_is_told_in_horovods_words() -> None:
    assert "ALLGATHER is not supported with Join at this time" in explain_join(GATHER, [2])
    assert "rank 2 has joined" in explain_join(GATHER, [2])
    assert "ranks 0, 2 have joined" in explain_join(GATHER, [2, 0])


def test_a_shutdown_is_told_in_horovods_words() -> None:
    assert explain_shutdown(GATHER, [1]).startswith(
        "Horovod has been shut down on rank 1, and allgather 'loss' needs it."
    )
    assert "on ranks 1, 2, and allgather 'loss' needs them." in explain_shutdown(GATHER, [2, 1])


def test_a_removal_names_the_set() -> None:
    assert "allgather 'loss' cannot run: process set 4 has been removed." in explain_removal(GATHER, 4)


def test_a_deadlock_says_what_each_rank_waits_for() -> None:
    other = Question(1, "barrier", Signature(Kind.BARRIER))
    text = explain_deadlock({2: GATHER, 0: GATHER, 1: other}, [3])
    assert text.startswith(
        "Mismatched operations: every rank waits for another: ranks 0, 2 wait for allgather 'loss'; "
        "rank 1 waits for barrier in process set 1; rank 3 waits for all others to join. "
    )


def test_of_a_deadlock_of_many_a_few_are_named() -> None:
    questions = {rank: Question(0, f"allreduce.{rank}", Signature(Kind.ALLREDUCE)) for rank in range(8)}
    text = explain_deadlock(questions, [])
    assert "rank 5 waits for allreduce '5'; ..." in text
    assert "rank 6" not in text


def test_who_gave_up_is_named_with_its_error() -> None:
    text = explain_given_up(2, "allgather.loss", 1, "ValueError: wrong")
    assert text.startswith("allgather 'loss' in process set 2 was given up on rank 1")
    assert text.endswith("ValueError: wrong")
