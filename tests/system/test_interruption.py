"""Signals to hvdrun, and a reader of its output who has gone: workers are asked, then forced, and nothing is left."""

import random
import re
import shlex
import signal
import time

import pytest

from hvdrun.errors import OUTPUT_LOST
from tests.system.launcher import Launcher, Running
from tests.system.roles import find_agent
from tests.system.scripts import WAIT_FOR
from tests.system.tables import rest_nightly
from tests.system.terminal import CTRL_C, Terminal
from tests.waiting import wait_until

PATIENT = "600s"  # a grace that no test waits for
STARTS = 8
START_SECONDS = 0.4  # about what it takes until the workers run
BYTES = 1_000_000  # more than pipes hold, less than hvdrun and its agent keep

CLEANS_UP = """
import signal, sys, time

def clean_up(number, frame):
    time.sleep(0.2)
    print("cleaned up", flush=True)
    sys.exit(0)

signal.signal(signal.SIGTERM, clean_up)
signal.signal(signal.SIGINT, clean_up)
print("alive", flush=True)
while True:
    time.sleep(0.1)  # a handler whose signal comes just before a sleep runs after it
"""

GOES_ON = """
import signal, time

for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, lambda number, frame: print("not yet", flush=True))
print("alive", flush=True)
while True:
    time.sleep(0.1)
"""

FAILS_IN_RANK_1 = f"""{WAIT_FOR}
if os.environ["HOROVOD_RANK"] == "1":
    wait_for("go")
    sys.exit(3)
"""
# Of a SIGINT hvdrun dies itself.
ENDINGS = {signal.SIGTERM: 143, signal.SIGINT: -signal.SIGINT, signal.SIGHUP: 129}
SENTENCES = {
    signal.SIGTERM: "hvdrun: received SIGTERM.\n",
    signal.SIGINT: "hvdrun: stopping 2 workers; Ctrl-C again stops them immediately.\n",
    signal.SIGHUP: "hvdrun: received SIGHUP.\n",
}


def start(hvdrun: Launcher, script: str, *options: str, size: int = 2) -> Running:
    """Start a job whose workers all live."""
    hvdrun.write("train.py", script)
    running = hvdrun.start("-np", str(size), *options, "python", "train.py")
    for rank in range(size):
        running.stdout.wait_for(rf"^\[{rank}\] alive$", 60)
    return running


@pytest.mark.parametrize(
    ("number", "is_typed"),
    rest_nightly(
        [
            (signal.SIGTERM, False),
            (signal.SIGINT, True),
            (signal.SIGHUP, True),
            (signal.SIGINT, False),
            (signal.SIGHUP, False),
        ],
        first=3,
    ),
    ids=["SIGTERM", "Ctrl-C", "hang-up", "SIGINT", "SIGHUP"],
)
def test_a_signal_lets_workers_clean_up_and_the_code_names_it(
    hvdrun: Launcher, number: signal.Signals, *, is_typed: bool
) -> None:
    """One from the terminal reaches the workers only through hvdrun."""
    running = start(hvdrun, CLEANS_UP, "--grace", PATIENT)
    if is_typed:
        running.send_to_terminal(number)
    else:
        running.send(number)
    finished = running.wait()
    assert finished.returncode == ENDINGS[number]
    assert sorted(finished.stdout.splitlines()[2:]) == ["[0] cleaned up", "[1] cleaned up"]
    assert finished.stderr == SENTENCES[number]


SAVES = """
import os, time
print("alive", flush=True)
try:
    time.sleep(600)
except KeyboardInterrupt:
    print("saved", flush=True)
    raise
"""


def test_ctrl_c_is_a_keyboard_interrupt_in_the_workers_and_ends_the_shell_s_loop_too(hvdrun: Launcher) -> None:
    hvdrun.write("train.py", SAVES)
    once = shlex.join(hvdrun.command("-np", "2", "--grace", PATIENT, "python", "train.py"))
    loop = f"for round in 1 2 3; do {once}; echo continues; done"
    with Terminal("bash", "-c", loop, directory=hvdrun.directory, environment=hvdrun.environment()) as terminal:
        terminal.wait_for(r" alive\r$", 60, count=2)
        terminal.press(CTRL_C)
        assert terminal.wait(60) == -signal.SIGINT
        screen = terminal.screen()
    said = [line.removeprefix("^C") for line in screen if "alive" not in line]
    places = [re.sub(" at .*/train", " at train", line) for line in said[1:] if "saved" not in line]
    assert sorted(places) == [f"[{rank}] interrupted at train.py:5, in <module>: time.sleep(600)" for rank in (0, 1)]
    assert sorted(line for line in said if "saved" in line) == ["[0] saved", "[1] saved"]
    assert said[0] == "hvdrun: stopping 2 workers; Ctrl-C again stops them immediately."


