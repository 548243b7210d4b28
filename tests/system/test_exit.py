"""How a job ends by itself: the first failing worker decides, the others are ended whole, and one page says why."""

import re
import sys
from pathlib import Path

import pytest

from tests.system.launcher import Launcher

# Rank 1 ends in the way that the test asks for, once rank 0 has said that it lives.
ENDS = """
import os, pathlib, signal, sys, time

def wait_for(path):
    while not pathlib.Path(path).exists():
        time.sleep(0.01)

if os.environ["HOROVOD_RANK"] == "1":
    print("the last line", flush=True)
    wait_for("go")
    {how}
print("alive", flush=True)
time.sleep(600)
"""

# Rank 0 does not end when asked to; rank 1 fails as soon as rank 0 is ready for it.
ASKED = """
import os, pathlib, signal, sys, time

def answer(number, frame):
    print("asked to end", flush=True)
    {answer}

if os.environ["HOROVOD_RANK"] == "1":
    while not pathlib.Path("ready").exists():
        time.sleep(0.01)
    sys.exit(3)
signal.signal(signal.SIGTERM, answer)
pathlib.Path("ready").touch()
while True:
    time.sleep(600)
"""

# Rank 0 has descendants of every kind; the other ranks end when the test has seen all of them live.
FAMILY = """
import os, pathlib, subprocess, sys, time

def wait_for(path):
    while not pathlib.Path(path).exists():
        time.sleep(0.01)

if os.environ["HOROVOD_RANK"] != "0":
    wait_for("go")
    sys.exit(3)
for script in (
    "echo child lives; sleep 600",
    "trap '' TERM; echo stubborn child lives; sleep 600; sleep 600",
    "sh -c 'echo grandchild lives; sleep 600; true' & wait",
    "trap '' TERM; sh -c 'echo stubborn grandchild lives; sleep 600; true' & wait; wait",
    "(setsid sh -c 'echo daemon lives; sleep 600; true' &)",
    "(trap '' TERM; setsid sh -c 'echo stubborn daemon lives; sleep 600; true' &)",
):
    subprocess.Popen(["sh", "-c", script])
    subprocess.Popen(["sh", "-c", script.replace("lives", "in a session of its own lives")], start_new_session=True)
{then}
"""
FAMILY_SIZE = 12

# Joins as hvd.init() does, without the second and a half that torch takes.
JOINS = """
import os, sys, time
from rendezvous.bootstrap import Bootstrap
from rendezvous.client import WorkerClient

if os.environ["HOROVOD_RANK"] == "1":
    {instead}
client = WorkerClient(Bootstrap.read(os.environ))
try:
    client.join(0)
finally:
    client.close()
"""


