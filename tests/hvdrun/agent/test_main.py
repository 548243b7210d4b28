"""An agent as a process: how it reads its orders, and what it says when it ends without an order."""

import asyncio
import io
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from hvdrun import __version__
from hvdrun.agent.agent import OrderReader
from hvdrun.network.probe import probe
from rendezvous.core.messages import Terminate
from rendezvous.core.model import Endpoint
from rendezvous.errors import WireError
from rendezvous.server.authority import Authority
from rendezvous.wire import codec
from rendezvous.wire.orders import (
    Addresses,
    AgentMessage,
    Begin,
    Hello,
    ListAddresses,
    Order,
    Output,
    ProbePeers,
    ProbeResults,
    ProbeTarget,
    Release,
    Wait,
)
from tests.hvdrun.agent.jobs import JOB, LAUNCH, make_begin
from tests.waiting import LIMIT_SECONDS

HELLO = Hello(__version__)


AS_JOINED = """
import asyncio, functools, signal
from hvdrun.agent import agent

signal.signal(signal.SIGHUP, signal.SIG_IGN)
agent.serve = functools.partial(agent.serve, is_joined=True)
asyncio.run(agent.serve_pipes(0, 1))
"""
NOTICED_EARLY = """
import os, signal, sys
from hvdrun.startup import early

early.prefer_own_packages = lambda: os.kill(os.getpid(), signal.SIGUSR2)
from hvdrun.agent.__main__ import main
sys.exit(main())
"""


def read_messages(data: bytes) -> list[AgentMessage]:
    return [codec.decode_agent_message(message) for message in codec.FrameReader().feed(data)]


def start_agent(tmp_path: Path, *words: str) -> subprocess.Popen[bytes]:
    """A real agent that is spoken to; the end of its orders, when this is left, ends it."""
    return subprocess.Popen(
        [sys.executable, "-P", *(words or ("-m", "hvdrun.agent"))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )


def run_agent(data: bytes, tmp_path: Path, *words: str) -> tuple[int, list[AgentMessage], str]:
    """A real agent that finds these bytes on its standard input, and then its end: how it ends and what it says."""
    with start_agent(tmp_path, *words) as agent:
        reported, errors = agent.communicate(data, LIMIT_SECONDS)
    return agent.returncode, read_messages(reported), errors.decode()


def describe(directory: Path) -> Begin:
    begin = make_begin(directory, "sh", "-c", "echo up; sleep 600")
    return replace(begin, credential=Authority(JOB).issue_agent("a"))


GARBAGE = [b"\xff" * 8, codec.frame(b"\xff\xff"), b"GET / HTTP/1.1\r\n\r\n"]


@pytest.mark.parametrize(("in_a_job", "data"), [*((False, data) for data in GARBAGE), (True, GARBAGE[0])])
def test_an_agent_reports_malformed_orders_in_one_sentence(data: bytes, tmp_path: Path, *, in_a_job: bool) -> None:
    begin = codec.encode_order(describe(tmp_path)) if in_a_job else b""
    returncode, messages, errors = run_agent(begin + data, tmp_path)
    assert (returncode, messages[0]) == (1, HELLO)
    (line,) = errors.splitlines()
    assert line.startswith("the peer does not speak hvdrun's protocol: ")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "data",
    [
        b"",
        codec.encode_order(Release())[:3],
        # what it cannot do yet
        codec.encode_order(LAUNCH),
        codec.encode_order(ProbePeers((ProbeTarget("b", Endpoint("192.0.2.1", 1)),))),
    ],
)
def test_an_agent_ends_when_its_launcher_is_gone_or_an_order_is_impossible(data: bytes, tmp_path: Path) -> None:
    assert run_agent(data, tmp_path) == (1, [HELLO], "its launcher disappeared\n")
    assert list(tmp_path.iterdir()) == []


def test_no_file_gets_the_number_of_standard_input_when_the_orders_have_ended(tmp_path: Path) -> None:
    """A worker would take it for its own, and lose its output."""
    with start_agent(tmp_path) as agent:
        assert agent.stdin is not None
        assert agent.stdout is not None
        agent.stdout.read(1)
        assert Path(f"/proc/{agent.pid}/fd/0").readlink() == Path(os.devnull)
        agent.stdin.close()


@pytest.mark.parametrize("words", [(), ("-c", NOTICED_EARLY)], ids=["", "got a stop notice first"])
def test_an_agent_that_is_released_before_its_job_begins_exits_with_0(words: tuple[str, ...], tmp_path: Path) -> None:
    assert run_agent(codec.encode_order(Release()), tmp_path, *words) == (0, [HELLO], "")


