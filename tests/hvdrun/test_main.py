"""The programs themselves: quiet from their first moment, after whatever parent, with whatever standard streams."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hvdrun import __version__
from tests.hvdrun.interpreter import run_python


def test_help_into_a_closed_pipe_ends_like_any_program() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    result = run_python("-m", "hvdrun", "--help", stdout=writing)
    os.close(writing)
    assert (result.returncode, result.stderr) == (141, "")


def test_help_onto_a_full_disk_is_an_error_with_a_remedy() -> None:
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
        from hvdrun.cli.program import main
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


def test_characters_that_the_terminal_cannot_spell_are_spelt_out() -> None:
    run = run_python("-m", "hvdrun", "-np", "1", "--dry-run", "true", "caf\xe9", PYTHONIOENCODING="ascii")
    assert run.returncode == 0
    assert "command    true 'caf\\xe9'\n" in run.stdout


INTERRUPTS = "import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(600)\n"


def test_an_interruption_during_the_imports_is_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "difflib.py").write_text(INTERRUPTS)
    run = run_python("-m", "hvdrun", "--version", PYTHONPATH=str(tmp_path))
    assert (run.returncode, run.stderr) == (-signal.SIGINT, "")


def test_the_command_and_the_module_are_the_same() -> None:
    command = [str(Path(sys.executable).with_name("hvdrun")), "--version"]
    version = subprocess.run(command, capture_output=True, check=True, text=True).stdout
    assert version == f"hvdrun {__version__}\n"
    run = run_python("-m", "hvdrun", "--version")
    assert (run.returncode, run.stdout, run.stderr) == (0, version, "")


PREPARES = """
import resource, signal
from hvdrun.startup.process import prepare_process

signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
for number in (signal.SIGCHLD, signal.SIGHUP, signal.SIGINT):
    signal.signal(number, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_NOFILE, (256, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
prepare_process()
print(signal.pthread_sigmask(signal.SIG_BLOCK, []))
print(*(int(signal.getsignal(number)) for number in (signal.SIGCHLD, signal.SIGHUP, signal.SIGINT)))
print(*set(resource.getrlimit(resource.RLIMIT_NOFILE)))
"""


def test_signals_that_a_careless_parent_ignores_are_restored_and_that_of_nohup_stays() -> None:
    mask, handlers, limits = run_python("-c", PREPARES).stdout.splitlines()
    assert (mask, handlers, len(limits.split())) == ("set()", "0 1 1", 1)


@pytest.mark.parametrize("words", ["hvdrun --version", "hvdrun.agent", "hvdrun.processes.watchdog_process job/host x"])
def test_no_program_of_ours_imports_the_user_s_packages(words: str, tmp_path: Path) -> None:
    for name in ("protos", "rendezvous"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise RuntimeError('not ours')\n", encoding="utf-8")
    run = run_python("-m", *words.split(), cwd=tmp_path, PYTHONPATH=str(tmp_path))
    assert "not ours" not in run.stderr
    assert "Error" not in run.stderr


def test_a_stop_notice_that_comes_while_hvdrun_starts_ends_the_job_with_75() -> None:
    program = """if True:
        import os, signal, sys
        from hvdrun.startup import early

        early.prefer_own_packages = lambda: os.kill(os.getpid(), signal.SIGUSR2)
        from hvdrun.__main__ import main

        sys.exit(main())
    """
    result = run_python("-c", program, "-np", "1", "--no-prefork", "sh", "-c", "echo started")
    assert (result.returncode, result.stdout) == (75, "")
    assert result.stderr.startswith("hvdrun: the job has ended, as its stop notice asked (exit code 75): ")
