"""The sequencer of a job: one while workers are joined, none where none is needed, and nothing is left of it."""

import signal

import pytest

from tests.system.launcher import Launcher, Running
from tests.system.roles import find_agent, find_guardian, find_sequencers, kill, wait_until

WAITS = """
import pathlib, time
while not pathlib.Path("go").exists():
    time.sleep(0.01)
"""
# Without torch, which would change nothing here but the time.
JOINS = f"""
import os
from rendezvous.bootstrap import Bootstrap
from rendezvous.client import WorkerClient

client = WorkerClient(Bootstrap.read(os.environ))
membership = client.join(0)
if membership.assignment.rank == 0 and membership.assignment.size > 1:
    print("at", client.await_sequencer(membership.generation), flush=True)
client.close()
print("joined", os.getpid(), flush=True)
{WAITS}
"""
WAYS = {
    "forked": ("python", "train.py"),
    "executed": ("--no-prefork", "python", "train.py"),
    "unknown": ("sh", "-c", "python train.py; true"),
}


def start(hvdrun: Launcher, *command: str) -> tuple[Running, int]:
    """A job of two that have joined, and the pid of its sequencer."""
    hvdrun.write("train.py", JOINS)
    running = hvdrun.start("-np", "2", *command)
    for rank in range(2):
        running.stdout.wait_for(rf"^\[{rank}\] joined", 30)
    (pid,) = find_sequencers(hvdrun)
    return running, pid


@pytest.mark.parametrize("way", WAYS)
def test_a_job_has_one_that_listens_where_rank_0_is_told(hvdrun: Launcher, way: str) -> None:
    running, pid = start(hvdrun, *WAYS[way])
    address = running.stdout.wait_for(r"^\[0\] at (\S+)$", 1)[1]
    (sequencer,) = hvdrun.processes("worker_runtime.sequencer")
    assert (sequencer.pid, sequencer.parent, sequencer.listens) == (pid, find_agent(hvdrun), (address,))
    hvdrun.write("go", "")
    finished = running.wait(20)
    assert (finished.returncode, finished.stderr) == (0, "")
    assert find_sequencers(hvdrun) == []


def test_a_job_of_one_has_none(hvdrun: Launcher) -> None:
    hvdrun.write("train.py", JOINS)
    running = hvdrun.start("-np", "1", "python", "train.py")
    running.stdout.wait_for(r"^\[0\] joined", 30)
    assert find_sequencers(hvdrun) == []
    hvdrun.write("go", "")
    assert running.wait(20).returncode == 0


def test_a_job_in_which_nobody_joins_has_none(hvdrun: Launcher) -> None:
    hvdrun.write("plain.py", f"print('alive', flush=True)\n{WAITS}")
    running = hvdrun.start("-np", "2", "python", "plain.py")
    for rank in range(2):
        running.stdout.wait_for(rf"^\[{rank}\] alive$", 30)
    assert find_sequencers(hvdrun) == []
    hvdrun.write("go", "")
    assert running.wait(20).returncode == 0


@pytest.mark.parametrize("way", WAYS)
def test_its_death_is_told_to_the_user(hvdrun: Launcher, way: str) -> None:
    running, pid = start(hvdrun, *WAYS[way])
    kill(pid)
    sentence = "the sequencer on localhost, which orders the workers' collectives, is gone: it ended with signal 9"
    running.stderr.wait_for(rf"^hvdrun: {sentence}$", 20)
    hvdrun.write("go", "")
    finished = running.wait(20)
    assert (finished.returncode, finished.stderr) == (0, f"hvdrun: {sentence}\n")


@pytest.mark.parametrize("way", ["forked", "executed"])
def test_nothing_is_left_of_it_when_hvdrun_is_killed(hvdrun: Launcher, way: str) -> None:
    running, _ = start(hvdrun, *WAYS[way])
    running.send(signal.SIGKILL)
    assert running.wait(5).returncode == -signal.SIGKILL
    assert not hvdrun.watch.settle()


@pytest.mark.parametrize("way", ["forked", "executed"])
def test_nothing_is_left_of_it_when_the_agent_is_killed(hvdrun: Launcher, way: str) -> None:
    running, _ = start(hvdrun, *WAYS[way])
    kill(find_agent(hvdrun))
    assert running.wait(10).returncode == 75
    assert not hvdrun.watch.settle()


def test_nothing_is_left_of_it_though_it_was_stopped_when_the_agent_is_killed(hvdrun: Launcher) -> None:
    running, pid = start(hvdrun, *WAYS["forked"])
    first = kill(find_guardian(hvdrun))
    wait_until(lambda: find_guardian(hvdrun) not in {None, first})  # which has been told of it again
    kill(pid, signal.SIGSTOP)
    kill(find_agent(hvdrun))
    assert running.wait(10).returncode == 75
    assert not hvdrun.watch.settle()


def test_a_failing_worker_takes_it_along_and_says_nothing_of_it(hvdrun: Launcher) -> None:
    running, _ = start(hvdrun, *WAYS["forked"])
    kill(int(running.stdout.wait_for(r"^\[1\] joined (\d+)$", 1)[1]))
    finished = running.wait(20)
    assert finished.returncode == 137
    assert "sequencer" not in finished.stderr
    assert not hvdrun.watch.settle()
