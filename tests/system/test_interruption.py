"""Signals to hvdrun, and a reader of its output who has gone: workers are asked, then forced, and nothing is left."""

import os
import random
import signal
import subprocess
import sys
import time

import pytest

from tests.system.launcher import Launcher
from tests.system.roles import find_agent, wait_until

HURRY_SECONDS = 2.0  # what "at once" may take on a busy machine; the grace that is not waited for is much longer
PATIENT = "30s"
STARTS = 8
START_SECONDS = 0.4  # about what it takes until the workers run

CLEANS_UP = """
import signal, sys, time

def clean_up(number, frame):
    time.sleep(0.2)
    print("cleaned up", flush=True)
    sys.exit(0)

signal.signal(signal.SIGTERM, clean_up)
print("alive", flush=True)
time.sleep(600)
"""

GOES_ON = """
import signal, time

signal.signal(signal.SIGTERM, lambda number, frame: print("not yet", flush=True))
print("alive", flush=True)
while True:
    time.sleep(600)
"""

FAILS_IN_RANK_1 = """
import os, pathlib, sys, time

if os.environ["HOROVOD_RANK"] == "1":
    while not pathlib.Path("go").exists():
        time.sleep(0.01)
    sys.exit(3)
"""

WAITS = """
import pathlib, time

print("alive", flush=True)
while not pathlib.Path("go").exists():
    time.sleep(0.01)
"""

STOPPED = pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)],
    ids=["SIGINT", "SIGTERM", "SIGHUP"],
)


@STOPPED
def test_the_workers_may_clean_up_and_the_code_names_the_signal(
    hvdrun: Launcher, number: signal.Signals, code: int
) -> None:
    hvdrun.write("train.py", CLEANS_UP)
    running = hvdrun.start("-np", "2", "--grace", PATIENT, "python", "train.py")
    for rank in range(2):
        running.stdout.wait_for(rf"^\[{rank}\] alive$", 20)
    running.send(number)
    finished = running.wait(20)
    assert finished.returncode == code
    assert sorted(finished.stdout.splitlines()[2:]) == ["[0] cleaned up", "[1] cleaned up"]
    assert finished.stderr == f"hvdrun: {number.name} came to hvdrun.\n"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGHUP, 129)], ids=["Ctrl-C", "hang-up"])
def test_a_signal_from_the_terminal_reaches_the_workers_only_through_hvdrun(
    hvdrun: Launcher, number: signal.Signals, code: int
) -> None:
    hvdrun.write("train.py", CLEANS_UP)
    running = hvdrun.start("-np", "1", "python", "train.py")
    running.stdout.wait_for(r"^\[0\] alive$", 20)
    running.send_to_terminal(number)
    finished = running.wait(20)
    assert finished.returncode == code
    assert finished.stdout == "[0] alive\n[0] cleaned up\n"


@STOPPED
def test_a_second_signal_ends_the_job_at_once(hvdrun: Launcher, number: signal.Signals, code: int) -> None:
    hvdrun.write("train.py", GOES_ON)
    running = hvdrun.start("-np", "2", "--grace", PATIENT, "python", "train.py")
    for rank in range(2):
        running.stdout.wait_for(rf"^\[{rank}\] alive$", 20)
    running.send(number)
    for rank in range(2):
        running.stdout.wait_for(rf"^\[{rank}\] not yet$", 20)
    began = time.monotonic()
    running.send(number)
    assert running.wait(20).returncode == code
    assert time.monotonic() - began < HURRY_SECONDS


def test_a_signal_while_the_others_of_a_failed_worker_are_being_ended_leaves_the_code(hvdrun: Launcher) -> None:
    hvdrun.write("train.py", FAILS_IN_RANK_1 + GOES_ON)
    running = hvdrun.start("-np", "2", "--grace", PATIENT, "python", "train.py")
    running.stdout.wait_for(r"^\[0\] alive$", 20)
    hvdrun.write("go", "")
    running.stdout.wait_for(r"^\[0\] not yet$", 20)
    running.send(signal.SIGINT)
    running.send(signal.SIGTERM)
    finished = running.wait(20)
    assert finished.returncode == 3
    assert finished.seconds < 10


