"""What an agent finds out about its own host."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from hvdrun.agent.examination import examine, is_agent_command
from hvdrun.version import __version__
from rendezvous.bootstrap import JOB
from tests.waiting import wait_until

# The process that stays has no parent but init: the one between has ended.
ORPHAN = "import os, time\nif (pid := os.fork()): print(pid)\nelse: os.close(1); os.setsid(); time.sleep(300)"


@pytest.fixture
def orphan(tmp_path: Path) -> Iterator[int]:
    """The pid of a process that an earlier job has left."""
    environment = {**os.environ, JOB: f"job-of-{tmp_path.name}"}
    said = subprocess.run([sys.executable, "-c", ORPHAN], env=environment, stdout=subprocess.PIPE, check=True)
    pid = int(said.stdout)
    yield pid
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def test_this_host_is_described(tmp_path: Path) -> None:
    facts = examine(str(tmp_path))
    assert facts.python.startswith(f"{sys.version_info.major}.{sys.version_info.minor}.")
    assert facts.packages["hvdrun"] == __version__
    assert facts.memory > 0
    assert facts.free[str(tmp_path)] > 0


def test_cuda_is_read_without_an_import_of_torch() -> None:
    program = (
        "import sys; from hvdrun.agent.examination import examine; facts = examine('/'); "
        "print('torch' in facts.packages, 'torch' in sys.modules, facts.cuda == '')"
    )
    said = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, check=True)
    assert said.stdout.split()[:2] == ["True", "False"]


def test_variables_and_folders_of_the_environment_are_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.stat

    def refuse(path: object, **given: object) -> os.stat_result:
        if path == "/secret":
            raise PermissionError(13, "Permission denied")
        return real(path, **given)  # type: ignore[arg-type]  # what was given

    monkeypatch.setattr(os, "stat", refuse)
    facts = examine(str(tmp_path), {"PATH": f"/secret:/missing:{tmp_path}", "https_proxy": "http://p:1"})
    assert facts.unreadable == ("/secret",)
    assert facts.proxies == ("https_proxy",)


def test_the_processes_of_an_earlier_job_are_found_and_ended(orphan: int, tmp_path: Path) -> None:
    (left,) = [each for each in examine(str(tmp_path)).leftovers if each.pid == orphan]
    assert "time.sleep(300)" in left.command
    examine(str(tmp_path), cleans=True)
    wait_until(lambda: not psutil.pid_exists(orphan), "the end of the process")


@pytest.mark.parametrize(
    ("words", "starts_agent"),
    [
        ("python -P -m hvdrun.agent", True),
        ("python /opt/bin/hvdrun agent --join a:1", True),  # process 1 of a container, perhaps
        ("hvdrun -np 2 python agent", False),
        ("vi hvdrun/agent/agent.py", False),
    ],
)
def test_the_command_of_an_agent_is_known(words: str, *, starts_agent: bool) -> None:
    assert is_agent_command([word.encode() for word in words.split()]) is starts_agent


def test_a_process_of_a_living_program_is_no_leftover(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "import time; time.sleep(300)"]
    with subprocess.Popen(command, env={**os.environ, JOB: f"job-of-{tmp_path.name}"}) as running:
        try:
            assert running.pid not in {each.pid for each in examine(str(tmp_path)).leftovers}
        finally:
            running.kill()
