"""The same error at the same step is counted; anything else restarts the count."""

from dataclasses import replace

from rendezvous.core import membership
from rendezvous.core.failures import MOST_ERRORS, MOST_REPETITIONS, CrashLoop
from rendezvous.core.messages import Exited
from rendezvous.core.model import Slot, Worker
from rendezvous.core.reports import CompletedOperation, PendingOperation, Report
from rendezvous.core.rounds import MOST_PAUSE_SECONDS
from tests.rendezvous.core.transcript import play

MEMBERS = (Worker(Slot("a", 0), 1), Worker(Slot("a", 1), 1))


def report(error: str = "", *, submitted: int = 0, done: int = 0, commits: int = 0) -> Report:
    pending = (PendingOperation((0, 1), "commit.1", "commit", submitted),)
    completed = (CompletedOperation((0, 1), "commit.1", 0, done),)
    return Report(error=error, pending=pending, completed=completed, commits=commits)


def test_the_same_error_at_the_same_step_ends_the_job_at_the_limit() -> None:
    crash_loop = CrashLoop()
    for repetitions in range(1, MOST_REPETITIONS + 1):
        assert crash_loop.reason_to_end is None
        crash_loop = crash_loop.count(MEMBERS, (report(), report("it broke", submitted=7)))
        assert crash_loop.repetitions == repetitions
    assert crash_loop.reason_to_end == "it broke; the same has happened 3 times in a row, with no step in between"


def test_a_step_another_error_other_members_and_a_loss_restart_the_count() -> None:
    twice = CrashLoop("it broke", MEMBERS, 7, 2)
    assert twice.count(MEMBERS, (report("it broke", submitted=8), report())).repetitions == 1
    assert twice.count(MEMBERS, (report("it burnt", submitted=7), report())).repetitions == 1
    assert twice.count(MEMBERS[::-1], (report("it broke", submitted=7), report())).repetitions == 1
    assert twice.count(MEMBERS, (report("it broke", submitted=7),)).repetitions == 0
    assert twice.count(MEMBERS, (report(), report())).repetitions == 0


def test_errors_that_differ_in_digits_are_the_same() -> None:
    former = CrashLoop("rank 0 of generation 9 did not reach 10.0.0.1:4711", MEMBERS, 0, 1, 1)
    reports = (report("rank 1 of generation 10 did not reach 10.0.0.12:5"), report())
    assert former.count(MEMBERS, reports).repetitions == 2


def test_different_errors_at_the_same_step_end_the_job_at_a_higher_limit() -> None:
    crash_loop = CrashLoop()
    for errors, letter in zip(range(1, MOST_ERRORS + 1), "abcdef", strict=True):
        assert crash_loop.reason_to_end is None
        crash_loop = crash_loop.count(MEMBERS, (report(letter), report()))
        assert (crash_loop.repetitions, crash_loop.errors) == (1, errors)
    assert crash_loop.reason_to_end == "f; it was the last of 6 errors in a row, with no step in between"
    assert crash_loop.count(MEMBERS, (report("g", submitted=1), report())).errors == 1


def test_a_state_that_was_committed_after_a_step_is_progress() -> None:
    twice = CrashLoop("it broke", MEMBERS, 10, 2, 2, commits=3)
    assert twice.count(MEMBERS, (report("it broke", done=10, commits=5), report())).repetitions == 1
    assert twice.count(MEMBERS, (report("it broke", done=10, commits=3), report())).repetitions == 3
    # A commit that is repeated at the same place, without a step, is no progress.
    assert twice.count(MEMBERS, (report("it broke", commits=4), report())).repetitions == 3
    alone = CrashLoop("it broke", MEMBERS[:1], 0, 2, 2, commits=3)
    assert alone.count(MEMBERS[:1], (report("it broke", commits=4),)).repetitions == 1


def test_rounds_that_are_numbered_again_after_a_restore_are_no_progress() -> None:
    assert CrashLoop("it broke", MEMBERS, 7, 1).count(MEMBERS, (report("it broke", done=2), report())).repetitions == 2


def test_the_pause_before_a_restart_has_a_limit_however_often_the_program_has_failed() -> None:
    begun = play("policy size=1 restarts=any", "tick 0", "hosts a:1", "report all")
    state, _ = membership.step(replace(begun, quick_rounds=5000), Exited(Worker(Slot("a", 0), 1), -11))
    assert state.restart is not None
    assert state.restart.at == MOST_PAUSE_SECONDS
