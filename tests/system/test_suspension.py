"""Ctrl-Z and `fg`: hvdrun stops and continues, its workers train meanwhile, and none is taken for dead."""

import random
import shlex
import signal
import time
from collections.abc import Callable

import psutil
import pytest

from tests.system.launcher import Launcher, Running
from tests.system.scripts import JOIN
from tests.system.tables import rest_nightly
from tests.system.terminal import CTRL_Z, Terminal
from tests.waiting import wait_until

LEASE = "2s"
SUSPENDED_SECONDS = 4.5  # more than twice the lease: whatever counts the silence as a death has done so by then
STARTS = 6
START_SECONDS = 0.5  # about what it takes until the workers run
SHELL = ("bash", "--norc", "--noprofile", "--noediting", "-i")

# Joins, then trains until the test ends it: a line and an entry in a file for each step.
TRAINS = f"""{JOIN}
join()
print("trains", flush=True)
steps = 0
while not pathlib.Path("go").exists():
    time.sleep(0.1)
    steps += 1
    print("step", steps, flush=True)
    with open("steps" + os.environ["HOROVOD_RANK"], "a") as file:
        file.write(".")
"""

# Rank 1 joins only when the test lets it.
JOINS_LATE = f"""{JOIN}
if os.environ["HOROVOD_RANK"] == "1":
    print("alive", flush=True)
    wait_for("go")
join()
"""


def find_hvdrun(hvdrun: Launcher) -> psutil.Process:
    (process,) = hvdrun.processes(" -m hvdrun --no-prefork -np ")
    return psutil.Process(process.pid)


def start(hvdrun: Launcher, *options: str, size: int = 2) -> Running:
    """A job whose workers train."""
    hvdrun.write("train.py", TRAINS)
    running = hvdrun.start("-np", str(size), *options, "python", "train.py", is_job=True)
    for rank in range(size):
        running.stdout.wait_for(rf"^\[{rank}\] step 1$", 60)
    return running


def is_stopped(process: psutil.Process) -> Callable[[], bool]:
    return lambda: process.status() == psutil.STATUS_STOPPED


def count_steps(hvdrun: Launcher) -> list[int]:
    return [len((hvdrun.directory / f"steps{rank}").read_text()) for rank in range(2)]


def have_made(hvdrun: Launcher, before: list[int], steps: int) -> Callable[[], bool]:
    """Whether each of the two ranks has made so many steps since `before`."""
    return lambda: all(now >= then + steps for now, then in zip(count_steps(hvdrun), before, strict=True))


@pytest.mark.timeout(240)
def test_ctrl_z_and_fg_may_be_repeated_and_the_workers_continue(hvdrun: Launcher) -> None:
    hvdrun.write("train.py", TRAINS)
    environment = {**hvdrun.environment(), "PS1": "$ ", "HISTFILE": "/dev/null", "NO_COLOR": "1"}
    with Terminal(*SHELL, directory=hvdrun.directory, environment=environment) as shell:
        words = hvdrun.command("-np", "2", "--lease", LEASE, "python", "train.py")
        shell.press(f"{shlex.join(words)}\n")
        for rank in range(2):
            shell.wait_for(rf"\[{rank}\] step 3\r$", 60)
        for times in (1, 2):
            shell.press(CTRL_Z)
            shell.wait_for(r"^\[1\]\+ +Stopped", 60, count=times)
            assert is_stopped(find_hvdrun(hvdrun))()
            before = count_steps(hvdrun)
            time.sleep(SUSPENDED_SECONDS)  # this long silence is what is tested
            wait_until(have_made(hvdrun, before, 10))
            now = count_steps(hvdrun)
            shell.press("fg\n")
            for rank in range(2):
                shell.wait_for(rf"\[{rank}\] step {now[rank] + 3}\r$", 60)
        hvdrun.write("go", "")
        shell.press("echo the code is $?; exit\n")
        assert shell.wait(60) == 0
    screen = shell.screen()
    assert "the code is 0" in screen[-2]  # before the shell's own last word
    for rank, count in enumerate(count_steps(hvdrun)):
        assert sum(f"[{rank}] step " in line for line in screen) == count


