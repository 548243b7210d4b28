"""What tries to outlive a job: daemons that shed whatever tells whose they are, and no guardian to look for them."""

import re
import shutil
import signal
import time

import pytest

from tests.system.launcher import Launcher, Running
from tests.system.roles import find_agent, find_guardian, kill, wait_until

# Every worker has three descendants that are known by nothing but their ancestors: one that has left the session and
# cleared its environment, a child of that, and a daemon that has left its parent as well. The name of the working
# directory, which the tests know them by, is nothing to the job.
HIDES = """
import os, sys, time

def hide(name):
    os.setsid()
    script = f"echo {name} $$ lives; sleep 600; true"
    os.execve("/bin/sh", ["sh", "-c", script], {})

if os.fork() == 0:
    hide("stray")
if os.fork() == 0:
    if os.fork() == 0:
        hide("daemon")
    os._exit(0)
os.wait()
os.write(1, b"worker %d lives\\n" % os.getpid())
time.sleep(600)
"""
MEMBERS = ("stray", "daemon", "worker")
# One worker waits for the other in the kernel, without an end.
TRAINS = """
import os, time
import torch
import horovod.torch as hvd

hvd.init()
hvd.allreduce(torch.ones(1))
os.write(1, b"worker %d trains\\n" % os.getpid())
if hvd.rank():
    time.sleep(600)
hvd.allreduce(torch.ones(1))
"""
SEEN_SECONDS = 1.5  # after which the guardian has looked, at the latest


@pytest.fixture
def job(hvdrun: Launcher) -> Running:
    """Two workers with such descendants, all of which live."""
    return start(hvdrun)


def start(hvdrun: Launcher, *options: str) -> Running:
    hvdrun.write("train.py", HIDES)
    running = hvdrun.start("-np", "2", *options, "python", "train.py")
    for rank in range(2):
        for member in MEMBERS:
            running.stdout.wait_for(rf"^\[{rank}\] {member} (\d+) lives$", 20)
    return running


def find_pid(job: Running, member: str, rank: int) -> int:
    found = re.search(rf"^\[{rank}\] {member} (\d+) lives$", job.stdout.text(), re.MULTILINE)
    assert found is not None
    return int(found[1])


@pytest.mark.parametrize("options", [(), ("--no-prefork",)], ids=["forked", "executed"])
def test_the_agent_is_killed(hvdrun: Launcher, options: tuple[str, ...]) -> None:
    job = start(hvdrun, *options)
    time.sleep(SEEN_SECONDS)  # how long a daemon may hide is what is tested
    kill(find_agent(hvdrun))
    assert job.wait(10).returncode == 75
    assert not hvdrun.watch.settle()


def test_a_worker_and_at_once_the_agent_are_killed(hvdrun: Launcher, job: Running) -> None:
    time.sleep(SEEN_SECONDS)
    agent = find_agent(hvdrun)
    kill(find_pid(job, "worker", 0))
    kill(agent)
    assert job.wait(10).returncode == 75
    assert not hvdrun.watch.settle()


def test_the_guardian_and_later_the_agent_are_killed(hvdrun: Launcher, job: Running) -> None:
    first = kill(find_guardian(hvdrun))
    wait_until(lambda: find_guardian(hvdrun) not in {None, first})
    time.sleep(SEEN_SECONDS)
    kill(find_agent(hvdrun))
    assert job.wait(10).returncode == 75
    assert not hvdrun.watch.settle()


def test_hvdrun_is_killed(hvdrun: Launcher, job: Running) -> None:
    job.send(signal.SIGKILL)
    job.wait(10)
    assert not hvdrun.watch.settle()


def test_a_worker_is_killed(hvdrun: Launcher, job: Running) -> None:
    kill(find_pid(job, "worker", 1))
    assert job.wait(10).returncode == 137
    assert not hvdrun.watch.settle()


@pytest.mark.parametrize(
    ("options", "command"),
    [
        (("--min-np", "1"), ("python", "train.py")),
        ((), ("python", "train.py")),
        ((), ("sh", "-c", "python train.py; echo goes on; sleep 600")),
    ],
    ids=["elastic", "static", "below a shell"],
)
def test_the_agent_and_its_guardian_are_killed_at_once(
    hvdrun: Launcher, options: tuple[str, ...], command: tuple[str, ...]
) -> None:
    hvdrun.write("train.py", TRAINS)
    job = hvdrun.start("-np", "2", *options, *command)
    for rank in range(2):
        job.stdout.wait_for(rf"^\[{rank}\] worker \d+ trains$", 40)
    both = find_agent(hvdrun), find_guardian(hvdrun)
    for number in (signal.SIGSTOP, signal.SIGKILL):  # so that neither has the time to do anything about the other
        for pid in both:
            kill(pid, number)
    assert job.wait(10).returncode == 75
    wait_until(lambda: not hvdrun.processes(), SEEN_SECONDS)
    for folder in hvdrun.watch.temporary.glob("hvdrun-*"):  # which is left, since nobody was
        shutil.rmtree(folder)
    assert not hvdrun.watch.settle()