@pytest.mark.parametrize("number", rest_nightly(ENDINGS))
def test_a_second_signal_does_not_wait_for_the_grace(hvdrun: Launcher, number: signal.Signals) -> None:
    running = start(hvdrun, GOES_ON, "--grace", PATIENT)
    running.send(number)
    for rank in range(2):
        running.stdout.wait_for(rf"^\[{rank}\] not yet$", 60)
    running.send(number)
    assert running.wait().returncode == ENDINGS[number]


def test_signals_while_a_failed_job_is_being_ended_leave_the_code(hvdrun: Launcher) -> None:
    hvdrun.write("train.py", FAILS_IN_RANK_1 + GOES_ON)
    running = hvdrun.start("-np", "2", "--grace", PATIENT, "python", "train.py")
    running.stdout.wait_for(r"^\[0\] alive$", 60)
    hvdrun.write("go", "")
    running.stdout.wait_for(r"^\[0\] not yet$", 60)
    running.send(signal.SIGTERM)
    running.send(signal.SIGINT)
    assert running.wait().returncode == 3


def test_a_worker_that_ignores_its_end_is_killed_after_the_grace(hvdrun: Launcher) -> None:
    running = start(hvdrun, GOES_ON, "--grace", "0.5", size=1)
    running.send(signal.SIGTERM)
    finished = running.wait()
    assert finished.returncode == 143
    assert finished.stdout == "[0] alive\n[0] not yet\n"


@pytest.mark.parametrize("number", rest_nightly(ENDINGS))
def test_a_signal_at_any_moment_of_the_start_leaves_nothing(hvdrun: Launcher, number: signal.Signals) -> None:
    moments = random.Random(number)  # noqa: S311 - moments, not secrets
    for _ in range(STARTS):
        running = hvdrun.start("-np", "2", "sleep", "600")
        time.sleep(moments.uniform(0, START_SECONDS))  # the moment is what is tested, and no event marks it
        running.send(number)
        finished = running.wait()
        if met_python_itself(finished.stderr):
            continue
        # Before hvdrun can answer, the signal itself ends it; a shell sees the same code.
        assert finished.returncode in {ENDINGS[number], -number}
        assert "hvdrun" not in finished.stderr.replace(SENTENCES[number], ""), finished.stderr
        assert "Exception ignored" not in finished.stderr
    assert not hvdrun.watch.settle()


def met_python_itself(errors: str) -> bool:
    """A SIGINT came while the interpreter started, or ran the first import of ours, before any function did."""
    is_early = errors.startswith("Fatal Python error: init_")  # of its streams, or of the module site
    return is_early or (errors.rstrip().endswith("KeyboardInterrupt") and ", in main\n" not in errors)


def test_a_reader_that_has_gone_ends_the_job(hvdrun: Launcher) -> None:
    hvdrun.write("train.py", "import time\nwhile True:\n    print('line', flush=True)\n    time.sleep(0.02)\n")
    process, stdout = hvdrun.open("-np", "2", "python", "train.py")
    assert stdout.readline() in {b"[0] line\n", b"[1] line\n"}
    stdout.close()
    assert process.wait(60) == 141
    assert process.stderr is not None
    assert b"Traceback" not in process.stderr.read()
    assert hvdrun.processes() == ()


# Seconds that the reader pauses: none, and longer than any limit that hvdrun has for what it waits for otherwise.
@pytest.mark.parametrize("seconds", rest_nightly([0, 7]))
def test_a_reader_that_pauses_after_the_workers_have_ended_loses_nothing(hvdrun: Launcher, seconds: int) -> None:
    process, stdout = hvdrun.open("-np", "1", "head", "-c", str(BYTES), "/dev/zero")
    first = stdout.read(1)
    wait_until(lambda: find_agent(hvdrun) is None)  # the agent ends when hvdrun has all output
    time.sleep(seconds)  # no event shows that nothing happens
    assert process.poll() is None
    assert (first + stdout.read()).count(b"\0") == BYTES
    assert process.wait(60) == 0


def test_a_signal_ends_the_wait_for_a_reader_that_pauses(hvdrun: Launcher) -> None:
    process, stdout = hvdrun.open("-np", "1", "head", "-c", str(BYTES), "/dev/zero")
    stdout.read(1)
    wait_until(lambda: find_agent(hvdrun) is None)
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == OUTPUT_LOST  # the workers had ended well
    assert process.stderr is not None
    assert (
        b"hvdrun: a part of the standard output is lost: the wait for a reader that pauses was cut short\n"
        in process.stderr.read()
    )
