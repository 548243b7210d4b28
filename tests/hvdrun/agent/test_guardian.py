"""The guardian ends what an agent leaves behind, and nothing else."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hvdrun.agent import processes
from hvdrun.agent.guardian import is_in_one_of
from tests.hvdrun.agent.sleepers import is_alive, sleeping

ORIGIN = "job/a"
OURS = {"HVD_JOB": "job", "HVD_SLOT": "a:0", "HVD_INCARNATION": "1"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "hvdrun-folder"
    path.mkdir()
    (path / "agent.sock").touch()
    return path


@pytest.fixture
def guardian(folder: Path) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-P", "-m", "hvdrun.agent.guardian", ORIGIN, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, text=True, start_new_session=True) as process:
        yield process


def start_time(pid: int) -> int:
    process = processes.look(pid)
    assert process is not None
    return process.started


def tell(guardian: subprocess.Popen[str], *lines: str) -> int:
    """Say these lines, and nothing more; how the guardian ends."""
    guardian.communicate("".join(f"{line}\n" for line in lines), timeout=15)
    return guardian.returncode


def test_at_the_end_of_its_pipe_it_ends_the_sessions_and_removes_the_folder(
    guardian: subprocess.Popen[str], folder: Path
) -> None:
    with sleeping("trap '' TERM; sleep 600 & echo $!") as worker:
        told = f"session {worker.pid} {start_time(worker.pid)}"
        assert tell(guardian, told) == 0
        assert worker.wait(10) == -9
        assert [process for process in processes.running() if process.session == worker.pid] == []
    assert not folder.exists()


def test_it_finds_what_was_started_by_the_agent_s_workers_wherever_it_went(guardian: subprocess.Popen[str]) -> None:
    inner = {**OURS, "HVD_JOB": "job/a/0.1/inner", "HVD_SLOT": "b:0"}
    with sleeping(environment=OURS) as stray, sleeping(environment=inner) as inner_worker:
        assert tell(guardian) == 0
        assert (stray.wait(10), inner_worker.wait(10)) == (-9, -9)


def test_it_leaves_everybody_else_alone(guardian: subprocess.Popen[str]) -> None:
    others = [OURS | {"HVD_SLOT": "b:0"}, OURS | {"HVD_JOB": "another"}, {}]
    with (
        sleeping(environment=others[0]) as of_another_host,
        sleeping(environment=others[1]) as of_another_job,
        sleeping(environment=others[2]) as stranger,
    ):
        assert tell(guardian) == 0
        assert all(is_alive(process.pid) for process in (of_another_host, of_another_job, stranger))


def test_a_session_that_has_ended_is_forgotten(guardian: subprocess.Popen[str]) -> None:
    with sleeping() as later:
        assert tell(guardian, f"session {later.pid} {start_time(later.pid)}", f"end {later.pid}") == 0
        assert is_alive(later.pid)


def test_a_session_whose_leader_is_another_is_left_alone(guardian: subprocess.Popen[str]) -> None:
    with sleeping("sleep 600 & echo $!") as stranger:
        assert tell(guardian, f"session {stranger.pid} {start_time(stranger.pid) - 1}") == 0
        assert len([process for process in processes.running() if process.session == stranger.pid]) == 3


def test_an_agent_that_leaves_in_good_order_needs_no_guardian(guardian: subprocess.Popen[str], folder: Path) -> None:
    with sleeping(environment=OURS) as worker:
        assert tell(guardian, f"session {worker.pid} {start_time(worker.pid)}", "done") == 0
        assert is_alive(worker.pid)
    assert folder.exists()


def test_words_that_it_does_not_know_are_nothing_to_it(guardian: subprocess.Popen[str], folder: Path) -> None:
    assert tell(guardian, "", "session", "what now", "end 4711") == 0
    assert not folder.exists()


def test_a_session_outlives_its_leader() -> None:
    with sleeping("sleep 600 &") as leader:
        sessions = {leader.pid: start_time(leader.pid)}
        (child, *_) = [process for process in processes.running() if process.session == leader.pid != process.pid]
        leader.kill()
        leader.wait(10)
        assert is_in_one_of(sessions, child)
        assert not is_in_one_of({}, child)
