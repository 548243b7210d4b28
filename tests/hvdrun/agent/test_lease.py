"""An agent's lease under a clock of the test's own."""

import math

import pytest

from hvdrun.agent.lease import Lease, LeaseExpiredError


class Clock:
    """Shows what it is told."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        """Seconds."""
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def pass_time(lease: Lease, clock: Clock, seconds: float, step_seconds: float = 1.0) -> bool:
    """Let time pass in small steps; whether the agent may go on at its end."""
    end = clock.now + seconds
    may = True
    while clock.now < end:
        clock.now = min(end, clock.now + step_seconds)
        may = lease.look()
    return may


def test_an_agent_goes_on_for_the_lease_and_no_longer(clock: Clock) -> None:
    lease = Lease(30, clock)
    assert pass_time(lease, clock, 30)
    assert not pass_time(lease, clock, 1)


def test_an_acknowledged_report_renews_the_lease(clock: Clock) -> None:
    lease = Lease(30, clock)
    pass_time(lease, clock, 29)
    lease.renew()
    assert pass_time(lease, clock, 30)
    assert not pass_time(lease, clock, 1)


def test_a_machine_that_slept_gets_time_for_one_more_report(clock: Clock) -> None:
    lease = Lease(30, clock)
    clock.now += 3600
    assert lease.look()
    assert pass_time(lease, clock, 11)


def test_an_agent_that_was_stopped_alone_does_not_get_a_whole_lease_again(clock: Clock) -> None:
    lease = Lease(30, clock)
    clock.now += 3600
    lease.look()
    assert not pass_time(lease, clock, 13)


def test_a_sleep_does_not_shorten_a_lease(clock: Clock) -> None:
    lease = Lease(30, clock)
    clock.now += 16
    assert lease.look()
    assert pass_time(lease, clock, 14)


def test_a_held_lease_does_not_expire_and_starts_anew_afterwards(clock: Clock) -> None:
    lease = Lease(30, clock)
    lease.hold(held=True)
    assert pass_time(lease, clock, 3600)
    lease.hold(held=False)
    assert pass_time(lease, clock, 30)
    assert not pass_time(lease, clock, 1)


def test_an_expired_lease_is_told_with_its_cause_where_one_is_known() -> None:
    assert str(LeaseExpiredError(30, None)) == "no report was acknowledged for the lease of 30 s (--lease)"
    assert str(LeaseExpiredError(0.5, OSError("no way"))).endswith("lease of 0.5 s (--lease): no way")


def test_what_is_left_of_a_lease_is_known_so_that_nothing_is_waited_for_beyond_it(clock: Clock) -> None:
    lease = Lease(10.0, clock)
    clock.now += 4
    assert lease.left_seconds == 6
    clock.now += 20
    assert lease.left_seconds == 0
    lease.hold(held=True)
    assert lease.left_seconds == math.inf
