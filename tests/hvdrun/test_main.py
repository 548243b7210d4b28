"""The program itself: quiet from its first moment, and with standard streams that are closed, full or narrow."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hvdrun.cli import main
from tests.hvdrun.interpreter import run_python


def test_help_into_a_closed_pipe_ends_like_any_program() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    result = run_python("-m", "hvdrun", "--help", stdout=writing)
    os.close(writing)
    assert (result.returncode, result.stderr) == (141, "")


def test_help_onto_a_full_disk_says_so() -> None:
    with Path("/dev/full").open("wb") as full:
        result = run_python("-m", "hvdrun", "--help", stdout=full)
    remedy = "see what it is redirected to"
    assert result.stderr == f"hvdrun: the standard output cannot be written: No space left on device; {remedy}.\n"
    assert result.returncode == 74


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_descriptors_change_no_exit_code(closed: str) -> None:
    result = run_python("-m", "hvdrun", "-np", "0", "true", around=closed)
    assert (result.returncode, result.stdout) == (2, "")


def test_with_a_closed_stdout_the_output_goes_into_no_other_file(tmp_path: Path) -> None:
    program = """if True:
        import asyncio, sys
        from hvdrun.cli import main
        from rendezvous.core.model import Slot, Worker

        def launch(spec, console):
            with open(sys.argv[1], "w"):
                asyncio.run(console.output.write(Worker(Slot("a", 0), 1), 0, 1, b"text\\n"))
                console.end(10)
            return 0

        sys.exit(main(["-np", "1", "true"], launch))
    """
    assert run_python("-c", program, tmp_path / "file", around=">&-").returncode == 0
    assert (tmp_path / "file").read_bytes() == b""


def test_without_a_stderr_nothing_is_said(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    assert main(["-np", "0"]) == 2
    assert capfd.readouterr() == ("", "")


def test_what_the_terminal_cannot_spell_is_spelt_out() -> None:
    run = run_python("-m", "hvdrun", "-np", "1", "--dry-run", "true", "caf\xe9", PYTHONIOENCODING="ascii")
    assert run.returncode == 0
    assert "command    true 'caf\\xe9'\n" in run.stdout


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
