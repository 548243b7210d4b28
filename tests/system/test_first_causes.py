"""Each kind of failure on one host: hvdrun names the culprit, as `docs/causes.py` has it, and prints a score."""

import contextlib
import re
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.system import jumping_clock, memory_cgroup
from tests.system.causes import (
    LIMIT_SECONDS,
    NAN,
    ONE,
    SCRIPT,
    STALL,
    START,
    Score,
    check_cause,
    keep_score,
    list_cells,
)
from tests.system.launcher import Launcher, Running
from tests.system.roles import find_agent, find_sequencers, find_watchdog, kill

OFTEN = frozenset({"raise", "leave", "kill", "sequencer", "wait"})
STOPPED_SECONDS = 4.0  # twice as long as an agent waits


@pytest.fixture(scope="module")
def score(request: pytest.FixtureRequest) -> Iterator[Score]:
    """The score of this run."""
    yield from keep_score(request, ONE)


def find_worker(running: Running) -> int:
    """The pid of rank 1."""
    return int(running.stdout.wait_for(r"^\[1\] trains as (\d+)$", LIMIT_SECONDS)[1])


def kill_only(hvdrun: Launcher, words: str) -> None:
    """Kill a process with these words, and let the job end."""
    (found,) = hvdrun.processes(words)
    kill(found.pid)
    hvdrun.write("end", "")


def end_without(hvdrun: Launcher, pid: int | None) -> None:
    """Kill a process, and let the job end."""
    kill(pid)
    hvdrun.write("end", "")


def stop_a_while(hvdrun: Launcher, running: Running) -> None:
    """Stop hvdrun for longer than its hosts wait, and let the job end."""
    running.send(signal.SIGSTOP)
    time.sleep(STOPPED_SECONDS)  # longer than the hosts wait for hvdrun
    running.send(signal.SIGCONT)
    hvdrun.write("end", "")


def jump(hvdrun: Launcher, running: Running) -> None:
    """Set hvdrun's clock forward, and kill a worker when hvdrun has seen it."""
    hvdrun.write("jump", "")
    time.sleep(1.0)  # for several of its ticks
    kill(find_worker(running))


FROM_OUTSIDE: dict[str, Callable[[Launcher, Running], object]] = {
    "kill": lambda _, running: kill(find_worker(running)),
    "terminate": lambda _, running: kill(find_worker(running), signal.SIGTERM),
    "agent": lambda hvdrun, _: kill(find_agent(hvdrun)),
    "watchdog": lambda hvdrun, _: end_without(hvdrun, find_watchdog(hvdrun)),
    "forkserver": lambda hvdrun, _: kill_only(hvdrun, "worker_runtime.startup.forkserver"),
    "sequencer": lambda hvdrun, _: kill(find_sequencers(hvdrun)[0]),
    "stop": stop_a_while,
    "end": lambda _, running: running.send(signal.SIGKILL),
    "clock": jump,
}


@pytest.mark.parametrize(("kind", "way"), list_cells(ONE, OFTEN))
def test_the_first_cause_on_one_host_is_named(hvdrun: Launcher, score: Score, kind: Any, way: Any) -> None:
    score.note(kind.what, way.key, is_right=False)
    hvdrun.write("train.py", SCRIPT)
    environment, words = dict(STALL if way.key == "wait" else {}), []
    with contextlib.ExitStack() as stack:
        if way.key == "memory":
            words = memory_cgroup.enter(stack.enter_context(memory_cgroup.limit()))
        if way.key == "clock":
            environment = jumping_clock.build(hvdrun.directory)
        limits = {"hang": START, "nan": NAN}.get(way.key, ("--launcher-timeout", "2s", "--lease", "2s"))
        job = ("-np", "3", *limits, "python", "train.py", way.key, "1")
        running = hvdrun.start(*job, before=words, environment=environment)
        if way.key != "hang":
            for rank in range(3):
                running.stdout.wait_for(rf"^\[{rank}\] trains as", LIMIT_SECONDS)
        hvdrun.write("go", "")
        if way.key in FROM_OUTSIDE:
            FROM_OUTSIDE[way.key](hvdrun, running)
        finished = running.wait()
    check_cause(kind, way, finished, ONE)
    if way.key == "clock":
        assert re.search(r" failed first after [\d.]+ s: ", finished.stderr)
    score.note(kind.what, way.key, is_right=True)
