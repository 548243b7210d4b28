"""The way into hvdrun is quiet from its first moment."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

INTERRUPTS = "import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(10)\n"


def test_an_interruption_during_the_imports_is_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "click.py").write_text(INTERRUPTS)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    run = subprocess.run(
        [sys.executable, "-m", "hvdrun", "--version"], env=environment, capture_output=True, check=False
    )
    assert run.returncode == -signal.SIGINT
    assert run.stderr == b""


@pytest.mark.parametrize("command", [[str(Path(sys.executable).with_name("hvdrun"))], [sys.executable, "-m", "hvdrun"]])
def test_the_command_and_the_module_are_the_same(command: list[str]) -> None:
    run = subprocess.run([*command, "--version"], capture_output=True, check=False)
    assert (run.returncode, run.stderr) == (0, b"")
    assert run.stdout.startswith(b"hvdrun ")
