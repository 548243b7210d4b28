"""Workers that are given up are ended at once, and their slots blamed."""

from rendezvous.core.abandonment import abandon, blame_slot
from rendezvous.core.model import Worker
from rendezvous.core.outcome import Outcome, fail_to_report
from rendezvous.core.records import Standing
from tests.rendezvous.core.transcript import play

THREE = ("policy min=1 max=3 failures=any", "tick 7", "hosts a:2 b:1", "join a:0", "join a:1", "join b:0")


def explain(worker: Worker, rank: int) -> Outcome:
    return fail_to_report(worker, rank, 60)


def test_each_is_ended_for_its_own_reason_and_the_first_says_how_the_job_would_end() -> None:
    state = play(*THREE)
    records = state.on("a")
    state, effects, outcome = abandon(state, records, explain)
    assert [(str(end.worker), end.grace_seconds, end.is_loss) for end in effects] == [
        ("a:0", 0, True),
        ("a:1", 0, True),
    ]
    assert [record.standing for record in state.on("a")] == [Standing.LEAVING] * 2
    assert outcome is not None
    assert outcome.reason == effects[0].reason == "rank 0 (a:0) did not join the others again within 60 s"
    assert state.failures == 2


def test_one_that_counts_for_enough_failures_closes_its_host() -> None:
    state, _, _ = abandon(play(*THREE), play(*THREE).on("b"), explain, weight=3)
    assert state.blame.find_closed(state.clock) == {"b": 10.0}


def test_nobody_given_up_is_no_reason_to_end() -> None:
    state = play(*THREE)
    assert abandon(state, (), explain) == (state, (), None)


def test_a_slot_that_is_not_offered_is_blamed_alone() -> None:
    state = play(*THREE, "hosts a:2")
    (record,) = state.on("b")
    blamed = blame_slot(state, record.worker.slot, 3)
    assert blamed.blame.find_closed(blamed.clock) == {}
    assert blamed.blame.count(record.worker.slot, blamed.clock, blamed.policy.recovery) == 3
