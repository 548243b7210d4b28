"""An agent as a process: what it says when it ends otherwise than it was told to."""

import asyncio
import io
import os
import signal
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from hvdrun import __version__
from hvdrun.network.probe import probe
from rendezvous import wire
from rendezvous.authority import Authority
from rendezvous.core.effects import Launch
from rendezvous.core.model import Assignment, Endpoint, Slot, Worker
from rendezvous.orders import (
    Begin,
    Found,
    Hello,
    Listening,
    Look,
    Order,
    Probe,
    Probed,
    ProbeTarget,
    Release,
    Reserved,
    Telling,
    Wait,
)
from tests.hvdrun.agent.jobs import JOB

LAUNCH = Launch(Worker(Slot("a", 0), 1), Assignment(0, 1, 0, 1, 0, 1), "placed")

HELLO = Hello(__version__, socket.gethostname(), ".".join(map(str, sys.version_info[:3])))


def read_tellings(data: bytes) -> list[Telling]:
    return [wire.decode_telling(message) for message in wire.FrameReader().feed(data)]


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


def start_agent(tmp_path: Path) -> subprocess.Popen[bytes]:
    """A real agent that is spoken to; the end of its orders, when this is left, ends it."""
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "hvdrun.agent"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )


def make_begin(directory: Path) -> Begin:
    return Begin(
        job=JOB,
        host="a",
        server="127.0.0.1:1",
        credential=Authority(JOB).issue_agent("a"),
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
    assert read_tellings(run.stdout) == [HELLO]
    (line,) = run.stderr.decode().splitlines()
    assert line.startswith("the peer does not speak hvdrun's protocol: ")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("data", [b"", wire.encode_order(Release()), wire.encode_order(Release())[:3]])
def test_an_agent_whose_launcher_has_gone_goes(data: bytes, tmp_path: Path) -> None:
    run = run_agent(data, tmp_path)
    assert (run.returncode, run.stderr) == (1, b"its launcher has gone\n")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("order", [LAUNCH, Probe((ProbeTarget("b", Endpoint("192.0.2.1", 1)),))])
def test_an_agent_that_is_ordered_what_it_cannot_do_yet_goes(order: Order, tmp_path: Path) -> None:
    run = run_agent(wire.encode_order(order), tmp_path)
    assert (run.returncode, run.stderr) == (1, b"its launcher has gone\n")


def test_an_agent_is_surveyed_before_it_is_told_of_the_job(tmp_path: Path) -> None:
    look = wire.encode_order(Look(b"token", "a"))
    begin = wire.encode_order(make_begin(tmp_path))
    run = run_agent(look + wire.encode_order(Probe(())) + look + begin, tmp_path)
    hello, first, probed, second, *_ = read_tellings(run.stdout)
    assert (hello, probed) == (HELLO, Probed(()))
    assert isinstance(first, Found)
    assert isinstance(second, Found)
    assert first.cores == len(os.sched_getaffinity(0))
    assert [strip_port(listening) for listening in first.addresses] == list(map(strip_port, second.addresses))
    assert run.stderr == b"its launcher has gone\n"


def strip_port(listening: Listening) -> tuple[str, str]:
    return listening.interface, listening.endpoint.address


class Conversation:
    """Orders to a running agent, and what it tells."""

    def __init__(self, agent: subprocess.Popen[bytes]) -> None:
        assert agent.stdin is not None
        assert isinstance(agent.stdout, io.BufferedReader)
        self._orders = agent.stdin
        self._output = agent.stdout
        self._frames = wire.FrameReader()
        self._tellings: list[Telling] = []

    def send(self, *orders: Order) -> None:
        """Order this."""
        self._orders.write(b"".join(map(wire.encode_order, orders)))
        self._orders.flush()

    def receive(self) -> Telling:
        """What it tells next."""
        while not self._tellings:
            chunk = self._output.read1()
            assert chunk, "the agent has ended"
            self._tellings += [wire.decode_telling(message) for message in self._frames.feed(chunk)]
        return self._tellings.pop(0)


def test_an_agent_is_reached_by_probes_until_it_is_told_of_the_job(tmp_path: Path) -> None:
    with start_agent(tmp_path) as agent:
        conversation = Conversation(agent)
        conversation.send(Look(b"token", "a"))
        assert conversation.receive() == HELLO
        found = conversation.receive()
        assert isinstance(found, Found)
        if not found.addresses:
            pytest.skip("this machine has no network interface but loopback")
        targets = [ProbeTarget("a", listening.endpoint) for listening in found.addresses]
        assert len(asyncio.run(probe(b"token", targets))) == len(targets)
        conversation.send(Probe(tuple(targets)))
        probed = conversation.receive()
        assert isinstance(probed, Probed)
        assert [proof.address for proof in probed.proofs] == [target.endpoint.address for target in targets]
        conversation.send(make_begin(tmp_path))
        assert isinstance(conversation.receive(), Reserved)
        assert asyncio.run(probe(b"token", targets)) == ()


def test_an_agent_that_serves_a_job_is_surveyed_again_when_another_host_is_to_join(tmp_path: Path) -> None:
    with start_agent(tmp_path) as agent:
        conversation = Conversation(agent)
        conversation.send(make_begin(tmp_path))
        assert conversation.receive() == HELLO
        assert isinstance(conversation.receive(), Reserved)
        conversation.send(Look(b"another token", "a"))
        found = conversation.receive()
        assert isinstance(found, Found)
        targets = tuple(ProbeTarget("a", listening.endpoint) for listening in found.addresses)
        assert len(asyncio.run(probe(b"another token", targets))) == len(targets)
        conversation.send(Probe(targets))
        probed = conversation.receive()
        assert isinstance(probed, Probed)
        assert len(probed.proofs) == len(targets)


def test_an_agent_that_waits_for_a_job_goes_when_its_launcher_falls_silent(tmp_path: Path) -> None:
    with start_agent(tmp_path) as agent:
        conversation = Conversation(agent)
        conversation.send(Wait(0.2))
        assert (agent.wait(20), agent.stderr.read() if agent.stderr else None) == (1, b"its launcher has gone\n")


def test_an_agent_waits_for_a_job_for_as_long_as_its_launcher_says_so(tmp_path: Path) -> None:
    with start_agent(tmp_path) as agent:
        conversation = Conversation(agent)
        conversation.send(Wait(0.05), Wait(None))  # the last one counts
        with pytest.raises(subprocess.TimeoutExpired):
            agent.wait(0.5)
        conversation.send(make_begin(tmp_path))
        assert conversation.receive() == HELLO
        assert isinstance(conversation.receive(), Reserved)


def test_an_agent_without_any_order_to_launch_ends_with_its_lease(tmp_path: Path) -> None:
    with start_agent(tmp_path) as agent:
        conversation = Conversation(agent)
        conversation.send(replace(make_begin(tmp_path), lease_seconds=0.3))
        assert agent.wait(20) == 1
        assert agent.stderr is not None
        assert agent.stderr.read() == b"no report was acknowledged for the lease of 0.3 s (--lease)\n"
    assert list(tmp_path.iterdir()) == []


def test_bad_orders_in_the_middle_of_a_job_end_it_too(tmp_path: Path) -> None:
    run = run_agent(wire.encode_order(make_begin(tmp_path)) + b"\xff" * 8, tmp_path)
    assert run.returncode == 1
    (line,) = run.stderr.decode().splitlines()
    assert line.startswith("the peer does not speak hvdrun's protocol: ")
    assert list(tmp_path.iterdir()) == []


def test_an_agent_that_is_asked_to_end_says_so(tmp_path: Path) -> None:
    with start_agent(tmp_path) as agent:
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
