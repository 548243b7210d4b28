"""The agents of a job on this machine are found without a launcher, and are asked to stop."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hvdrun.cli.program import main
from hvdrun.jobs.local_agents import LocalAgent, find_agents
from hvdrun.processes.watchdog import Watchdog
from rendezvous.bootstrap import name_stop_file
from tests.waiting import wait_until

JOB = f"here-{os.getpid()}"
# An agent that only has a watchdog, and ends with 5 after a stop notice.
AGENT = """
import signal, sys
from pathlib import Path
from hvdrun.processes.watchdog import Watchdog

folder = Path(sys.argv[2])
folder.mkdir()
watchdog = Watchdog(sys.argv[1], (folder,))
watchdog.start()
signal.signal(signal.SIGUSR2, lambda *_: (watchdog.end(), folder.rmdir(), sys.exit(5)))
print("ready", flush=True)
while True:
    signal.pause()
"""


@pytest.fixture
def agent(tmp_path: Path) -> Iterator["subprocess.Popen[bytes]"]:
    words = [sys.executable, "-c", AGENT, f"{JOB}~2/host", str(tmp_path / "folder")]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        wait_until(lambda: find() != [], "the kernel to tell the words of a watchdog that was just executed")
        yield process
        process.kill()
    wait_until(lambda: not (tmp_path / "folder").exists(), "the watchdog to clean up")


def find() -> list[LocalAgent]:
    return [agent for agent in find_agents() if agent.job == JOB]


def test_an_agent_is_found_by_its_watchdog(agent: "subprocess.Popen[bytes]", tmp_path: Path) -> None:
    (found,) = find()
    assert (found.process.pid, found.folder) == (agent.pid, tmp_path / "folder")
    assert found.is_running


def test_a_watchdog_of_a_discovery_script_is_no_agent() -> None:
    watchdog = Watchdog(f"{JOB}/host")
    watchdog.start()
    try:
        assert find() == []
    finally:
        watchdog.end()


def test_another_parent_of_a_watchdog_is_no_agent(tmp_path: Path) -> None:
    """A watchdog whose agent was killed gets init as its parent, and nobody may signal that."""
    words = [sys.executable, "-P", "-m", "hvdrun.processes.watchdog_process", f"{JOB}/host", str(tmp_path / "folder")]
    read, write = os.pipe()
    with subprocess.Popen(["sleep", "600"], stdin=write) as writer:
        os.close(write)
        with subprocess.Popen(words, stdin=read) as watchdog:
            os.close(read)
            found = find()
            watchdog.kill()
        writer.kill()
    assert found == []


def test_workers_that_have_a_stop_notice_get_a_signal(agent: "subprocess.Popen[bytes]") -> None:
    (found,) = find()
    name_stop_file(found.folder / "agent.sock").touch()
    found.stop()
    assert agent.wait() == -signal.SIGTERM
    wait_until(lambda: not found.is_running)


def test_stop_here_returns_when_the_agent_has_ended(
    agent: "subprocess.Popen[bytes]", capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["stop", "--here", JOB]) == 0
    assert agent.wait() == 5
    assert f"the job {JOB} gets a stop notice here: without a launcher it has a minute" in capsys.readouterr().err


def test_stop_here_without_such_an_agent_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["stop", "--here", "no-such-job"]) == 69
    assert capsys.readouterr().err == "hvdrun: nothing of a job no-such-job of this user runs on this machine.\n"
