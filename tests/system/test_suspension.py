"""Ctrl-Z and `fg`: hvdrun stops and goes on, its workers train meanwhile, and nobody is taken for dead."""

import random
import signal
import sys
import time
from collections.abc import Callable

import psutil
import pytest

from tests.system.launcher import Launcher
from tests.system.roles import wait_until
from tests.system.terminal import CTRL_Z, Terminal

LEASE = "1.5s"
SUSPENDED_SECONDS = 4.0  # more than twice the lease: whoever counts the silence as a death has done so by then
STARTS = 6
START_SECONDS = 0.5  # about what it takes until the workers run
SHELL = ("bash", "--norc", "--noprofile", "--noediting", "-i")

# Joins as hvd.init() does, then trains until the test ends it: a line and an entry in a file for each step.
TRAINS = """
import os, pathlib, time
from rendezvous.bootstrap import Bootstrap
from rendezvous.client import WorkerClient

client = WorkerClient(Bootstrap.read(os.environ))
try:
    client.join(0)
finally:
    client.close()
print("trains", flush=True)
steps = 0
while not pathlib.Path("go").exists():
    time.sleep(0.1)
    steps += 1
    print("step", steps, flush=True)
    with open("steps" + os.environ["HOROVOD_RANK"], "a") as file:
        file.write(".")
"""

# Joins only when the test lets it.
JOINS_LATE = """
import os, pathlib, time
from rendezvous.bootstrap import Bootstrap
from rendezvous.client import WorkerClient

print("alive", flush=True)
while not pathlib.Path("go").exists():
    time.sleep(0.01)
client = WorkerClient(Bootstrap.read(os.environ))
try:
    client.join(0)
finally:
    client.close()
"""


def find_hvdrun(hvdrun: Launcher) -> psutil.Process:
    (process,) = (process for process in hvdrun.processes() if " -m hvdrun -np " in process.command)
    return psutil.Process(process.pid)


def is_stopped(process: psutil.Process) -> Callable[[], bool]:
    return lambda: process.status() == psutil.STATUS_STOPPED


def count_steps(hvdrun: Launcher, rank: int) -> int:
    return len((hvdrun.directory / f"steps{rank}").read_text())


@pytest.mark.timeout(120)
def test_ctrl_z_and_fg_may_be_repeated_and_the_workers_go_on(hvdrun: Launcher) -> None:
    hvdrun.write("train.py", TRAINS)
    environment = {**hvdrun.environment(), "PS1": "$ ", "HISTFILE": "/dev/null", "NO_COLOR": "1"}
    with Terminal(*SHELL, directory=hvdrun.directory, environment=environment) as shell:
        shell.press(f"{sys.executable} -m hvdrun -np 2 --lease {LEASE} --no-prefork python train.py\n")
        for rank in range(2):
            shell.wait_for(rf"\[{rank}\] step 3\r$", 20)
        for times in (1, 2):
            shell.press(CTRL_Z)
            shell.wait_for(r"^\[1\]\+ +Stopped", 10, count=times)
            assert is_stopped(find_hvdrun(hvdrun))()
            before = [count_steps(hvdrun, rank) for rank in range(2)]
            time.sleep(SUSPENDED_SECONDS)  # this long silence is what is tested
            now = [count_steps(hvdrun, rank) for rank in range(2)]
            assert all(late > early + 10 for late, early in zip(now, before, strict=True))
            shell.press("fg\n")
            for rank in range(2):
                shell.wait_for(rf"\[{rank}\] step {now[rank] + 3}\r$", 10)
        hvdrun.write("go", "")
        shell.press("echo the code is $?; exit\n")
        assert shell.wait(20) == 0
    screen = shell.screen()
    assert "the code is 0" in screen[-2]  # before the shell's own last word
    for rank in range(2):
        shown = [line for line in screen if f"[{rank}] step " in line]
        assert len(shown) == count_steps(hvdrun, rank)


