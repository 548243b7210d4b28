"""A loss interrupts those who are left, once, or ends the job where it may not go on."""

import pytest

from rendezvous.core.effects import Interrupt, Terminate
from rendezvous.core.losses import interrupt, lose_host, lose_late, lose_silent
from rendezvous.core.outcome import Cause
from rendezvous.core.records import Standing
from rendezvous.core.staffing import find_newcomers
from rendezvous.core.state import Phase
from tests.rendezvous.core.transcript import play

THREE = ("policy min=1 max=3 failures=any lease=5", "tick 7", "hosts a:2 b:1", "join a:0", "join a:1", "join b:0")


def test_a_generation_is_interrupted_once() -> None:
    state, effects = interrupt(play(*THREE), "something broke")
    assert effects == (Interrupt(1, "something broke"),)
    assert (state.phase, state.deadline) == (Phase.REFORMING, 67)
    assert interrupt(state, "something else") == (state, ())


def test_before_the_first_generation_there_is_nothing_to_interrupt() -> None:
    state = play(*THREE[:4])
    assert interrupt(state, "something broke") == (state, ())


def test_a_survivor_has_a_minute_or_twelve_leases_to_report() -> None:
    patient = play("policy min=1 max=3 failures=any lease=30", *THREE[1:])
    assert interrupt(patient, "something broke")[0].deadline == 7 + 360


def test_a_lost_host_is_not_in_use_any_more_and_closed() -> None:
    state, effects = lose_host(play(*THREE), "b", "it burnt")
    assert [type(effect).__name__ for effect in effects] == ["Dismiss", "Interrupt"]
    assert tuple(state.hosts) == ("a",)
    assert state.blame.find_closed(state.clock) == {"b": 10.0}
    assert state.failures == 1


def test_those_who_do_not_report_are_ended_without_grace_and_blamed() -> None:
    state = play(*THREE, "exit b:0 1", "join a:0 after=1 continue")
    state, effects = lose_silent(state, state.standing(Standing.MEMBER), 60.0)
    (end,) = (effect for effect in effects if isinstance(effect, Terminate))
    assert (str(end.worker), end.grace_seconds) == ("a:1", 0.0)
    assert state.workers[end.worker.slot].standing is Standing.LEAVING
    assert state.blame.count(end.worker.slot, state.clock, state.policy.recovery) == 1
    assert state.phase is Phase.RUNNING
    assert lose_silent(state, (), 60.0) == (state, ())


def test_newcomers_that_do_not_join_are_ended_and_blamed_and_nobody_is_interrupted() -> None:
    story = (*THREE, "declare a:0", "declare a:1", "declare b:0", "exit b:0 1", "join a:0 after=1 continue state")
    state = play(*story, "join a:1 after=1 continue state")
    state, effects = lose_late(state, find_newcomers(state))
    (end,) = effects
    assert isinstance(end, Terminate)
    assert (str(end.worker), end.is_loss) == ("b:0#2", True)
    assert end.reason.endswith("did not join them within 120 s (--start-timeout)")
    assert (state.phase, state.number, state.failures) == (Phase.RUNNING, 2, 2)
    assert state.blame.count(end.worker.slot, state.clock, state.policy.recovery) == 2
    assert lose_late(state, ()) == (state, ())


def test_a_newcomer_too_many_that_does_not_join_ends_a_job_that_may_lose_no_more() -> None:
    story = ("policy min=1 max=3 failures=1 lease=5", *THREE[1:], "declare a:0", "declare a:1", "declare b:0")
    state = play(*story, "exit b:0 1", "join a:0 after=1 continue state", "join a:1 after=1 continue state")
    state, _ = lose_late(state, find_newcomers(state))
    assert state.outcome is not None
    assert (state.outcome.exit_code, str(state.outcome.worker)) == (75, "b:0#2")


@pytest.mark.parametrize(
    ("policy", "story", "code"),
    [
        ("failures=any", ("exit a:0 3", "exit a:1 4", "exit b:0 5"), 3),
        ("failures=1", ("exit a:0 3", "exit a:1 4"), 4),
        ("failures=any", ("exit a:0 0", "exit a:1 4", "exit b:0 5"), 4),
        ("failures=any", ("exit a:0 0", "exit a:1 4", "exit b:0 0"), 4),
        ("failures=any", ("exit a:0 3", "exit a:1 0", "exit b:0 0"), 3),
        ("failures=any", ("exit a:0 3", "exit a:1 0", "lost b gone"), 3),
        ("failures=any", ("exit a:0 0", "exit b:0 4", "lost a gone"), 4),
        ("failures=any", ("lost a gone", "lost b gone"), 75),
        ("failures=2", ("lost a gone", "lost b gone"), 75),
    ],
)
def test_which_failure_decides(policy: str, story: tuple[str, ...], code: int) -> None:
    state = play(f"policy min=1 max=3 {policy}", *THREE[1:], *story)
    assert state.outcome is not None
    assert state.outcome.exit_code == code


def test_once_a_worker_has_ended_well_a_loss_ends_nobody() -> None:
    for loss in ("exit b:0 4", "lost b gone"):
        state = play("policy min=1 max=3 failures=any lease=5", *THREE[1:], "exit a:0 0", loss)
        assert (state.outcome, state.deadline) == (None, None)
        (left,) = state.alive()
        assert (str(left.worker), left.standing) == ("a:1", Standing.MEMBER)


def test_before_the_first_generation_no_more_may_fail_than_closes_every_slot() -> None:
    story = ["policy min=1 max=1 failures=any per_slot=2 forgive=0.5 lease=60", "tick 0", "hosts a:1"]
    for number in range(2):
        story += [f"exit a:0#{number + 1} {number + 1}".replace("#1 ", " "), f"tick {number + 1}"]
        assert play(*story).outcome is None
    state = play(*story, "exit a:0#3 3")
    assert state.outcome is not None
    assert (state.outcome.cause, state.outcome.exit_code) == (Cause.WORKER_FAILED, 3)
