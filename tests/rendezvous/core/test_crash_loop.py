"""The same trouble at the same place is counted, and anything else begins the count anew."""

from rendezvous.core.failures import MOST_REPETITIONS, MOST_TROUBLES, CrashLoop
from rendezvous.core.model import Slot, Worker
from rendezvous.core.reports import CompletedOperation, PendingOperation, Report

MEMBERS = (Worker(Slot("a", 0), 1), Worker(Slot("a", 1), 1))


def report(trouble: str = "", *, asked: int = 0, done: int = 0, commits: int = 0) -> Report:
    pending = (PendingOperation((0, 1), "commit.1", "commit", asked),)
    completed = (CompletedOperation((0, 1), "commit.1", 0, done),)
    return Report(error=trouble, pending=pending, completed=completed, commits=commits)


def test_the_same_again_and_again_is_hopeless() -> None:
    crash_loop = CrashLoop()
    for count in range(1, MOST_REPETITIONS + 1):
        assert crash_loop.reason_to_end is None
        crash_loop = crash_loop.note(MEMBERS, (report(), report("it broke", asked=7)))
        assert crash_loop.count == count
    assert crash_loop.reason_to_end == "it broke; the same has happened 3 times in a row, with no step in between"


def test_a_step_another_trouble_other_members_or_a_loss_begin_anew() -> None:
    twice = CrashLoop("it broke", MEMBERS, 7, 2)
    assert twice.note(MEMBERS, (report("it broke", asked=8), report())).count == 1
    assert twice.note(MEMBERS, (report("it burnt", asked=7), report())).count == 1
    assert twice.note(MEMBERS[::-1], (report("it broke", asked=7), report())).count == 1
    assert twice.note(MEMBERS, (report("it broke", asked=7),)).count == 0
    assert twice.note(MEMBERS, (report(), report())).count == 0


def test_numbers_make_no_other_trouble() -> None:
    former = CrashLoop("rank 0 of generation 9 did not reach 10.0.0.1:4711", MEMBERS, 0, 1, 1)
    assert former.note(MEMBERS, (report("rank 1 of generation 10 did not reach 10.0.0.12:5"), report())).count == 2


def test_ever_new_trouble_is_hopeless_too_after_a_while() -> None:
    crash_loop = CrashLoop()
    for count, letter in zip(range(1, MOST_TROUBLES + 1), "abcdef", strict=True):
        assert crash_loop.reason_to_end is None
        crash_loop = crash_loop.note(MEMBERS, (report(letter), report()))
        assert (crash_loop.count, crash_loop.troubles) == (1, count)
    assert crash_loop.reason_to_end == "f; it was the last of 6 troubles in a row, with no step in between"
    assert crash_loop.note(MEMBERS, (report("g", asked=1), report())).troubles == 1


def test_a_state_that_was_committed_after_a_step_is_progress_although_rounds_are_counted_anew() -> None:
    twice = CrashLoop("it broke", MEMBERS, 10, 2, 2, commits=3)
    assert twice.note(MEMBERS, (report("it broke", done=10, commits=5), report())).count == 1
    assert twice.note(MEMBERS, (report("it broke", done=10, commits=3), report())).count == 3
    # A commit that comes again at the same place, without a step, is none.
    assert twice.note(MEMBERS, (report("it broke", commits=4), report())).count == 3
    alone = CrashLoop("it broke", MEMBERS[:1], 0, 2, 2, commits=3)
    assert alone.note(MEMBERS[:1], (report("it broke", commits=4),)).count == 1


def test_rounds_that_are_counted_anew_after_a_restore_are_no_progress() -> None:
    assert CrashLoop("it broke", MEMBERS, 7, 1).note(MEMBERS, (report("it broke", done=2), report())).count == 2