@pytest.mark.parametrize("to_group", [True, False], ids=["to its group", "to it alone"])
def test_the_signals_of_a_suspension_do_the_same_without_a_terminal(hvdrun: Launcher, to_group: bool) -> None:  # noqa: FBT001 - a parameter
    hvdrun.write("train.py", TRAINS)
    running = hvdrun.start("-np", "2", "--lease", LEASE, "--no-prefork", "python", "train.py")
    send = running.send_to_terminal if to_group else running.send
    for rank in range(2):
        running.stdout.wait_for(rf"^\[{rank}\] step 1$", 20)
    send(signal.SIGTSTP)
    wait_until(is_stopped(psutil.Process(running.pid)))
    time.sleep(SUSPENDED_SECONDS)  # this long silence is what is tested
    send(signal.SIGCONT)
    hvdrun.write("go", "")
    finished = running.wait(20)
    assert (finished.returncode, finished.stderr) == (0, "")


def test_the_time_of_a_suspension_is_not_taken_from_the_start(hvdrun: Launcher) -> None:
    hvdrun.write("train.py", JOINS_LATE.replace("print", "if os.environ['HOROVOD_RANK'] == '1': print"))
    running = hvdrun.start("-np", "2", "--lease", LEASE, "--start-timeout", "3s", "--no-prefork", "python", "train.py")
    running.stdout.wait_for(r"^\[1\] alive$", 20)
    running.send(signal.SIGTSTP)
    wait_until(is_stopped(psutil.Process(running.pid)))
    time.sleep(SUSPENDED_SECONDS)  # this long silence is what is tested
    running.send(signal.SIGCONT)
    hvdrun.write("go", "")
    finished = running.wait(20)
    assert (finished.returncode, finished.stderr) == (0, "")


def test_kill_9_of_a_suspended_hvdrun_leaves_nothing(hvdrun: Launcher) -> None:
    hvdrun.write("train.py", TRAINS)
    running = hvdrun.start("-np", "2", "--no-prefork", "python", "train.py")
    for rank in range(2):
        running.stdout.wait_for(rf"^\[{rank}\] step 1$", 20)
    running.send(signal.SIGTSTP)
    wait_until(is_stopped(psutil.Process(running.pid)))
    running.send(signal.SIGKILL)
    assert running.wait(20).returncode == -signal.SIGKILL
    assert not hvdrun.watch.settle()


def test_ctrl_c_after_fg_ends_the_job_as_ever(hvdrun: Launcher) -> None:
    hvdrun.write("train.py", TRAINS)
    running = hvdrun.start("-np", "1", "--no-prefork", "python", "train.py")
    running.stdout.wait_for(r"^\[0\] step 1$", 20)
    running.send(signal.SIGTSTP)
    wait_until(is_stopped(psutil.Process(running.pid)))
    running.send(signal.SIGCONT)
    running.send_to_terminal(signal.SIGINT)
    assert running.wait(20).returncode == 130


def test_a_suspension_at_any_moment_of_the_start_is_survived(hvdrun: Launcher) -> None:
    moments = random.Random(signal.SIGTSTP)  # noqa: S311 - moments, not secrets
    for _ in range(STARTS):
        running = hvdrun.start("-np", "2", "-H", "localhost:1,127.0.0.1:1", "--lease", LEASE, "sleep", "0.3")
        time.sleep(moments.uniform(0, START_SECONDS))  # the moment is what is tested, and no event marks it
        running.send(signal.SIGTSTP)
        time.sleep(0.3)  # it may have ended, or not been stopped: there is nothing to wait for
        running.send(signal.SIGCONT)
        finished = running.wait(20)
        assert (finished.returncode, finished.stderr) == (0, "")


def test_a_machine_that_sleeps_with_the_whole_job_on_it_harms_nobody(hvdrun: Launcher) -> None:
    """As a container that is paused, or a laptop that is closed: everybody stops, and wakes up later."""
    hvdrun.write("train.py", TRAINS)
    running = hvdrun.start("-np", "2", "--lease", LEASE, "python", "train.py")
    for rank in range(2):
        running.stdout.wait_for(rf"^\[{rank}\] step 3$", 20)
    sleepers = [psutil.Process(process.pid) for process in hvdrun.processes()]
    for process in sleepers:
        process.suspend()
    time.sleep(SUSPENDED_SECONDS)  # the sleep is what is tested
    for process in reversed(sleepers):
        process.resume()
    before = [count_steps(hvdrun, rank) for rank in range(2)]
    wait_until(lambda: all(count_steps(hvdrun, rank) > before[rank] + 20 for rank in range(2)))
    hvdrun.write("go", "")
    finished = running.wait(20)
    assert (finished.returncode, finished.stderr) == (0, "")
