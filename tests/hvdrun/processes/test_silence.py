"""Who is silent, or stands still, for too long: launchers, agents and workers, under a clock of the test's own."""

import math

import pytest

from hvdrun.agent import stopped_detector
from hvdrun.agent.launcher_timeout import SAVE_SECONDS, LauncherTimeout, ServerTimeout
from hvdrun.agent.stopped_detector import StoppedDetector
from hvdrun.processes.processes import Process
from hvdrun.processes.stopped import STOPPED as IS_STOPPED
from hvdrun.processes.stopped import StoppedProcesses
from hvdrun.processes.watchdog_process import STOPPED_LOOK_SECONDS

LEASE_SECONDS = LIMIT_SECONDS = 30.0
AGENT = 11
STARTED = 5
Step = tuple[str, float]


class Clock:
    """Shows what it receives."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        """Seconds."""
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def play(timeout: LauncherTimeout, clock: Clock, *steps: Step) -> bool:
    """Let time pass as it does for an agent that runs, sleeps or is held; whether it may continue in the end."""
    may = True
    for what, seconds in steps:
        if what == "restarted":
            timeout.restart()
        elif what in {"held", "let go"}:
            timeout.hold(held=what == "held")
        looks = 1 if what == "sleeps" else round(seconds)
        for _ in range(looks):
            clock.now += seconds / looks
            may = timeout.look()
    return may


@pytest.mark.parametrize(
    ("steps", "may"),
    [
        ([("runs", 30)], True),
        ([("runs", 31)], False),
        ([("runs", 29), ("restarted", 30)], True),
        ([("runs", 29), ("restarted", 31)], False),
        ([("sleeps", 3600), ("runs", 11)], True),  # time for one more report
        ([("sleeps", 3600), ("runs", 13)], False),  # not the whole limit, in case only the agent was stopped
        ([("sleeps", 16), ("runs", 14)], True),  # a sleep does not shorten it
        ([("held", 3600)], True),
        ([("held", 3600), ("let go", 30)], True),
        ([("held", 3600), ("let go", 31)], False),
    ],
)
def test_an_agent_continues_for_the_launcher_timeout_and_no_longer(
    clock: Clock, steps: list[Step], *, may: bool
) -> None:
    assert play(LauncherTimeout(LIMIT_SECONDS, clock), clock, *steps) is may


def test_the_rest_of_the_launcher_timeout_is_known_so_that_no_wait_exceeds_it(clock: Clock) -> None:
    timeout = LauncherTimeout(10.0, clock)
    clock.now += 4
    assert timeout.left_seconds == 6
    clock.now += 20
    assert timeout.left_seconds == 0
    timeout.hold(held=True)
    assert timeout.left_seconds == math.inf


@pytest.mark.parametrize(
    ("steps", "given_up"),
    [
        ([("S", 60), ("T", LEASE_SECONDS)], False),
        ([("S", 60), ("T", LEASE_SECONDS + 2 * STOPPED_LOOK_SECONDS)], True),
        ([("T", LEASE_SECONDS), ("S", LEASE_SECONDS), ("T", LEASE_SECONDS)], False),
        *(([(state, 60.0)], False) for state in ("R", "D", "t", "Z", "")),
        ([("another", 60)], False),  # process of the same number
        ([("T", LEASE_SECONDS), ("sleeps", 3600), ("T", LEASE_SECONDS)], False),
    ],
)
def test_an_agent_stopped_beyond_the_lease_is_given_up(clock: Clock, steps: list[Step], *, given_up: bool) -> None:
    state = ""

    def look(pid: int) -> Process | None:
        found = Process(pid, "T" if state == "another" else state, 1, pid, STARTED + (state == "another"))
        return found if state else None

    stopped = StoppedProcesses(LEASE_SECONDS, states=IS_STOPPED, look=look, clock=clock)
    found = False
    for state, seconds in steps:
        if state == "sleeps":
            clock.now += seconds
            continue
        for _ in range(round(seconds / STOPPED_LOOK_SECONDS)):
            clock.now += STOPPED_LOOK_SECONDS
            found = stopped.find([AGENT]).get(AGENT) == Process(AGENT, "T", 1, AGENT, STARTED)
    assert found is given_up


PAUSE_SECONDS = 0.25
ONE, TWO = 11, 22
NAMES = {ONE: "the worker a:0", TWO: "the worker a:1"}


class Bench:
    """Workers whose states the test sets, and a clock that it moves."""

    def __init__(self) -> None:
        self.states = {ONE: "S", TWO: "R"}
        self.put: dict[int, str] = {}
        self.clock = Clock()
        self.cost_seconds = 0.0  # of one look at one process
        self.detector = StoppedDetector([self], LEASE_SECONDS, look=self._look, clock=self.clock)

    def list_living(self) -> tuple[tuple[int, str], ...]:
        """See `Owner`."""
        return tuple((pid, name) for pid, name in NAMES.items() if pid not in self.put)

    def note_stopped(self, pid: int, error: str) -> None:
        """See `Owner`."""
        self.put[pid] = error

    def pass_time(self, seconds: float) -> dict[int, str]:
        """Look four times a second for these seconds: which pids were reported up to the end, and why."""
        for _ in range(round(seconds / PAUSE_SECONDS)):
            self.clock.now += PAUSE_SECONDS
            self.detector.look()
        return self.put

    def _look(self, pid: int) -> Process | None:
        self.clock.now += self.cost_seconds
        return None if self.states[pid] == "gone" else Process(pid, self.states[pid], 1, pid, 1)


@pytest.fixture
def bench() -> Bench:
    return Bench()


STOPPED = "the worker a:0 was stopped for longer than the lease of 30 s (--lease)"


@pytest.mark.parametrize(
    ("steps", "reason"),
    [
        ([("S", 60), ("T", LEASE_SECONDS)], ""),
        ([("S", 60), ("T", LEASE_SECONDS + 0.5)], STOPPED),
        ([("Z", LEASE_SECONDS + 0.5)], "main thread of the worker a:0"),
        (3 * [("T", LEASE_SECONDS - 1), ("S", 0.25)], ""),
        ([("t", 10 * LEASE_SECONDS), ("gone", 1)], ""),  # a debugger
        ([("D", 10 * LEASE_SECONDS)], ""),  # a busy disk
        ([("T", 1), ("no look", 3600), ("T", LEASE_SECONDS - 0.5)], ""),
        ([("T", 1), ("no look", 3600), ("T", LEASE_SECONDS + 0.5)], STOPPED),
    ],
)
def test_a_worker_that_stands_still_for_the_lease_is_ended(bench: Bench, steps: list[Step], reason: str) -> None:
    for state, seconds in steps:
        if state == "no look":
            bench.clock.now += seconds
            bench.detector.look()
        else:
            bench.states[ONE] = state
            bench.pass_time(seconds)
    assert [*bench.put] == ([ONE] if reason else [])
    assert reason in bench.put.get(ONE, "")


def test_the_end_of_a_lease_is_not_missed_by_the_time_between_two_looks(bench: Bench) -> None:
    assert bench.detector.find_pause() == stopped_detector.LOOK_SECONDS
    bench.states[ONE] = "T"
    assert not bench.pass_time(LEASE_SECONDS + PAUSE_SECONDS)
    pause_seconds = bench.detector.find_pause()
    assert 0 < pause_seconds < 0.1
    bench.clock.now += pause_seconds
    bench.detector.look()
    assert list(bench.put) == [ONE]
    assert bench.detector.find_pause() == stopped_detector.LOOK_SECONDS


def test_a_stopped_process_that_was_killed_and_not_reaped_keeps_its_reason(bench: Bench) -> None:
    bench.states[ONE] = "T"
    assert "was stopped" in bench.pass_time(LEASE_SECONDS + 0.5).pop(ONE)
    bench.states[ONE] = "Z"
    assert not bench.pass_time(1)


def test_an_agent_with_thousands_of_workers_looks_less_often(bench: Bench) -> None:
    bench.cost_seconds = 0.004
    bench.detector.look()
    assert bench.detector.find_pause() == pytest.approx(0.8)
    bench.cost_seconds = LEASE_SECONDS / 5
    bench.detector.look()
    assert bench.detector.find_pause() == LEASE_SECONDS / 4


@pytest.mark.parametrize(
    ("steps", "is_noticed", "may"),
    [
        ([("runs", 30)], False, True),
        ([("runs", 31)], True, True),
        ([("runs", 30 + SAVE_SECONDS)], True, True),
        ([("runs", 35 + SAVE_SECONDS)], True, False),
        ([("runs", 40), ("restarted", 30)], True, True),  # hvdrun came back
        ([("runs", 29), ("ended", 0), ("runs", 1)], False, True),  # it has to learn how the workers ended
        ([("runs", 29), ("ended", 0), ("runs", 2)], False, False),
        ([("runs", 40), ("ended", 0), ("runs", 1)], True, False),  # it was away for too long before
        ([("runs", 40), ("restarted", 0), ("ended", 0), ("runs", 30)], True, True),
        ([("runs", 40), ("restarted", 0), ("ended", 0), ("runs", 31)], True, False),
        ([("restarted", 1), ("stopped", 0), ("runs", 2)], False, True),  # hvdrun answers, and knows what to do
        ([("restarted", 1), ("stopped", 0), ("runs", 10)], True, True),
        ([("stopped", 0), ("runs", 5 + SAVE_SECONDS)], True, True),
        ([("stopped", 0), ("runs", 10 + SAVE_SECONDS)], True, False),
        ([("stopped", 0), ("runs", 10), ("ended", 0), ("runs", 1)], True, False),
        ([("runs", 10), ("ended", 0), ("runs", 10), ("stopped", 0), ("runs", 1)], False, False),
    ],
)
def test_workers_of_a_job_that_outlives_hvdrun_may_save_before_they_are_ended(
    clock: Clock, steps: list[Step], *, is_noticed: bool, may: bool
) -> None:
    notices: list[float] = []
    timeout = ServerTimeout(LIMIT_SECONDS, lambda: notices.append(clock.now), clock, silence_seconds=5)
    timeout.note_running(is_running=True)
    continues = True
    for step in steps:
        if step[0] == "ended":
            timeout.note_running(is_running=False)
        elif step[0] == "stopped":
            timeout.stop()
        else:
            continues = play(timeout, clock, step)
    assert (len(notices), continues) == (int(is_noticed), may)


def test_an_agent_whose_job_is_over_does_not_wait_the_whole_server_timeout(clock: Clock) -> None:
    timeout = ServerTimeout(3600.0, lambda: None, clock)
    timeout.shorten(LIMIT_SECONDS)
    assert play(timeout, clock, ("runs", 30))
    assert not play(timeout, clock, ("runs", 1))
    assert str(timeout.make_error(None)) == "hvdrun did not answer for 30 s (--server-timeout)"
