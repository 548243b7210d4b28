"""Workers that stand still for longer than the lease are ended; all others are left alone."""

from collections.abc import Callable

import pytest

from hvdrun.agent.processes import Process
from hvdrun.agent.standstill import LOOK_SECONDS, Standstill

LEASE_SECONDS = 5.0
PAUSE_SECONDS = 0.25
ONE, TWO = 11, 22


class Bench:
    """Workers whose states the test sets, and a clock that it moves."""

    def __init__(self) -> None:
        self.states = {11: "S", 22: "R"}
        self.put: dict[int, str] = {}
        self.now = 100.0
        self.cost_seconds = 0.0  # of one look at one process
        self.standstill = Standstill([self], LEASE_SECONDS, look=self._look, clock=lambda: self.now)

    def list_living(self) -> tuple[tuple[int, str], ...]:
        """See `Owner`."""
        return tuple(
            (pid, name) for pid, name in ((11, "the worker a:0"), (22, "the worker a:1")) if pid not in self.put
        )

    def put_down(self, pid: int, error: str) -> None:
        """See `Owner`."""
        self.put[pid] = error

    def pass_time(self, seconds: float, before: Callable[[], None] = lambda: None) -> None:
        """Look four times a second for so long."""
        for _ in range(round(seconds / PAUSE_SECONDS)):
            self.now += PAUSE_SECONDS
            before()
            self.standstill.look()

    def _look(self, pid: int) -> Process | None:
        self.now += self.cost_seconds
        return Process(pid, self.states[pid], 1, pid, 1) if pid in self.states else None


def test_a_worker_that_is_stopped_for_the_lease_is_ended() -> None:
    bench = Bench()
    bench.pass_time(60)
    bench.states[11] = "T"
    bench.pass_time(LEASE_SECONDS)
    assert not bench.put
    bench.pass_time(0.5)
    assert bench.put == {ONE: "the worker a:0 was stopped for longer than the lease of 5 s (--lease)"}


def test_so_is_one_of_which_only_threads_are_left() -> None:
    bench = Bench()
    bench.states[22] = "Z"
    bench.pass_time(LEASE_SECONDS + 0.5)
    assert "main thread of the worker a:1" in bench.put[TWO]


def test_a_worker_that_goes_on_in_time_starts_anew() -> None:
    bench = Bench()
    for _ in range(3):
        bench.states[11] = "T"
        bench.pass_time(LEASE_SECONDS - 1)
        bench.states[11] = "S"
        bench.pass_time(0.25)
    assert not bench.put


def test_a_debugger_and_a_busy_disk_are_no_reasons() -> None:
    bench = Bench()
    bench.states = {11: "t", 22: "D"}
    bench.pass_time(10 * LEASE_SECONDS)
    del bench.states[11]
    bench.pass_time(1)
    assert not bench.put


def test_while_nobody_looked_nobody_stood_still() -> None:
    bench = Bench()
    bench.states[11] = "T"
    bench.pass_time(1)
    bench.now += 3600.0
    bench.standstill.look()
    bench.pass_time(LEASE_SECONDS - 0.5)
    assert not bench.put
    bench.pass_time(1)
    assert ONE in bench.put


def test_the_end_of_a_lease_is_not_missed_by_the_time_between_two_looks() -> None:
    bench = Bench()
    assert bench.standstill.find_pause() == LOOK_SECONDS
    bench.states[11] = "T"
    bench.pass_time(LEASE_SECONDS + PAUSE_SECONDS)
    assert not bench.put
    pause_seconds = bench.standstill.find_pause()
    assert 0 < pause_seconds < 0.1
    bench.now += pause_seconds
    bench.standstill.look()
    assert list(bench.put) == [ONE]
    assert bench.standstill.find_pause() == LOOK_SECONDS


def test_one_that_was_ended_and_is_not_reaped_yet_is_told_of_with_what_it_was_ended_for() -> None:
    bench = Bench()
    bench.states[11] = "T"
    bench.pass_time(LEASE_SECONDS + 0.5)
    told = bench.put.pop(ONE)
    bench.states[11] = "Z"
    bench.pass_time(1)
    assert "was stopped" in told
    assert not bench.put


def test_who_has_thousands_of_workers_looks_less_often() -> None:
    bench = Bench()
    bench.cost_seconds = 0.004
    bench.standstill.look()
    assert bench.standstill.find_pause() == pytest.approx(0.8)
    bench.cost_seconds = 1.0
    bench.standstill.look()
    assert bench.standstill.find_pause() == LEASE_SECONDS / 4