@pytest.mark.nightly
@pytest.mark.parametrize("to_group", [True, False], ids=["to its group", "to it alone"])
def test_the_signals_of_a_suspension_do_the_same_without_a_terminal(hvdrun: Launcher, *, to_group: bool) -> None:
    running = start(hvdrun, "--lease", LEASE)
    send = running.send_to_terminal if to_group else running.send
    send(signal.SIGTSTP)
    wait_until(is_stopped(psutil.Process(running.pid)))
    time.sleep(SUSPENDED_SECONDS)  # this long silence is what is tested
    send(signal.SIGCONT)
    hvdrun.write("go", "")
    finished = running.wait()
    assert (finished.returncode, finished.stderr) == (0, "")


@pytest.mark.nightly
def test_the_time_of_a_suspension_is_not_taken_from_the_start(hvdrun: Launcher) -> None:
    hvdrun.write("train.py", JOINS_LATE)
    running = hvdrun.start("-np", "2", "--lease", LEASE, "--start-timeout", "10s", "python", "train.py", is_job=True)
    running.stdout.wait_for(r"^\[1\] alive$", 60)
    running.send(signal.SIGTSTP)
    wait_until(is_stopped(psutil.Process(running.pid)))
    time.sleep(11)  # this long silence is what is tested
    running.send(signal.SIGCONT)
    hvdrun.write("go", "")
    finished = running.wait()
    assert (finished.returncode, finished.stderr) == (0, "")


@pytest.mark.parametrize("options", rest_nightly([["--min-np", "1"], []]), ids=["elastic", "static"])
def test_a_launcher_that_is_stopped_for_longer_than_the_lease_continues_when_it_wakes(
    hvdrun: Launcher, options: list[str]
) -> None:
    running = start(hvdrun, "--lease", LEASE, *options)
    running.send(signal.SIGSTOP)
    time.sleep(SUSPENDED_SECONDS)  # this long silence is what is tested
    running.send(signal.SIGCONT)
    wait_until(have_made(hvdrun, count_steps(hvdrun), 20))
    hvdrun.write("go", "")
    finished = running.wait()
    assert (finished.returncode, finished.stderr) == (0, "")


def test_kill_9_of_a_suspended_hvdrun_leaves_nothing(hvdrun: Launcher) -> None:
    running = start(hvdrun)
    running.send(signal.SIGTSTP)
    wait_until(is_stopped(psutil.Process(running.pid)))
    running.send(signal.SIGKILL)
    assert running.wait().returncode == -signal.SIGKILL


def test_ctrl_c_after_fg_ends_the_job(hvdrun: Launcher) -> None:
    running = start(hvdrun, size=1)
    running.send(signal.SIGTSTP)
    wait_until(is_stopped(psutil.Process(running.pid)))
    running.send(signal.SIGCONT)
    running.send_to_terminal(signal.SIGINT)
    assert running.wait().returncode == -signal.SIGINT


@pytest.mark.nightly
def test_a_suspension_at_any_moment_of_the_start_is_survived(hvdrun: Launcher) -> None:
    moments = random.Random(signal.SIGTSTP)  # noqa: S311 - moments, not secrets
    for _ in range(STARTS):
        running = hvdrun.start("-np", "2", "-H", "localhost:1,127.0.0.1:1", "sleep", "0.3", is_job=True)
        time.sleep(moments.uniform(0, START_SECONDS))  # the moment is what is tested, and no event marks it
        running.send(signal.SIGTSTP)
        time.sleep(0.3)  # it may have ended, or not been stopped: there is nothing to wait for
        running.send(signal.SIGCONT)
        finished = running.wait()
        assert (finished.returncode, finished.stderr) == (0, "")


def test_a_machine_that_sleeps_with_the_whole_job_on_it_harms_no_worker(hvdrun: Launcher) -> None:
    """As a container that is paused, or a laptop that is closed: everybody stops, and wakes up later."""
    running = start(hvdrun, "--lease", LEASE)
    sleepers = [psutil.Process(process.pid) for process in hvdrun.processes()]
    for process in sleepers:
        process.suspend()
    time.sleep(SUSPENDED_SECONDS)  # the sleep is what is tested
    for process in reversed(sleepers):
        process.resume()
    wait_until(have_made(hvdrun, count_steps(hvdrun), 20))
    hvdrun.write("go", "")
    finished = running.wait()
    assert (finished.returncode, finished.stderr) == (0, "")
