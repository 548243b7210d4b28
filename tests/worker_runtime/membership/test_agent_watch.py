"""A worker that ends with its agent, whichever process is left to end it."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from unittest.mock import Mock

import pytest

from tests.waiting import LIMIT_SECONDS
from worker_runtime.errors import TooFewThreadsError
from worker_runtime.membership.agent_watch import AgentWatch, find_listener
from worker_runtime.rendezvous import Bootstrap

AGENT = """
import socket, sys
with socket.create_server(sys.argv[1], family=socket.AF_UNIX) as server:
    print("listens", flush=True)
    server.accept()
    print("is known", flush=True)
    sys.stdin.read()
"""
# The worker's main thread is busy with something else, which a signal would not end.
WORKER = """
import signal, sys, threading, time
from pathlib import Path
from worker_runtime.membership.agent_watch import watch
from worker_runtime.rendezvous import Bootstrap, Slot
from rendezvous.core.model import Worker

bootstrap = Bootstrap("job", Path(sys.argv[1]), Worker(Slot("a", 0), 1), "127.0.0.1", float(sys.argv[2]), 5.0)
threading.Thread(target=watch, args=(bootstrap,), daemon=True).start()
signal.signal(signal.SIGTERM, signal.SIG_IGN)
time.sleep(600)
"""
Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start programs that are gone, and what they have started with them, when the test is over."""
    started: list[subprocess.Popen[str]] = []

    def begin(*command: object) -> "subprocess.Popen[str]":
        process = subprocess.Popen(
            [str(word) for word in command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        started.append(process)
        return process

    yield begin
    for process in started:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def start_agent(start: Start, path: Path) -> "subprocess.Popen[str]":
    agent = start(sys.executable, "-c", AGENT, path)
    assert agent.stdout.readline() == "listens\n"
    return agent


def kill_when_known(agent: "subprocess.Popen[str]") -> None:
    """End the agent when a worker knows who it is."""
    assert agent.stdout.readline() == "is known\n"
    agent.kill()  # and it is not waited for yet, so that its number is its own


def test_the_kernel_shows_which_process_listens(start: Start, tmp_path: Path) -> None:
    path = tmp_path / "agent"
    assert find_listener(path, 0) is None
    agent = start_agent(start, path)
    assert find_listener(path, LIMIT_SECONDS) == agent.pid
    agent.kill()
    agent.wait()
    assert find_listener(path, 0) is None


def test_an_agent_that_takes_no_connection_is_not_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "agent"
    with socket.socket(socket.AF_UNIX) as agent, ExitStack() as callers:
        agent.bind(str(path))
        agent.listen(0)
        with suppress(BlockingIOError):
            while True:
                caller = callers.enter_context(socket.socket(socket.AF_UNIX))
                caller.settimeout(0)
                caller.connect(str(path))
        assert find_listener(path, 0) is None


def test_a_worker_ends_with_its_agent_and_so_does_the_shell_that_waits_for_it(start: Start, tmp_path: Path) -> None:
    agent = start_agent(start, tmp_path / "agent")
    (tmp_path / "worker.py").write_text(WORKER)
    script = f"{sys.executable} {tmp_path}/worker.py {tmp_path}/agent 60; echo continued"
    worker = start("sh", "-c", script)
    kill_when_known(agent)
    assert worker.wait(LIMIT_SECONDS) == -signal.SIGKILL
    assert worker.stdout.read() == ""
    assert worker.stderr.read() == f"hvdrun: the worker a:0 exits, since its agent (process {agent.pid}) has ended.\n"


def test_a_worker_whose_agent_never_listens_ends_by_itself(start: Start, tmp_path: Path) -> None:
    worker = start(sys.executable, "-c", WORKER, tmp_path / "agent", 0.5)
    assert worker.wait(LIMIT_SECONDS) == 75
    assert worker.stderr.read() == (
        f"hvdrun: the worker a:0 exits, since it has no agent: no process has listened at {tmp_path}/agent for 0.5 s.\n"
    )


def test_a_worker_without_an_agent_ends_all_the_same(start: Start, tmp_path: Path) -> None:
    agent = start_agent(start, tmp_path / "agent")
    fill = f"""
import os, subprocess, sys
reader, writer = os.pipe()
os.set_blocking(writer, False)
try:
    while os.write(writer, bytes(4096)):
        pass
except BlockingIOError:
    os.set_blocking(writer, True)
print("is full", flush=True)
os.dup2(writer, 2)
{WORKER}
"""
    worker = start(sys.executable, "-c", fill, tmp_path / "agent", 60)
    assert worker.stdout.readline() == "is full\n"
    kill_when_known(agent)
    assert worker.wait(LIMIT_SECONDS) == -signal.SIGKILL


def test_a_worker_with_too_few_threads_is_refused_before_grpc_would_end_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worker_runtime.membership.agent_watch.count_startable", lambda _: 3)
    with pytest.raises(TooFewThreadsError, match="needs 16 threads, but can start only 3; raise `ulimit -u`"):
        AgentWatch(lambda _: pytest.fail("it connects")).connect(Mock(Bootstrap))
