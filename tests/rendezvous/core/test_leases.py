"""Who has been silent for too long, and what sleep has to do with it."""

import pytest

from rendezvous.core.leases import (
    LEAST_SLEEP_SECONDS,
    advance,
    explain_overdue_start,
    hear,
    is_lost,
    silent_hosts,
    start_leases,
    unheard_hosts,
)
from rendezvous.core.state import State
from tests.rendezvous.core.transcript import play


def placed(*commands: str, lease: float = 30) -> State:
    return play(f"policy size=2 lease={lease} start=20", "tick 100", "hosts a:1 b:1", *commands)


@pytest.mark.parametrize(("seconds", "silent"), [(29.9, ()), (30.0, ()), (30.1, ("a",))])
def test_a_host_is_silent_after_its_lease_and_not_before(seconds: float, silent: tuple[str, ...]) -> None:
    state = placed("report a running a:0")
    for step in (seconds / 3, 2 * seconds / 3, seconds):
        state = advance(state, 100 + step)
    assert silent_hosts(state) == silent


def test_a_host_that_was_heard_again_has_its_lease_anew() -> None:
    state = hear(advance(placed("report a running a:0"), 110), "a")
    assert silent_hosts(advance(advance(advance(state, 120), 130), 140)) == ()


def test_a_host_without_living_workers_is_not_missed() -> None:
    state = placed("report a running a:0", "exit a:0 0", "tick 115", "tick 130")
    assert silent_hosts(advance(state, 131)) == ()


def test_a_host_that_was_never_heard_has_no_lease_that_could_run_out() -> None:
    state = advance(advance(advance(placed(), 115), 130), 145)
    assert (silent_hosts(state), unheard_hosts(state)) == ((), ("a", "b"))


def test_a_lease_may_begin_without_a_report() -> None:
    state = start_leases(placed("report a running a:0", "tick 110"), {"a", "b"})
    assert dict(state.last_heard.items()) == {"a": 100, "b": 110}


def test_half_a_lease_between_two_ticks_is_no_sleep_and_more_is_one() -> None:
    state = placed("report a running a:0", "join a:0", "report b running b:0")
    awake, slept = advance(state, 115), advance(state, 115.1)
    assert (awake.last_heard["a"], awake.waiting_since, awake.started) == (100, 100, 100)
    assert slept.last_heard["a"] == 115.1
    assert slept.waiting_since == pytest.approx(115.1)
    assert slept.started == pytest.approx(115.1)


def test_a_deadline_moves_by_as_much_as_was_slept() -> None:
    state = placed("report a running a:0", "stop 130 interrupted")
    assert state.deadline == 135
    assert advance(state, 110).deadline == 135
    assert advance(state, 200).deadline == 235


def test_a_very_short_lease_runs_out_although_ticks_are_further_apart_than_half_of_it() -> None:
    state = placed("report a running a:0", lease=0.3)
    for tick in range(1, 4):
        state = advance(state, 100 + tick * 0.25)
    assert silent_hosts(state) == ("a",)
    assert LEAST_SLEEP_SECONDS > 2 * 0.25


def test_whoever_never_reported_is_named_when_the_start_is_overdue() -> None:
    state = placed("report a running a:0", "tick 110", "tick 120")
    assert explain_overdue_start(state) is None
    reason = explain_overdue_start(advance(state, 120.1))
    assert reason == "no agent reported from b within 20 s (--start-timeout)"


def test_whoever_did_not_join_is_named_when_the_start_is_overdue() -> None:
    state = placed("report a running a:0", "report b running b:0", "tick 110", "join b:0", "tick 120", "tick 130")
    assert explain_overdue_start(state) is None
    reason = explain_overdue_start(advance(state, 130.1))
    assert reason == "1 of 2 workers called hvd.init(), but within 20 s (--start-timeout) rank 0 (a:0) did not"


def test_a_start_without_joins_is_never_overdue_once_all_agents_have_reported() -> None:
    state = placed("report a running a:0", "report b running b:0", "tick 110", "tick 120", "tick 130", "tick 140")
    assert explain_overdue_start(state) is None


def test_a_host_is_lost_when_its_workers_went_without_a_word_or_it_is_silent_after_their_end() -> None:
    state = placed("report a running a:0", "report b running b:0", "lost b 'its connection broke'", "exit a:0 -15")
    assert (is_lost(state, "a"), is_lost(state, "b")) == (False, True)
    assert not is_lost(advance(advance(state, 115), 130), "a")
    assert is_lost(advance(advance(advance(state, 115), 130), 131), "a")


def test_a_host_that_was_never_heard_is_not_lost() -> None:
    assert not is_lost(advance(advance(advance(placed(), 115), 130), 145), "a")
