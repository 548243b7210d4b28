"""The way into hvdrun is quiet from its first moment."""

import signal
import subprocess
import sys
from pathlib import Path

from tests.hvdrun.interpreter import run_python

INTERRUPTS = "import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(600)\n"


def test_an_interruption_during_the_imports_is_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "click.py").write_text(INTERRUPTS)
    run = run_python("-m", "hvdrun", "--version", PYTHONPATH=str(tmp_path))
    assert (run.returncode, run.stderr) == (-signal.SIGINT, "")


def test_the_command_and_the_module_are_the_same() -> None:
    command = [str(Path(sys.executable).with_name("hvdrun")), "--version"]
    version = subprocess.run(command, capture_output=True, check=True, text=True).stdout
    assert version.startswith("hvdrun ")
    run = run_python("-m", "hvdrun", "--version")
    assert (run.returncode, run.stdout, run.stderr) == (0, version, "")
