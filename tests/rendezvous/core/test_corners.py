"""What no story shows: odd combinations, and what other rooms ask of a state."""

from dataclasses import replace

import pytest

from rendezvous.core.losses import is_lost
from rendezvous.core.membership import advance
from rendezvous.core.outcome import Cause
from rendezvous.core.reports import Action
from rendezvous.core.scheduling import compose
from tests.rendezvous.core.transcript import Player, play

PLACED = ("policy size=2 lease=30 start=20", "tick 100", "hosts a:1 b:1")
TRIO = ("policy min=2 max=3 failures=any", "hosts a:3", "join all")
DECLARED = ("policy min=1 max=4 failures=any gather=5 lease=60", "tick 0", "hosts a:2", "join all", "declare all")


def run(*commands: str) -> list[str]:
    """What followed from the last command."""
    player = Player()
    return [player.run(command) for command in commands][-1]


def test_a_host_is_lost_with_its_workers_or_when_its_lease_runs_out_after_their_exits() -> None:
    state = play(*PLACED, "report all", "lost b 'its connection broke'", "exit a:0 -15")
    assert (is_lost(state, "a"), is_lost(state, "b")) == (False, True)
    later = advance(advance(state, 115), 130)
    assert (is_lost(advance(later, 135), "a"), is_lost(advance(later, 135.1), "a")) == (False, True)
    assert is_lost(state, "elsewhere")


def test_a_host_that_has_not_reported_is_not_lost() -> None:
    assert not is_lost(advance(advance(advance(play(*PLACED), 115), 130), 145), "a")


def test_a_worker_that_was_added_needs_the_state() -> None:
    story = (*TRIO, "declare all", "exit a:1 1", "exit a:2 1", "join a:0 after=1 continue state", "join a:1#2")
    state = play(*story)
    assert state.decision.action is Action.RESTORE
    assert [record.needs_state for record in state.survivors()] == [False, True]


def test_no_more_workers_are_taken_in_than_there_is_room_for() -> None:
    lost = ("exit a:2 1", "join a:2#2", "join a:0 after=1 continue state", "join a:1 after=1 continue state")
    state = play(*TRIO, "declare all", *lost)
    assert len(compose(state, Action.RESIZE, state.survivors()).added) == 1
    crowd = replace(state, policy=replace(state.policy, max_size=2))
    assert compose(crowd, Action.RESIZE, crowd.survivors()).added == ()


@pytest.mark.parametrize(("now", "offers"), [("5.75", []), ("6", ["> offer 1 to generation 1: adds"])])
def test_the_first_newcomer_waits_as_long_as_others_may_gather(now: str, offers: list[str]) -> None:
    assert run(*DECLARED, "hosts a:4", "join a:2", "tick 1", f"tick {now}") == offers


def test_a_worker_in_a_slot_that_was_removed_is_refused_with_the_reason() -> None:
    leaver = run(*DECLARED, "hosts a:3", "hosts a:2", "join a:2")
    assert leaver == ["> refuse a:2 leaves  (host a offers fewer slots now)"]


def test_later_refusals_give_the_first_reason() -> None:
    story = ("policy size=3", "hosts a:3", "join a:2", "exit a:0 0", "exit a:1 0")
    assert play(*story).refusal == play(*story[:-1]).refusal


NONE_NAMED = "no host was named: check that the discovery script answers, or that agents join"
FEW_SLOTS = "the hosts offered only 1: add hosts, or start with fewer workers (-np, --min-np)"
NO_AGENT = "none had an agent; no agent has reported from a, b"
FEWER_SLOTS = "only 1 had an agent; the hosts offer only 1 of the slots now"
REMEDY = "repair the hosts, or start with fewer workers (--min-np)"
SINCE = "to start, but for 20 s (--elastic-timeout)"


@pytest.mark.parametrize(
    ("limits", "story", "reason"),
    [
        ("min=1 np=1", (), f"1 slot {SINCE} {NONE_NAMED}"),
        ("min=2 np=2", ("hosts a:1",), f"2 slots {SINCE} {FEW_SLOTS}"),
        ("min=2 np=3", ("hosts a:3 b:1",), f"2 workers {SINCE} {NO_AGENT}; {REMEDY}"),
        (
            "min=2 np=2",
            ("hosts a:1 b:1", "report a running a:0", "hosts a:1"),
            f"2 workers {SINCE} {FEWER_SLOTS}; {REMEDY}",
        ),
    ],
    ids=["no host", "few slots", "no agent", "fewer slots"],
)
def test_a_start_without_enough_slots_says_why_and_what_to_do(limits: str, story: tuple[str, ...], reason: str) -> None:
    waiting = ("tick 10", "tick 20", "tick 30", "tick 30.25")
    state = play(f"policy {limits} max=4 failures=any elastic=20 lease=60", "tick 0", *story, *waiting)
    assert state.outcome is not None
    assert (state.outcome.cause, state.outcome.exit_code) == (Cause.START_TIMED_OUT, 124)
    assert state.outcome.reason == f"the job needs {reason}"


def test_a_busy_survivor_without_a_state_may_not_begin_again() -> None:
    state = play(*TRIO, "exit a:2 1", "join a:0 after=1 continue pending=allreduce.x")
    (busy,) = (record for record in state.survivors() if record.report is not None)
    assert not busy.can_restore


def test_a_job_whose_last_plain_program_a_stop_notice_kills_has_stopped() -> None:
    state = play("policy min=1 max=3 failures=any", "hosts a:3 b:1", "exit a:1 0", "exit a:2 0", "exit a:0 -12")
    assert state.outcome is not None
    assert (state.outcome.exit_code, state.outcome.cause) == (75, Cause.STOPPED)
