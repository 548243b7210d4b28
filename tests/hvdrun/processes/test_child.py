"""A child leads a session, only its parent kills it, its last line is kept, and its end is reported once."""

import os
import signal
import sys
from contextlib import closing
from pathlib import Path

import pytest

from hvdrun.processes.child import Children, OutputFile, kill_child, start_child
from tests.hvdrun.agent.alone import alone
from tests.hvdrun.agent.sleepers import find
from tests.waiting import happen, wait_until

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


def start_shell(script: str) -> int:
    return start_child(["sh", "-c", script], (0, 1, 2), directory="/", environment=dict(os.environb))


def is_zombie(pid: int) -> bool:
    return find(pid).state == "Z"


@alone
async def test_a_child_that_ended_before_reaping_began_is_reported() -> None:
    children, codes = Children(), list[int]()
    pid = start_shell("exit 3")
    children.watch(pid, codes.append)
    wait_until(lambda: is_zombie(pid))
    children.open()
    assert codes == [3]
    children.close()


@alone
async def test_a_child_that_ended_before_its_pid_was_known_is_reported() -> None:
    children, codes = Children(), list[int]()
    children.open()
    with children.starting():
        pid = start_shell("kill -9 $$")
        await happen(lambda: not Path(f"/proc/{pid}").exists(), "the end of the child")
        children.watch(pid, codes.append)
    assert codes == [-signal.SIGKILL]
    children.close()


@alone
async def test_orphans_and_forgotten_children_are_reaped_and_not_reported() -> None:
    children, codes = Children(), list[int]()
    children.open()
    pid = start_shell("sh -c 'exit 5' & exit 4")
    children.watch(pid, codes.append)
    children.forget(pid)
    last = start_shell("exit 6")
    children.watch(last, codes.append)
    await happen(lambda: codes == [6], "the end of the last child")
    await happen(lambda: not Path(f"/proc/{pid}").exists(), "the end of the forgotten child")
    assert codes == [6]
    children.close()
