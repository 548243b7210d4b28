"""How a job ends by itself: the first failing worker decides, the others are ended whole, and one page says why."""

import re

import pytest

from tests.system.launcher import Launcher
from tests.system.scripts import JOIN, WAIT_FOR
from tests.system.tables import rest_nightly

# Rank 1 ends in the way that the test asks for, once rank 0 has said that it lives.
ENDS = f"""{WAIT_FOR}
if os.environ["HOROVOD_RANK"] == "1":
    print("the last line", flush=True)
    wait_for("go")
    {{how}}
print("alive", flush=True)
time.sleep(600)
"""

# Rank 0 has descendants of every kind; the other ranks end when the test has seen all of them live.
FAMILY = f"""{WAIT_FOR}
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
{{then}}
"""
FAMILY_SIZE = 12

# All join but rank 1.
JOINS = f"""{JOIN}
if os.environ["HOROVOD_RANK"] == "1":
    time.sleep(600)
join()
"""

# Rank 1 ends while rank 0 needs it, and Python takes a second longer to end rank 1.
ENDS_EARLY = """
import atexit, os, time, torch
import worker_runtime.torch as hvd
if os.environ["HOROVOD_RANK"] == "1":
    atexit.register(time.sleep, 1)  # after the exit hook of hvd
hvd.init()
if hvd.rank() == 1:
    raise SystemExit
hvd.allreduce(torch.ones(1))
"""


@pytest.mark.parametrize(
    ("how", "code", "sentence", "last_line"),
    [
        ("sys.exit(3)", 3, "exit code 3", "the last line"),
        ("raise ValueError('no such luck')", 1, "exit code 1", "ValueError: no such luck"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", 139, r"killed by SIGSEGV (signal 11)", "the last line"),
    ],
)
def test_the_first_failing_worker_decides_the_code_and_is_named(
    hvdrun: Launcher, how: str, code: int, sentence: str, last_line: str
) -> None:
    hvdrun.write("train.py", ENDS.format(how=how))
    running = hvdrun.start("-np", "2", "python", "train.py")
    running.stdout.wait_for(r"^\[0\] alive$", 60)
    hvdrun.write("go", "")
    finished = running.wait()

    assert finished.returncode == code
    page = finished.stderr[finished.stderr.index("hvdrun: ") :].splitlines()
    assert page[0].startswith("hvdrun: rank 1 on localhost (slot 1) failed first after ")
    assert page[0].endswith(f" s: {sentence}")
    assert f"  | {last_line}" in page
    assert page[-1] == "  hvdrun then stopped rank 0."


@pytest.mark.parametrize(
    ("size", "then", "code"),
    rest_nightly(
        [(2, "time.sleep(600)", 3), (1, "wait_for('go')", 0), (1, "wait_for('go'); os.kill(os.getpid(), 9)", 137)]
    ),
    ids=["it is ended", "it ends well", "it is killed"],
)
def test_a_worker_s_whole_family_ends_with_it(hvdrun: Launcher, size: int, then: str, code: int) -> None:
    hvdrun.write("train.py", FAMILY.format(then=then))
    running = hvdrun.start("-np", str(size), "--grace", "0.5", "python", "train.py")
    running.stdout.wait_for(rf"(^\[0\] .* lives\n){{{FAMILY_SIZE}}}", 60)
    hvdrun.write("go", "")
    assert running.wait().returncode == code
    assert hvdrun.processes("sleep") == ()


def test_a_worker_that_does_not_join_in_time_is_named(hvdrun: Launcher) -> None:
    hvdrun.write("train.py", JOINS)
    finished = hvdrun("-np", "2", "--start-timeout", "8s", "python", "train.py")
    assert finished.returncode == 124
    (said,) = [line for line in finished.stderr.splitlines() if line.startswith("hvdrun: ")]
    assert "rank 1 (localhost:1)" in said
    assert "--start-timeout" in said
    (place,) = [line for line in finished.stderr.splitlines() if line.startswith("[1]") and "train.py" in line]
    assert re.fullmatch(r'\[1\]   File ".*/train.py", line \d+ in <module>', place)


def test_a_rank_that_has_ended_while_another_needs_it_is_the_first_cause(hvdrun: Launcher) -> None:
    hvdrun.write("train.py", ENDS_EARLY)
    finished = hvdrun.start("-np", "2", "python", "train.py").wait()

    assert finished.returncode == 1
    sentence = "is the first cause after .* s: rank 1 ended, and allreduce 'noname.1' needs it"
    assert re.search(rf"^hvdrun: rank 1 on localhost \(slot 1\) {sentence}$", finished.stderr, re.MULTILINE)
