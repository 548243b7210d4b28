"""A process that ends with the one it serves, and finds the modules that that one finds."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from worker_runtime.tether import make_arguments

SAYS = """
import sys
print(__name__, sys.argv, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "says.py").write_text(SAYS)
    (tmp_path / "json.py").write_text("raise ImportError('it hides the one of Python')")
    monkeypatch.syspath_prepend(tmp_path)
    return "says"


def test_it_runs_the_module_until_its_owner_ends(module: str, tmp_path: Path) -> None:
    owner = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    pidfd = os.pidfd_open(owner.pid)
    tethered = subprocess.Popen(
        [sys.executable, "-P", "-c", *make_arguments(pidfd, module, "one", "two")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        pass_fds=(pidfd,),
        cwd="/",
    )
    os.close(pidfd)
    try:
        assert tethered.stdout is not None
        assert tethered.stdout.readline() == f"__main__ ['{tmp_path / 'says.py'}', 'one', 'two']\n"
        assert tethered.poll() is None
        owner.kill()
        assert tethered.wait(20) == 0
    finally:
        for process in (owner, tethered):
            process.kill()
            process.communicate()


def test_it_runs_the_module_to_its_end() -> None:
    pidfd = os.pidfd_open(os.getpid())
    try:
        finished = subprocess.run(
            [sys.executable, "-P", "-c", *make_arguments(pidfd, "platform")],
            capture_output=True,
            text=True,
            pass_fds=(pidfd,),
            timeout=60,
            check=True,
        )
    finally:
        os.close(pidfd)
    assert finished.stdout.startswith("Linux")
