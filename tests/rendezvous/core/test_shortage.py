"""How long a job waits for slots to start with, and for workers to go on."""

from rendezvous.core.outcome import Cause
from rendezvous.core.shortage import watch_start, watch_workers
from tests.rendezvous.core.transcript import play

START = ("policy min=2 max=4 np=3 failures=any elastic=20 lease=60", "tick 0")


def test_slots_are_counted_before_anything_is_started() -> None:
    state = play(*START, "hosts a:2", "tick 10", "tick 20")
    assert (state.short_since, watch_start(state)[1]) == (0, None)
    state = play(*START, "hosts a:2", "tick 10", "tick 20", "tick 20.25")
    assert state.outcome is not None
    assert (state.outcome.cause, state.outcome.exit_code) == (Cause.START_TIMED_OUT, 124)
    assert "needs 3 slots to start, and there were only 2 for 20 s" in state.outcome.reason


def test_workers_count_when_their_agent_has_been_heard() -> None:
    story = (*START, "hosts a:3", "tick 10")
    assert play(*story).short_since == 10
    assert play(*story, "report a running a:0 a:1 a:2", "tick 11").short_since is None
    state = play(*story, "tick 20", "tick 30", "tick 30.25")
    assert state.outcome is not None
    assert "needs 2 workers to start, and there were only 0 for 20 s" in state.outcome.reason


def test_enough_is_enough() -> None:
    state = play(*START, "hosts a:3", "report a")
    assert watch_start(state) == (state, None)


def test_nobody_has_waited_who_was_not_short() -> None:
    state = play(*START, "hosts a:3", "join a:0", "join a:1", "join a:2")
    assert watch_workers(state, 1) is None
