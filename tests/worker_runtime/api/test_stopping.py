"""A stop notice in one process: where a worker reports its signal, and what `hvd.stopping()` asks between steps."""

import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.waiting import LIMIT_SECONDS
from worker_runtime.membership.agent_watch import StopNotice
from worker_runtime.membership.runtime import Runtime
from worker_runtime.rendezvous import name_stop_file

AGENT = """
import signal, socket, sys
door = socket.socket(socket.AF_UNIX)
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})  # until it waits
door.bind(sys.argv[1])
door.listen()
print("up", flush=True)
signal.sigwait({signal.SIGUSR2})
sys.exit(7)
"""


@pytest.fixture(autouse=True)
def _handler() -> Iterator[None]:
    former = signal.signal(signal.SIGUSR2, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGUSR2, former)


def test_a_worker_passes_its_signal_on_to_its_agent(tmp_path: Path) -> None:
    job: Any = SimpleNamespace(socket=tmp_path / "agent.sock")
    with subprocess.Popen([sys.executable, "-c", AGENT, job.socket], stdout=subprocess.PIPE) as agent:
        assert agent.stdout is not None
        agent.stdout.readline()
        StopNotice().prepare(job)
        signal.raise_signal(signal.SIGUSR2)
        assert agent.wait(LIMIT_SECONDS) == 7
    signal.raise_signal(signal.SIGUSR2)  # no process is signalled in the place of an agent that has gone


@pytest.mark.parametrize("own", [signal.SIG_IGN, lambda *_: None], ids=["ignored", "a handler"])
def test_a_program_keeps_its_own_handler(tmp_path: Path, own: Any) -> None:
    signal.signal(signal.SIGUSR2, own)
    job: Any = SimpleNamespace(socket=tmp_path / "agent.sock")
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(str(job.socket))
        door.listen()
        StopNotice().prepare(job)
    assert signal.getsignal(signal.SIGUSR2) is own


def test_a_rank_that_is_alone_looks_for_its_agent_s_file_until_it_is_no_worker_any_more(tmp_path: Path) -> None:
    notice, job = StopNotice(), SimpleNamespace(socket=tmp_path / "agent.sock")
    engine = SimpleNamespace(steps=SimpleNamespace(is_stopping=False), size=1)
    stopping = partial(Runtime.is_stopping, SimpleNamespace(engine=engine, stop_notice=notice))
    assert not stopping()
    notice.prepare(job)  # type: ignore[arg-type]  # all of a Bootstrap that is asked for
    assert not stopping()
    name_stop_file(job.socket).touch()
    assert stopping()
    notice.prepare(None)
    assert (notice.has_come(), stopping()) == (False, True)  # once it is true it stays true


def test_after_a_step_stopping_needs_no_collective() -> None:
    steps = SimpleNamespace(is_stopping=False, has_stepped=True)
    engine = SimpleNamespace(steps=steps, size=2)
    stopping = partial(Runtime.is_stopping, SimpleNamespace(engine=engine))
    assert not stopping()
    steps.is_stopping = True
    assert stopping()