@pytest.mark.parametrize(
    ("how", "code", "told", "last_line"),
    [
        ("sys.exit(3)", 3, "exit code 3", "the last line"),
        ("sys.exit('no data')", 1, "exit code 1", "no data"),
        ("os._exit(77)", 77, "exit code 77", "the last line"),
        ("raise ValueError('no such luck')", 1, "exit code 1", "ValueError: no such luck"),
        ("os.kill(os.getpid(), signal.SIGKILL)", 137, r"killed by SIGKILL (signal 9)", "the last line"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", 139, r"killed by SIGSEGV (signal 11)", "the last line"),
    ],
)
def test_the_first_failing_worker_decides_the_code_and_is_named(
    hvdrun: Launcher, how: str, code: int, told: str, last_line: str
) -> None:
    hvdrun.write("train.py", ENDS.format(how=how))
    running = hvdrun.start("-np", "2", "python", "train.py")
    running.stdout.wait_for(r"^\[0\] alive$", 20)
    hvdrun.write("go", "")
    finished = running.wait(20)

    assert finished.returncode == code
    page = finished.stderr[finished.stderr.index("hvdrun: ") :].splitlines()
    assert page[0].startswith("hvdrun: rank 1 on localhost (slot 1) failed first after ")
    assert page[0].endswith(f" s: {told}")
    assert f"  | {last_line}" in page
    assert page[-1] == "  Because of it rank 0 was ended."


def test_when_all_end_well_hvdrun_does_and_says_nothing(hvdrun: Launcher) -> None:
    finished = hvdrun("-np", "3", "true")
    assert (finished.returncode, finished.stdout, finished.stderr) == (0, "", "")


def test_the_others_are_asked_to_end_and_may_clean_up(hvdrun: Launcher) -> None:
    hvdrun.write("train.py", ASKED.format(answer="time.sleep(0.3); print('cleaned up', flush=True); sys.exit(0)"))
    finished = hvdrun("-np", "2", "--grace", "20s", "python", "train.py")
    assert finished.returncode == 3
    assert finished.stdout == "[0] asked to end\n[0] cleaned up\n"
    assert finished.seconds < 10


def test_who_does_not_end_within_the_grace_is_killed(hvdrun: Launcher) -> None:
    hvdrun.write("train.py", ASKED.format(answer="pass"))
    finished = hvdrun("-np", "2", "--grace", "0.5", "python", "train.py")
    assert finished.returncode == 3
    assert finished.stdout == "[0] asked to end\n"
    failed = re.search(r"failed first after (.*) s: ", finished.stderr)
    assert failed is not None
    assert 0.5 < finished.seconds - float(failed[1]) < 5  # what it takes without --grace


def test_a_failure_while_the_others_are_being_ended_changes_nothing(hvdrun: Launcher) -> None:
    hvdrun.write("train.py", ASKED.format(answer="sys.exit(9)"))
    finished = hvdrun("-np", "2", "python", "train.py")
    assert finished.returncode == 3
    assert "rank 1 on localhost (slot 1) failed first" in finished.stderr


@pytest.mark.parametrize(
    ("size", "then", "code"),
    [(2, "time.sleep(600)", 3), (1, "wait_for('go')", 0), (1, "wait_for('go'); os.kill(os.getpid(), 9)", 137)],
    ids=["it is ended", "it ends well", "it is killed"],
)
def test_a_worker_s_whole_family_ends_with_it(hvdrun: Launcher, size: int, then: str, code: int) -> None:
    hvdrun.write("train.py", FAMILY.format(then=then))
    running = hvdrun.start("-np", str(size), "--grace", "0.5", "python", "train.py")
    running.stdout.wait_for(rf"(^\[0\] .* lives\n){{{FAMILY_SIZE}}}", 20)
    hvdrun.write("go", "")
    assert running.wait(20).returncode == code
    assert hvdrun.processes("sleep") == ()


def test_who_has_ended_before_the_others_joined_is_told_to_them(hvdrun: Launcher) -> None:
    hvdrun.write("train.py", JOINS.format(instead="sys.exit(0)"))
    finished = hvdrun("-np", "2", "python", "train.py")
    assert finished.returncode == 1
    assert "rank 0 on localhost (slot 0) failed first" in finished.stderr
    assert "rank 1 (localhost:1) has ended" in finished.stderr
    assert finished.seconds < 20


def test_who_does_not_join_in_time_is_named(hvdrun: Launcher) -> None:
    hvdrun.write("train.py", JOINS.format(instead="time.sleep(600)"))
    finished = hvdrun("-np", "3", "--start-timeout", "1s", "python", "train.py")
    assert finished.returncode == 124
    (said,) = [line for line in finished.stderr.splitlines() if line.startswith("hvdrun: ")]
    assert "2 of 3 workers" in said
    assert "rank 1 (localhost:1)" in said
    assert "--start-timeout" in said


def test_a_command_that_is_nowhere_is_127(hvdrun: Launcher) -> None:
    finished = hvdrun("-np", "2", "no-such-program", environment={"PATH": "/usr/bin:/bin"})
    assert finished.returncode == 127
    assert finished.stderr == "hvdrun: the command 'no-such-program' was not found: looked in /usr/bin, /bin.\n"


def test_a_command_that_cannot_be_executed_is_126(hvdrun: Launcher) -> None:
    hvdrun.write("train.sh", "#!/bin/sh\n").chmod(0o644)
    finished = hvdrun("-np", "2", "./train.sh")
    assert finished.returncode == 126
    assert "'./train.sh'" in finished.stderr
    assert len(finished.stderr.splitlines()) == 1


def test_a_command_that_only_the_kernel_refuses_is_126_too(hvdrun: Launcher) -> None:
    hvdrun.write("train.sh", "#!/no/such/interpreter\n").chmod(0o755)
    finished = hvdrun("-np", "2", "./train.sh")
    assert finished.returncode == 126
    assert "train.sh' cannot be executed: " in finished.stderr
    assert len(finished.stderr.splitlines()) == 1


def test_python_of_the_tests_is_python_of_the_workers(hvdrun: Launcher) -> None:
    finished = hvdrun("-np", "1", "python", "-c", "import sys; print(sys.executable)")
    assert finished.stdout == f"[0] {Path(sys.executable).with_name('python')}\n"
