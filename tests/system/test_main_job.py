"""The example trains on real data, with any number of workers and without hvdrun."""

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.system.launcher import Launcher
from tests.waiting import wait_until

EXAMPLES = Path(__file__).parents[2] / "examples"
SCRIPT = EXAMPLES / "torch_digits.py"
LIMIT_SECONDS = 110
EPOCHS = "12"  # enough for the accuracy that is promised
ENVIRONMENT = {"OMP_NUM_THREADS": "1"}  # keeps a run short on a busy machine


def read_accuracy(line: str) -> float:
    """The number in the example's last line."""
    found = re.fullmatch(r"test accuracy (\d\.\d{3})", line)
    assert found is not None, line
    return float(found[1])


@pytest.mark.nightly
def test_the_example_learns_with_four_workers(hvdrun: Launcher) -> None:
    command = ("python", SCRIPT, "--epochs", EPOCHS)
    finished = hvdrun("-np", "4", *command, environment=ENVIRONMENT, limit_seconds=LIMIT_SECONDS)
    assert (finished.returncode, finished.stderr) == (0, "")
    device, *epochs, last = finished.stdout.splitlines()
    assert device.endswith("; 4 workers on 1 host")
    assert len(epochs) == int(EPOCHS)
    assert read_accuracy(last.removeprefix("[0] ")) >= 0.95


@pytest.mark.nightly
def test_the_example_with_two_workers_continues_after_a_stop_notice(hvdrun: Launcher) -> None:
    command = ("python", SCRIPT, "--epochs", EPOCHS, "--checkpoint", hvdrun.directory / "digits.pt")
    running = hvdrun.start("-np", "2", "--grace", f"{LIMIT_SECONDS}s", *command, environment=ENVIRONMENT)
    wait_until(lambda: "epoch  2" in running.stdout.text())
    running.send(signal.SIGUSR2)
    stopped = running.wait(LIMIT_SECONDS)
    assert stopped.returncode == 75
    finished = hvdrun("-np", "2", *command, environment=ENVIRONMENT, limit_seconds=LIMIT_SECONDS)
    assert (finished.returncode, finished.stderr) == (0, "")
    *before, after = (stopped.stdout + finished.stdout).splitlines()
    assert [int(line.split()[2]) for line in before if "epoch" in line] == list(range(1, int(EPOCHS) + 1))
    assert read_accuracy(after.removeprefix("[0] ")) >= 0.95


@pytest.mark.nightly
def test_the_example_learns_without_hvdrun(hvdrun: Launcher) -> None:
    run = subprocess.run(
        [sys.executable, SCRIPT, "--epochs", EPOCHS],
        env={**hvdrun.environment(), **ENVIRONMENT},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert (run.returncode, run.stderr) == (0, "")
    assert read_accuracy(run.stdout.splitlines()[-1]) >= 0.95


def test_the_example_of_a_loss_ends_with_its_figure_and_no_step_lost(hvdrun: Launcher) -> None:
    command = ("python", EXAMPLES / "torch_worker_loss.py")
    finished = hvdrun("-np", "3", "--min-np", "2", *command, environment=ENVIRONMENT, limit_seconds=LIMIT_SECONDS)
    assert finished.returncode == 0, finished.stderr
    last = finished.stdout.splitlines()[-1]
    assert re.fullmatch(r"\[0\] the job continued after \d+ ms; no step was lost", last)
