"""Which error of a collective blames another part of the job, and which one."""

import pytest

from worker_runtime.coordination.ordering.ordering import PendingSummary
from worker_runtime.coordination.ordering.refusals import explain_shutdown
from worker_runtime.coordination.ordering.requests import GLOBAL_SET, Kind, Request, Signature
from worker_runtime.coordination.sequencer.stalls import describe_stall_limit
from worker_runtime.errors import (
    DeadlockError,
    NotFiniteError,
    OperationFailedError,
    OperationRefusedError,
    ReplicasDifferError,
)
from worker_runtime.membership.blame import find_blame
from worker_runtime.rendezvous import Blame

REQUEST = Request(GLOBAL_SET, "allreduce.gradient", Signature(Kind.ALLREDUCE))


def test_a_rank_that_has_left_is_blamed() -> None:
    text = explain_shutdown(REQUEST, {2: "ended with 0 at train.py:7"}, {})
    reason = "rank 2 ended with 0 at train.py:7, and allreduce 'gradient' needs it"
    assert find_blame(OperationRefusedError(text)) == Blame(reason, (2,))


def test_several_ranks_that_have_left_are_blamed() -> None:
    blame = find_blame(OperationRefusedError(explain_shutdown(REQUEST, {2: "ended", 1: "ended", 5: ""}, {})))
    assert blame is not None
    assert blame.ranks == (1, 2, 5)


def test_ranks_that_a_stalled_operation_has_waited_for_are_blamed() -> None:
    pending = PendingSummary(REQUEST, asked=(1,), missing=(0, 2))
    text = describe_stall_limit([(pending, 5.0)], 4.0)
    assert text is not None
    reason = "allreduce 'gradient' waited for ranks 0, 2 for more than 4 seconds, the stall limit"
    assert find_blame(OperationFailedError("allreduce 'gradient'", 1, text)) == Blame(reason, (0, 2))


def test_another_rank_that_was_cut_off_is_blamed() -> None:
    cause = "rank 1 was cut off: its connection to the sequencer ended"
    assert find_blame(OperationFailedError("allreduce 'x'", 0, cause)) == Blame(cause, (1,))


def test_the_rank_whose_gradient_is_not_finite_is_blamed_by_all() -> None:
    text = "rank 2's gradient of fc.weight is not finite (NaN) in step 3"
    assert find_blame(NotFiniteError(text)) == Blame(text, (2,))


def test_the_ranks_that_differ_from_most_are_blamed() -> None:
    error = ReplicasDifferError("fc.weight", 3, 2, [1], 3)
    assert find_blame(error) == Blame(str(error), (1,))
    assert find_blame(ReplicasDifferError("fc.weight", 3, 2)) is None


_EACH = ". Each operation must be called, under the same name, by all members of its process set."


@pytest.mark.parametrize(
    ("groups", "ranks"),
    [
        ("rank 1 waits for allreduce 'a'; ranks 0, 2 wait for allreduce 'b'", (1,)),
        ("ranks 0, 3, 4 wait for allreduce 'a'; ranks 1, 2 wait for broadcast 'b'", (1, 2)),
        ("ranks 0, 2, 3, 4 ... wait for allreduce 'a'; rank 1 waits for allreduce 'b'", (1,)),
    ],
)
def test_of_ranks_that_wait_for_each_other_those_that_are_not_where_most_are_are_blamed(
    groups: str, ranks: tuple[int, ...]
) -> None:
    reason = f"every rank waits for another: {groups}"
    assert find_blame(DeadlockError(f"Mismatched operations: {reason}{_EACH}")) == Blame(reason, ranks)


@pytest.mark.parametrize(
    "groups",
    [
        "rank 0 waits for allreduce 'a'; rank 1 waits for allreduce 'b'",
        "rank 0 waits for allreduce 'a'; rank 1 waits for allreduce 'b'; ranks 2, 3 wait for allreduce 'c'",
        "rank 0 waits for allreduce 'a'; ranks 1, 2 wait for all others to join",
        "ranks 0, 1 ... wait for allreduce 'a'; ranks 2, 3 ... wait for allreduce 'b'",
    ],
)
def test_without_a_majority_no_rank_is_blamed_for_a_deadlock(groups: str) -> None:
    assert find_blame(DeadlockError(f"Mismatched operations: every rank waits for another: {groups}{_EACH}")) is None


@pytest.mark.parametrize(
    "cause", ["the sequencer has ended", "rank 0 was cut off: its connection to the sequencer broke"]
)
def test_no_rank_is_blamed_for_the_end_of_the_sequencer_or_of_the_way_to_it(cause: str) -> None:
    assert find_blame(OperationFailedError("allreduce 'x'", 0, cause)) == Blame(cause)


@pytest.mark.parametrize(
    "error",
    [
        None,
        ValueError("rank 1 ended, and allreduce 'x' needs it."),
        DeadlockError("rank 1 ended, and allreduce 'x' needs it."),
        OperationRefusedError("Mismatched data types: allreduce 'x' has float32 on rank 0 and int32 on rank 1."),
        OperationFailedError("allreduce 'x'", 0, "out of memory"),
    ],
)
def test_other_errors_blame_nothing(error: Exception | None) -> None:
    assert find_blame(error) is None
