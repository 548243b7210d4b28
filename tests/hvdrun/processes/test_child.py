"""A child process is started in a session of its own, is killed only by its parent, and its last line is kept."""

import os
import signal
import sys
from contextlib import closing
from pathlib import Path

import pytest

from hvdrun.processes.child import OutputFile, kill_child, start_child
from tests.hvdrun.agent.sleepers import find

SCRIPT = "import os, sys; print('first\\n' + os.environ['WORD'] + os.getcwd(), file=sys.stderr); sys.stdin.read()"


def test_a_child_leads_a_session_and_its_last_line_can_be_read(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    with closing(OutputFile()) as output:
        assert output.read_last_line() == ""
        command, streams = [sys.executable, "-c", SCRIPT], (reading, output.fileno(), output.fileno())
        pid = start_child(command, streams, directory=str(tmp_path), environment={b"WORD": b"in "})
        os.close(reading)
        assert find(pid).session == pid
        os.close(writing)
        assert os.waitpid(pid, 0)[1] == 0
        assert output.read_last_line() == f"in {tmp_path}"
    assert output.read_last_line() == f"in {tmp_path}"  # closed
    assert not kill_child(pid)


def test_a_child_is_killed_and_no_other_process(tmp_path: Path) -> None:
    nothing = os.open(os.devnull, os.O_RDWR)
    pid = start_child(["sleep", "600"], (nothing,) * 3, directory=str(tmp_path), environment=dict(os.environb))
    os.close(nothing)
    assert kill_child(pid)
    assert os.waitpid(pid, 0)[1] == signal.SIGKILL
    assert not kill_child(os.getppid())


def test_a_command_that_does_not_exist_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        start_child([str(tmp_path / "none")], (0, 1, 2), directory="/", environment={})
