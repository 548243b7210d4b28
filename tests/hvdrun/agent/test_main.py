"""An agent as a process: what it says when it ends otherwise than it was told to."""

import io
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rendezvous import wire
from rendezvous.authority import Authority
from rendezvous.core.effects import Launch
from rendezvous.core.model import Assignment, Slot, Worker
from rendezvous.orders import Begin, Release

LAUNCH = Launch(Worker(Slot("a", 0), 1), Assignment(0, 1, 0, 1, 0, 1), "placed")


def run_agent(data: bytes, tmp_path: Path) -> subprocess.CompletedProcess[bytes]:
    """A real agent that finds these bytes on its standard input, and then its end."""
    return subprocess.run(
        [sys.executable, "-P", "-m", "hvdrun.agent"],
        input=data,
        capture_output=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        timeout=20,
        check=False,
    )


def make_begin(directory: Path) -> Begin:
    return Begin(
        job="job",
        host="a",
        server="127.0.0.1:1",
        credential=Authority("job").issue_agent("a"),
        command=("sh", "-c", "echo up; sleep 600"),
        directory=str(directory),
        environment={b"PATH": os.environb[b"PATH"]},
        lease_seconds=30,
        start_timeout_seconds=30,
        address="127.0.0.1",
    )


@pytest.mark.parametrize("data", [b"\xff" * 8, wire.frame(b"\xff\xff"), b"GET / HTTP/1.1\r\n\r\n"])
def test_an_agent_that_is_not_spoken_to_as_it_should_says_so_in_one_sentence(data: bytes, tmp_path: Path) -> None:
    run = run_agent(data, tmp_path)
    assert run.returncode == 1
    assert run.stdout == b""
    (line,) = run.stderr.decode().splitlines()
    assert line.startswith("the peer does not speak hvdrun's protocol: ")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("data", [b"", wire.encode_order(Release()), wire.encode_order(Release())[:3]])
def test_an_agent_whose_launcher_has_gone_goes(data: bytes, tmp_path: Path) -> None:
    run = run_agent(data, tmp_path)
    assert (run.returncode, run.stderr) == (1, b"its launcher has gone\n")
    assert list(tmp_path.iterdir()) == []


def test_bad_orders_in_the_middle_of_a_job_end_it_too(tmp_path: Path) -> None:
    run = run_agent(wire.encode_order(make_begin(tmp_path)) + b"\xff" * 8, tmp_path)
    assert run.returncode == 1
    (line,) = run.stderr.decode().splitlines()
    assert line.startswith("the peer does not speak hvdrun's protocol: ")
    assert list(tmp_path.iterdir()) == []


def test_an_agent_that_is_asked_to_end_says_so(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-P", "-m", "hvdrun.agent"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    ) as agent:
        assert agent.stdin is not None
        assert isinstance(agent.stdout, io.BufferedReader)
        assert agent.stderr is not None
        agent.stdin.write(wire.encode_order(make_begin(tmp_path)) + wire.encode_order(LAUNCH))
        agent.stdin.flush()
        told = b""
        while b"up\n" not in told:
            told += agent.stdout.read1()
        agent.send_signal(signal.SIGTERM)
        assert agent.wait(20) == 1
        assert agent.stderr.read() == b"a signal asked it to end\n"
    assert list(tmp_path.iterdir()) == []
