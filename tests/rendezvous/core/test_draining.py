"""While a job drains, its outcome stands, its deadline never moves back, and orders to end are repeated."""

import pytest

from rendezvous.core.draining import enter, handle
from rendezvous.core.effects import Finish, Terminate
from rendezvous.core.outcome import stop
from rendezvous.core.state import Phase
from tests.rendezvous.core.commands import parse_event
from tests.rendezvous.core.transcript import play

OUTCOME = stop(130, "interrupted")
PLACED = ("policy size=2 grace=5 lease=30", "tick 100", "hosts a:1 b:1")


def test_whoever_is_left_is_ended_with_grace() -> None:
    state, effects = enter(play(*PLACED, "exit a:0 0"), OUTCOME)
    assert [(str(e.worker), e.grace_seconds) for e in effects if isinstance(e, Terminate)] == [("b:0", 5)]
    assert (state.phase, state.deadline) == (Phase.DRAINING, 135)


def test_at_once_leaves_no_grace() -> None:
    state, effects = enter(play(*PLACED), OUTCOME, at_once=True)
    assert [e.grace_seconds for e in effects if isinstance(e, Terminate)] == [0, 0]
    assert state.deadline == 130


def test_with_nobody_left_the_job_is_over() -> None:
    state, effects = enter(play("policy size=1"), OUTCOME)
    assert (state.phase, effects) == (Phase.FINISHED, (Finish(OUTCOME),))


def test_a_second_signal_brings_the_deadline_forward_and_a_third_does_not_put_it_back() -> None:
    at_once = parse_event(["stop", "130", "interrupted", "at", "once"])
    state, _ = handle(play(*PLACED, "stop 143 terminated", "tick 103"), at_once)
    assert state.deadline == 133
    state, _ = handle(state, at_once)
    later, _ = handle(play(*PLACED, "stop 143 terminated at once", "tick 110"), at_once)
    assert (state.deadline, later.deadline) == (133, 130)


@pytest.mark.parametrize(("now", "grace_seconds"), [(100, 5), (103, 2), (105, 0), (110, 0)])
def test_a_repeated_order_carries_what_is_left_of_the_grace(now: float, grace_seconds: float) -> None:
    state = play(*PLACED, "exit a:0 1", f"tick {now}")
    _, effects = handle(state, parse_event(["report", "b", "running", "b:0"]))
    assert [e.grace_seconds for e in effects if isinstance(e, Terminate)] == [grace_seconds]


@pytest.mark.parametrize(("now", "phase"), [("135", Phase.DRAINING), ("135.1", Phase.FINISHED)])
def test_the_deadline_ends_the_job_when_it_has_passed(now: str, phase: Phase) -> None:
    state = play(*PLACED, "exit a:0 1", "tick 115", "report b running b:0", "tick 130", f"tick {now}")
    assert state.phase is phase
