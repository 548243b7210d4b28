"""A job's start with a host that cannot be connected to, and its name; all else of a whole job is in tests/system.

`far` is an address of this machine, at which the test decides what listens.
"""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hvdrun.transport.ssh.servers import write_ssh
from tests.waiting import LIMIT_SECONDS, wait_until

pytestmark = pytest.mark.system

# Signals hvdrun while it clears away, and would then wait for ever.
SIGNALS_ITSELF = """
import asyncio, os, signal, sys
from hvdrun.cli.program import main
from hvdrun.hosts.agent_pool import AgentPool

close_well = AgentPool.close

async def close(pool):
    await close_well(pool)
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.sleep(600)

AgentPool.close = close
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture
def port() -> Iterator[socket.socket]:
    """A port of the loopback address without a listener yet."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Variables with a program ssh that knows where `far` is, and without those of a job."""
    config = tmp_path / "config"
    config.write_text("Host far\n  HostName 127.0.0.1\n", encoding="utf-8")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HVD_", "HOROVOD_"))}
    return {**kept, "PATH": write_ssh(tmp_path / "bin", config)}


def start(
    environment: dict[str, str], *words: str, program: tuple[str, ...] = ("-m", "hvdrun")
) -> subprocess.Popen[str]:
    command, pipe = [sys.executable, *program, *words], subprocess.PIPE
    return subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True)


def list_remote(port: socket.socket) -> tuple[str, ...]:
    """Options for a worker here and one on `far`, whose ssh server is at this port."""
    return ("-np", "2", "-H", "localhost:1,far:1", "-p", str(port.getsockname()[1]))


def handles(pid: int, number: signal.Signals) -> bool:
    """The process has a handler for this signal."""
    lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    (caught,) = [line for line in lines if line.startswith("SigCgt:")]
    return bool(int(caught.split()[1], 16) & 1 << (number - 1))


def test_a_signal_ends_a_job_that_connects_to_a_host(environment: dict[str, str], port: socket.socket) -> None:
    port.listen()
    job = start(environment, *list_remote(port), "true")
    connection, _ = port.accept()
    with connection:
        wait_until(lambda: handles(job.pid, signal.SIGTERM), "a handler for SIGTERM")
        job.terminate()
        _, said = job.communicate(timeout=LIMIT_SECONDS)
    assert (job.returncode, said) == (143, "hvdrun: received SIGTERM.\n")


def test_a_failed_start_starts_nothing_and_keeps_its_error_though_a_signal_comes(
    environment: dict[str, str], port: socket.socket, tmp_path: Path
) -> None:
    job = start(environment, *list_remote(port), "touch", str(tmp_path / "started"), program=("-c", SIGNALS_ITSELF))
    _, said = job.communicate(timeout=LIMIT_SECONDS)
    assert (job.returncode, "'far' refused the ssh connection" in said) == (125, True)
    assert not (tmp_path / "started").exists()


def test_a_job_inside_a_worker_is_named_after_that_worker(environment: dict[str, str]) -> None:
    around = {"HVD_JOB": "outer", "HVD_SLOT": "host:3", "HVD_INCARNATION": "1", "HVD_OTHER": "x"}
    job = start({**environment, **around}, "-np", "1", "sh", "-c", "echo $HVD_JOB $HVD_SLOT $HVD_OTHER")
    name, slot = job.communicate(timeout=LIMIT_SECONDS)[0].removeprefix("[0] ").split()
    assert name.startswith("outer/host/3.1/")  # so that it ends with the worker around it
    assert slot == "localhost:0"


AGENT_LACKS_FOLDER = '''
import sys
from hvdrun.cli.program import main
from hvdrun.transport.child import LocalTransport

start = LocalTransport._start
agent = """from hvdrun.agent import __main__, agent
agent.choose_folder = lambda _: agent.Path("/dev/null/x")
__main__.main()"""

def start_agent(transport, command):
    return start(transport, (sys.executable, "-P", "-c", agent))

LocalTransport._start = start_agent
sys.exit(main(sys.argv[1:]))
'''


def test_a_job_whose_agent_has_no_room_does_not_start(environment: dict[str, str]) -> None:
    job = start(environment, "-np", "1", "true", program=("-c", AGENT_LACKS_FOLDER))
    _, said = job.communicate(timeout=LIMIT_SECONDS)
    sentence = "the agent on 'localhost' cannot create its folder /dev/null/x: Not a directory; set TMPDIR to"
    assert (job.returncode, said) == (125, f"hvdrun: {sentence} a folder with room on that host.\n")


def test_a_detached_job_says_which_host_cannot_be_found(environment: dict[str, str], tmp_path: Path) -> None:
    state = {"XDG_STATE_HOME": str(tmp_path / "state")}
    words = ("--detach", "-np", "2", "-H", "no-such-host.invalid:2", "true")
    job = start({**environment, **state}, *words)
    _, errors = job.communicate(timeout=LIMIT_SECONDS)
    assert (job.returncode, "the host 'no-such-host.invalid' cannot be found" in errors) == (125, True)
    assert "bug" not in errors
