"""The agent's unit file is valid for systemd, and its command line for hvdrun."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hvdrun.options.table import OPTIONS
from tests.house.sources import ROOT

UNIT = ROOT / "deploy" / "systemd" / "hvdrun-agent.service"


def start_line(text: str) -> list[str]:
    """The words of the command that the unit starts."""
    (line,) = re.findall(r"^ExecStart=(.*)$", text, re.MULTILINE)
    return str(line).split()


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd-analyze: apt install systemd")
@pytest.mark.parametrize(("old", "new", "is_valid"), [("", "", True), ("KillMode=mixed", "KillMode=some", False)])
def test_systemd_accepts_the_unit_file_and_finds_a_wrong_value(
    tmp_path: Path, old: str, new: str, is_valid: bool
) -> None:
    program, *_ = start_line(UNIT.read_text())
    unit = tmp_path / UNIT.name
    unit.write_text(UNIT.read_text().replace(program, sys.executable).replace(old, new), encoding="utf-8")
    done = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stderr == "") is is_valid, done.stderr


def test_hvdrun_accepts_the_command_line_of_the_unit(tmp_path: Path) -> None:
    _, *words = start_line(UNIT.read_text().replace("${JOIN}", "a:1").replace("${SLOTS}", "1"))
    line = [sys.executable, "-m", "hvdrun", *words, "--help"]
    answer = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)
    assert "Usage: hvdrun agent" in answer.stdout, answer.stderr


def test_a_stop_leaves_time_for_the_grace() -> None:
    (limit,) = re.findall(r"^TimeoutStopSec=(\d+)$", UNIT.read_text(), re.MULTILINE)
    (grace,) = (option.default for option in OPTIONS if option.dest == "grace_seconds")
    assert float(limit) > 2 * float(str(grace).removesuffix("s"))
