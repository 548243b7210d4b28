"""Python's own semaphores between processes are files in /dev/shm, which its resource tracker removes at the end."""

import os
import signal
from pathlib import Path

import pytest

from tests.system.launcher import Launcher
from tests.system.roles import find_agent

MEMORY = Path("/dev/shm")  # noqa: S108 - looked at, not written

# A lock that a spawned child shares; then the end that was asked for.
SCRIPT = """
import multiprocessing, os, signal, sys, time

def hold(lock):
    time.sleep(600)

if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    lock = context.Lock()
    context.Process(target=hold, args=(lock,)).start()
    print("lives", flush=True)
    if sys.argv[1] == "-":
        time.sleep(600)
    os.kill(os.getpid(), int(sys.argv[1]))
"""


def find_semaphores() -> set[str]:
    return {path.name for path in MEMORY.iterdir() if path.name.startswith("sem.")}


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_worker_that_is_killed_leaves_no_semaphore(hvdrun: Launcher, number: signal.Signals) -> None:
    before = find_semaphores()
    ended = hvdrun("-np", "1", "python", hvdrun.write("script.py", SCRIPT), str(int(number)))
    assert ended.returncode == 128 + number
    assert find_semaphores() <= before


@pytest.mark.parametrize("killed", ["hvdrun", "its agent"])
def test_nor_does_one_whose_job_is_killed(hvdrun: Launcher, killed: str) -> None:
    before = find_semaphores()
    running = hvdrun.start("-np", "1", "python", hvdrun.write("script.py", SCRIPT), "-")
    running.stdout.wait_for("lives", 30)
    assert find_semaphores() > before
    agent = find_agent(hvdrun)
    assert agent is not None
    os.kill(running.pid if killed == "hvdrun" else agent, signal.SIGKILL)
    running.wait(20)
    assert not hvdrun.watch.settle()
    assert find_semaphores() <= before