@pytest.mark.parametrize("place", [os.devnull, __file__])
def test_an_agent_whose_orders_cannot_be_polled_ends(place: str) -> None:
    with Path(place).open("rb") as orders:
        command = [sys.executable, "-P", "-m", "hvdrun.agent"]
        ended = subprocess.run(command, stdin=orders, capture_output=True, timeout=LIMIT_SECONDS, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (1, b"", b"its launcher disappeared\n")


class Conversation:
    """Orders to a running agent, and its messages."""

    def __init__(self, agent: subprocess.Popen[bytes]) -> None:
        assert agent.stdin is not None
        assert isinstance(agent.stdout, io.BufferedReader)
        self._agent = agent
        self._orders = agent.stdin
        self._output = agent.stdout
        self._frames = codec.FrameReader()
        self._messages: list[AgentMessage] = []

    def send(self, *orders: Order) -> None:
        """Order this."""
        self._orders.write(b"".join(map(codec.encode_order, orders)))
        self._orders.flush()

    def receive(self) -> AgentMessage:
        """The agent's next message."""
        while not self._messages:
            chunk = self._output.read1()
            assert chunk, "the agent has ended"
            self._messages += [codec.decode_agent_message(message) for message in self._frames.feed(chunk)]
        return self._messages.pop(0)

    def begin(self, directory: Path) -> None:
        """Send it the job."""
        self.send(describe(directory))
        assert self.receive() == HELLO

    def find(self, token: bytes) -> tuple[ProbeTarget, ...]:
        """Where it listens in a check."""
        self.send(ListAddresses(token, "a"))
        found = next(message for message in iter(self.receive, None) if message != HELLO)
        assert isinstance(found, Addresses)
        return tuple(ProbeTarget("a", listening.endpoint) for listening in found.addresses)

    def probe(self, targets: tuple[ProbeTarget, ...]) -> list[str]:
        """Which addresses it reaches."""
        self.send(ProbePeers(targets))
        probed = self.receive()
        assert isinstance(probed, ProbeResults)
        return [proof.address for proof in probed.proofs]

    def end(self) -> str:
        """Wait for its end, with exit code 1: its last words."""
        assert self._agent.wait(LIMIT_SECONDS) == 1
        assert self._agent.stderr is not None
        return self._agent.stderr.read().decode()


@pytest.fixture
def conversation(tmp_path: Path) -> Iterator[Conversation]:
    with start_agent(tmp_path) as agent:
        yield Conversation(agent)
        agent.communicate()
    assert list(tmp_path.iterdir()) == []


def test_probes_reach_an_agent_until_the_job_begins(conversation: Conversation, tmp_path: Path) -> None:
    targets = conversation.find(b"token")
    if not targets:
        pytest.skip("this machine has no network interface but loopback")
    assert len(asyncio.run(probe(b"token", targets))) == len(targets)
    assert conversation.probe(targets) == [target.endpoint.address for target in targets]
    conversation.send(describe(tmp_path))
    assert asyncio.run(probe(b"token", targets)) == ()


def test_an_agent_that_serves_a_job_is_checked_again_for_newcomers(conversation: Conversation, tmp_path: Path) -> None:
    conversation.begin(tmp_path)
    targets = conversation.find(b"another token")
    assert len(asyncio.run(probe(b"another token", targets))) == len(targets)
    assert len(conversation.probe(targets)) == len(targets)


def test_an_agent_that_waits_for_a_job_ends_when_its_launcher_falls_silent(conversation: Conversation) -> None:
    conversation.send(Wait(0.2))
    assert conversation.end() == "its launcher disappeared\n"


def test_an_agent_waits_for_a_job_as_long_as_its_launcher_sends_wait(
    conversation: Conversation, tmp_path: Path
) -> None:
    conversation.send(Wait(0.05), Wait(None))  # the last one counts
    time.sleep(0.5)  # no event shows that the first did not
    conversation.begin(tmp_path)


def test_an_idle_agent_ends_with_its_lease_and_leaves_no_orphan(conversation: Conversation, tmp_path: Path) -> None:
    (tmp_path / f"hvdrun-{'0' * 14}").mkdir()  # of an agent that was killed, and its watchdog as well
    conversation.send(replace(describe(tmp_path), lease_seconds=0.3, launcher_timeout_seconds=0.3))
    assert conversation.end() == "no report was acknowledged for 0.3 s (--launcher-timeout)\n"


ORDERS: tuple[Order, ...] = (Terminate(LAUNCH.worker, 5.0, "the test wants it"), Release())


def read_orders(*chunks: bytes) -> list[Order | None]:
    """The orders in these chunks, up to their end."""

    async def read() -> list[Order | None]:
        reader = asyncio.StreamReader()
        for chunk in chunks:
            reader.feed_data(chunk)
        reader.feed_eof()
        orders = OrderReader(reader)
        found = [await orders.next()]
        while found[-1] is not None:
            found.append(await orders.next())
        return found

    return asyncio.run(read())


@pytest.mark.parametrize("size", [1, 3, 4096])
def test_orders_come_one_by_one_however_they_were_cut(size: int) -> None:
    data = b"".join(map(codec.encode_order, ORDERS))
    chunks = [data[start : start + size] for start in range(0, len(data), size)]
    assert read_orders(*chunks) == [*ORDERS, None]


def test_an_incomplete_last_order_reads_as_the_end() -> None:
    assert read_orders(codec.encode_order(ORDERS[0])[:-1]) == [None]


@pytest.mark.parametrize("data", [b"\xff" * 8, codec.frame(b"\xff\xff"), codec.frame(b"")])
def test_bytes_that_are_no_orders_are_an_error(data: bytes) -> None:
    with pytest.raises(WireError):
        read_orders(data)


def test_the_first_sigterm_to_a_joined_agent_is_a_stop_notice_and_the_second_ends_the_agent(tmp_path: Path) -> None:
    with start_agent(tmp_path, "-c", AS_JOINED) as agent:
        conversation = Conversation(agent)
        conversation.begin(tmp_path)
        conversation.send(LAUNCH)
        while not isinstance(conversation.receive(), Output):
            pass
        for number in (signal.SIGUSR2, signal.SIGTERM, signal.SIGHUP):
            agent.send_signal(number)
            for _ in range(3):  # an agent that is about to end may answer once
                conversation.find(b"it continues")
        agent.send_signal(signal.SIGTERM)
        agent.communicate(timeout=LIMIT_SECONDS)
    assert list(tmp_path.iterdir()) == []
