"""A loss interrupts those who are left, once, or ends the job where it may not continue."""

import pytest

from rendezvous.core.outcome import Cause
from rendezvous.core.rules import interrupt
from tests.rendezvous.core.transcript import play

THREE_JOINS = ("policy min=1 max=3 failures=any lease=5", "tick 7", "hosts a:2 b:1", "join a:0", "join a:1", "join b:0")


def test_a_survivor_has_a_minute_or_twelve_leases_to_report() -> None:
    patient = play("policy min=1 max=3 failures=any lease=30", *THREE_JOINS[1:])
    assert interrupt(patient.with_interruption("something broke"))[0].deadline == 7 + 360


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
def test_the_first_unrecovered_failure_decides(policy: str, story: tuple[str, ...], code: int) -> None:
    state = play(f"policy min=1 max=3 {policy}", *THREE_JOINS[1:], *story)
    assert state.outcome is not None
    assert state.outcome.exit_code == code


def test_before_the_first_generation_no_more_may_fail_than_closes_every_slot() -> None:
    story = ["policy min=1 max=1 failures=any per_slot=2 forgive=0.5 lease=60", "tick 0", "hosts a:1"]
    for number in range(2):
        story += [f"exit a:0#{number + 1} {number + 1}".replace("#1 ", " "), f"tick {number + 1}"]
        assert play(*story).outcome is None
    state = play(*story, "exit a:0#3 3")
    assert state.outcome is not None
    assert (state.outcome.cause, state.outcome.exit_code) == (Cause.WORKER_FAILED, 3)


PAIR = ("policy min=1 max=2 failures=any", "tick 0", "hosts a:1 b:1", "join all")


def test_a_host_that_is_lost_just_after_its_workers_is_closed_though_this_is_no_failure() -> None:
    state = play(*PAIR, "exit b:0 -9", "lost b gone")
    assert (list(state.blacklist.hosts), state.failures) == (["b"], 1)  # the failure is the worker's


@pytest.mark.parametrize("goes", ["hosts a:1", "notice b"])
def test_a_host_that_the_job_leaves_may_be_lost(goes: str) -> None:
    leaving = (*PAIR, "declare all", goes, "tick 1", "join a:0 b:0 after=1 resize state")
    state = play(*leaving, "lost b gone")
    assert (list(state.hosts), dict(state.blacklist.hosts), state.failures, state.losses) == (["a"], {}, 0, ())
