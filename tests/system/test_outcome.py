"""The file of --outcome after each way in which a job may end."""

import json
import signal
from typing import Any

import pytest

from hvdrun.hosts.checkpoints import hold_checkpoints
from tests.system.launcher import Launcher
from tests.system.scripts import WAIT_FOR

OPTIONS = ("-np", "2", "--outcome", "outcome.json")


def read(hvdrun: Launcher) -> dict[str, Any]:
    """The object in the file, beside which there is nothing."""
    (path,) = hvdrun.directory.glob("outcome.json*")
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def test_a_job_writes_its_outcome_at_its_end(hvdrun: Launcher) -> None:
    hvdrun.write("outcome.json", "of an earlier job")
    hvdrun.write("train.py", f"{WAIT_FOR}\nprint('runs')\nwait_for('go')")
    running = hvdrun.start(*OPTIONS, "python", "train.py", "--api-token", "x3")
    running.stdout.wait_for("runs", 60)
    assert not (hvdrun.directory / "outcome.json").exists()
    hvdrun.write("go", "")
    assert running.wait().returncode == 0
    found = read(hvdrun)
    assert (found["exit_code"], found["first_cause"], found["losses"]) == (0, None, [])
    assert found["command"] == ["python", "train.py", "--api-token", "***"]
    assert [(each["workers"], each["round"]) for each in found["sizes"]] == [(2, 0)]
    assert [(each["rank"], each["exit_code"]) for each in found["workers"]] == [(0, 0), (1, 0)]


def test_a_failure_has_its_first_cause(hvdrun: Launcher) -> None:
    hvdrun.write(
        "train.py", "import os\nif os.environ['HOROVOD_RANK'] == '1': os.kill(os.getpid(), 9)\nwhile True: pass"
    )
    assert hvdrun(*OPTIONS, "python", "train.py").returncode == 137
    found = read(hvdrun)
    cause = found["first_cause"]
    assert (found["exit_code"], cause["rank"], cause["signal"]) == (137, 1, "SIGKILL")
    assert (cause["cause"], cause["host"], cause["slot"]) == ("worker failed", "localhost", 1)


def test_a_job_that_is_refused_has_an_outcome_of_its_own(hvdrun: Launcher) -> None:
    hvdrun.write("outcome.json", "of an earlier job")
    assert hvdrun(*OPTIONS, "nosuchprogram").returncode == 127
    found = read(hvdrun)
    assert (found["exit_code"], found["first_cause"]["cause"]) == (127, "not started")
    assert "the command 'nosuchprogram' was not found" in found["first_cause"]["reason"]


def test_a_restart_is_a_loss_with_a_recovery(hvdrun: Launcher) -> None:
    hvdrun.write(
        "train.py", "import os, pathlib\nif not pathlib.Path('x').exists(): pathlib.Path('x').touch(); os._exit(3)"
    )
    assert hvdrun(*OPTIONS, "--max-restarts", "1", "python", "train.py").returncode == 0
    found = read(hvdrun)
    (loss,) = found["losses"]
    assert (found["exit_code"], loss["exit_code"], loss["recovery"]["generation"]) == (0, 3, None)
    assert [(each["workers"], each["round"]) for each in found["sizes"]] == [(2, 0), (2, 1)]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_job_that_was_stopped_says_by_what(hvdrun: Launcher, number: signal.Signals, code: int) -> None:
    hvdrun.write("train.py", "import time\nprint('runs')\ntime.sleep(600)")
    running = hvdrun.start(*OPTIONS, "python", "train.py")
    running.stdout.wait_for("runs", 60)
    running.send(number)
    running.wait()
    found = read(hvdrun)
    assert (found["exit_code"], found["first_cause"]["cause"]) == (code, "stopped")
    assert number.name in found["first_cause"]["reason"]


def test_a_job_that_cannot_start_says_why(hvdrun: Launcher) -> None:
    folder = hvdrun.directory / "saved"
    with hold_checkpoints(folder):
        assert hvdrun(*OPTIONS, "--checkpoint", "saved", "true").returncode == 75
    found = read(hvdrun)
    assert (found["exit_code"], found["first_cause"]["cause"], found["workers"]) == (75, "not started", [])
    assert "another job uses the checkpoints" in found["first_cause"]["reason"]


def test_an_outcome_that_cannot_be_written_starts_nothing(hvdrun: Launcher) -> None:
    finished = hvdrun("-np", "1", "--outcome", "missing/o", "touch", "started")
    sentence = "of --outcome cannot be written: No such file or directory; name another file."
    assert (finished.returncode, sentence in finished.stderr) == (125, True)
    assert not (hvdrun.directory / "started").exists()