def test_a_worker_that_ignores_its_end_is_killed_after_the_grace(hvdrun: Launcher) -> None:
    hvdrun.write("train.py", GOES_ON)
    running = hvdrun.start("-np", "1", "--grace", "0.5", "python", "train.py")
    running.stdout.wait_for(r"^\[0\] alive$", 20)
    running.send(signal.SIGTERM)
    finished = running.wait(20)
    assert finished.returncode == 143
    assert finished.stdout == "[0] alive\n[0] not yet\n"
    assert 0.5 < finished.seconds < 10


@STOPPED
def test_a_signal_at_any_moment_of_the_start_leaves_nothing(
    hvdrun: Launcher, number: signal.Signals, code: int
) -> None:
    moments = random.Random(number)  # noqa: S311 - moments, not secrets
    for _ in range(STARTS):
        running = hvdrun.start("-np", "2", "sleep", "600")
        time.sleep(moments.uniform(0, START_SECONDS))  # the moment is what is tested, and no event marks it
        running.send(number)
        finished = running.wait(20)
        if met_python_itself(finished.stderr):
            continue
        # Before hvdrun can answer, the signal itself ends it; a shell sees the same code.
        assert finished.returncode in {code, -number}
        assert "hvdrun" not in finished.stderr.replace(f"hvdrun: {number.name} came to hvdrun.", "")
        assert "Exception ignored" not in finished.stderr
    assert not hvdrun.watch.settle()


def met_python_itself(errors: str) -> bool:
    """A SIGINT came while the interpreter started, or ran the first import of ours, before any function did."""
    is_early = errors.startswith("Fatal Python error: init_import_site: ")
    return is_early or (errors.rstrip().endswith("KeyboardInterrupt") and ", in main\n" not in errors)


def test_a_hang_up_that_nohup_has_taken_away_does_not_end_the_job(hvdrun: Launcher) -> None:
    hvdrun.write("train.py", WAITS)
    with subprocess.Popen(
        ["nohup", sys.executable, "-m", "hvdrun", "-np", "1", "python", "train.py"],
        cwd=hvdrun.directory,
        env=hvdrun.environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"[0] alive\n"
        os.killpg(process.pid, signal.SIGHUP)
        hvdrun.write("go", "")
        assert process.wait(20) == 0


def test_a_reader_who_has_gone_ends_the_job(hvdrun: Launcher) -> None:
    hvdrun.write("train.py", "import time\nwhile True:\n    print('line', flush=True)\n    time.sleep(0.02)\n")
    with subprocess.Popen(
        [sys.executable, "-m", "hvdrun", "-np", "2", "python", "train.py"],
        cwd=hvdrun.directory,
        env=hvdrun.environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() in {b"[0] line\n", b"[1] line\n"}
        process.stdout.close()
        assert process.wait(20) == 141
        assert b"Traceback" not in process.stderr.read()
    assert hvdrun.processes() == ()


def test_a_reader_who_pauses_after_the_workers_have_ended_loses_nothing(hvdrun: Launcher) -> None:
    size = 1_000_000  # more than pipes hold, less than hvdrun and its agent keep
    with subprocess.Popen(
        [sys.executable, "-m", "hvdrun", "-np", "1", "head", "-c", str(size), "/dev/zero"],
        cwd=hvdrun.directory,
        env=hvdrun.environment(),
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        first = process.stdout.read(1)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(7)  # longer than any limit that hvdrun has for what it waits for otherwise
        rest = process.stdout.read()
        assert process.wait(20) == 0
    assert (first + rest).count(b"\0") == size


def test_a_signal_ends_the_wait_for_a_reader_who_pauses(hvdrun: Launcher) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "hvdrun", "-np", "1", "head", "-c", "1000000", "/dev/zero"],
        cwd=hvdrun.directory,
        env=hvdrun.environment(),
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        process.stdout.read(1)
        wait_until(lambda: find_agent(hvdrun) is None)  # it goes when hvdrun has all its output
        process.send_signal(signal.SIGINT)
        assert process.wait(5) == 0  # the workers had ended well
        process.stdout.close()
