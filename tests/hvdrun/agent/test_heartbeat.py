"""An agent that is stopped for longer than the lease is given up; one that runs, sleeps or goes on in time is not."""

import pytest

from hvdrun.agent.heartbeat import LOOK_SECONDS, MARGIN_SECONDS, Heartbeat
from hvdrun.agent.processes import Process

LEASE_SECONDS = 2.0
AGENT = 11
STARTED = 5
PATIENCE_SECONDS = LEASE_SECONDS + MARGIN_SECONDS


class Bench:
    """An agent whose state the test sets, and a clock that it moves."""

    def __init__(self) -> None:
        self.state = "S"
        self.started = STARTED
        self.now = 100.0
        self._heartbeat = Heartbeat(LEASE_SECONDS, look=self._look, clock=lambda: self.now)

    def is_given_up_within(self, seconds: float) -> bool:
        """Look for so long, as often as the guardian does."""
        found = False
        for _ in range(round(seconds / LOOK_SECONDS)):
            self.now += LOOK_SECONDS
            found = self._heartbeat.find_given_up(AGENT, STARTED) is not None
        return found

    def _look(self, pid: int) -> Process | None:
        return Process(pid, self.state, 1, pid, self.started) if self.state else None


def test_an_agent_that_is_stopped_for_longer_than_the_lease_is_given_up() -> None:
    bench = Bench()
    assert not bench.is_given_up_within(60)
    bench.state = "T"
    assert not bench.is_given_up_within(PATIENCE_SECONDS)
    assert bench.is_given_up_within(2 * LOOK_SECONDS)


def test_an_agent_that_goes_on_in_time_starts_anew() -> None:
    bench = Bench()
    for state in ("T", "S", "T"):
        bench.state = state
        assert not bench.is_given_up_within(PATIENCE_SECONDS)


@pytest.mark.parametrize("state", ["R", "D", "t", "Z", ""])
def test_other_states_are_none_of_its_business(state: str) -> None:
    bench = Bench()
    bench.state = state
    assert not bench.is_given_up_within(60)


def test_another_process_of_the_same_number_is_not_the_agent() -> None:
    bench = Bench()
    bench.state, bench.started = "T", STARTED + 1
    assert not bench.is_given_up_within(60)


def test_the_time_in_which_this_machine_slept_does_not_count() -> None:
    bench = Bench()
    bench.state = "T"
    assert not bench.is_given_up_within(LEASE_SECONDS)
    bench.now += 3600
    assert not bench.is_given_up_within(LEASE_SECONDS)
