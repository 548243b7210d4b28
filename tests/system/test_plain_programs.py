"""Programs that know nothing of hvdrun, what they find in their environment, and an hvdrun inside a worker."""

import socket

import pytest

from tests.system.launcher import Launcher
from tests.system.roles import kill

NUMBERS = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE")
SHOW = "echo " + " ".join(f"$HOROVOD_{name}" for name in (*NUMBERS, "HOSTNAME", "ELASTIC"))

# Rank 0 ends when the inner job of rank 1 runs: they have slots of the same name.
OUTER = """
import os, pathlib, subprocess, sys, time

if os.environ["HOROVOD_RANK"] == "0":
    while not pathlib.Path("inner runs").exists():
        time.sleep(0.01)
    sys.exit(0)
sys.exit(subprocess.run([sys.executable, "-m", "hvdrun", "-np", "2", "sh", "-c", {script!r}]).returncode)
"""


def test_a_program_runs_as_often_as_asked(hvdrun: Launcher) -> None:
    finished = hvdrun("-np", "2", "hostname")
    name = socket.gethostname()
    assert finished.returncode == 0
    assert sorted(finished.stdout.splitlines()) == [f"[0] {name}", f"[1] {name}"]
    assert finished.stderr == ""


@pytest.mark.parametrize("command", [("sh", "-c", SHOW), ("python", "-c", f"import os; os.system({SHOW!r})")])
def test_a_worker_s_numbers_are_in_its_environment(hvdrun: Launcher, command: tuple[str, ...]) -> None:
    finished = hvdrun("-np", "2", *command)
    assert sorted(finished.stdout.splitlines()) == ["[0] 0 2 0 2 0 1 localhost 0", "[1] 1 2 1 2 0 1 localhost 0"]


def test_local_and_cross_numbers_on_two_hosts(hvdrun: Launcher) -> None:
    finished = hvdrun("-np", "3", "-H", "localhost:2,127.0.0.1:1", "sh", "-c", SHOW)
    assert sorted(finished.stdout.splitlines()) == [
        "[0@localhost] 0 3 0 2 0 2 localhost 0",
        "[1@localhost] 1 3 1 2 0 1 localhost 0",
        "[2@127.0.0.1] 2 3 0 1 1 2 127.0.0.1 0",
    ]


def test_the_workers_have_the_caller_s_environment_and_directory(hvdrun: Launcher) -> None:
    finished = hvdrun("-np", "1", "sh", "-c", 'echo "$COLOUR"; pwd', environment={"COLOUR": "green  blue"})
    assert finished.stdout == f"[0] green  blue\n[0] {hvdrun.directory}\n"


def test_the_workers_standard_input_is_empty(hvdrun: Launcher) -> None:
    finished = hvdrun("-np", "2", "cat")
    assert (finished.returncode, finished.stdout) == (0, "")


def test_the_command_s_own_options_are_its_own(hvdrun: Launcher) -> None:
    finished = hvdrun("-np", "1", "echo", "-np", "--help", "-H")
    assert finished.stdout == "[0] -np --help -H\n"


def test_an_hvdrun_inside_a_worker_is_a_job_of_its_own(hvdrun: Launcher) -> None:
    hvdrun.write("train.py", OUTER.format(script="touch 'inner runs'; sleep 1; echo $HOROVOD_RANK of $HOROVOD_SIZE"))
    finished = hvdrun("-np", "2", "python", "train.py")
    assert finished.returncode == 0
    assert sorted(finished.stdout.splitlines()) == ["[1] [0] 0 of 2", "[1] [1] 1 of 2"]


def test_an_inner_job_s_failure_is_the_outer_worker_s(hvdrun: Launcher) -> None:
    hvdrun.write("train.py", OUTER.format(script="touch 'inner runs'; exit 5"))
    finished = hvdrun("-np", "2", "python", "train.py")
    assert finished.returncode == 5
    assert "[1] hvdrun: rank " in finished.stderr


@pytest.mark.parametrize("victim", ["outer", "inner"])
def test_kill_of_an_hvdrun_around_or_inside_another_leaves_nothing(hvdrun: Launcher, victim: str) -> None:
    script = "trap '' TERM; touch 'inner runs'; echo up; sleep 600; true"
    hvdrun.write("train.py", OUTER.format(script=script).replace("import os,", "import signal, os,"))
    running = hvdrun.start("-np", "2", "python", "train.py")
    for rank in range(2):
        running.stdout.wait_for(rf"^\[1\] \[{rank}\] up$", 20)
    if victim == "inner":
        (inner,) = [process for process in hvdrun.processes("-m hvdrun -np 2 sh") if process.pid != running.pid]
        kill(inner.pid)
    else:
        kill(running.pid)
    running.wait(10)
