"""A real agent whose launcher is killed: it obeys the next one, which gets the output and the ends of the workers."""

import asyncio
import os
import subprocess
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from rendezvous.core.messages import Finish, HostsChanged, Lost
from rendezvous.core.model import Host, Policy, Round
from rendezvous.server.authority import Authority
from rendezvous.server.server import Server
from rendezvous.server.state_machine import Term
from rendezvous.wire import codec
from rendezvous.wire.orders import AgentMessage, Order, Output, Release, Reserved, Wait
from tests.hvdrun.agent.jobs import JOB, LAUNCH, make_begin
from tests.hvdrun.agent.test_main import describe, run_agent, start_agent
from tests.rendezvous.stage import LOOPBACK, Network, open_network
from tests.waiting import LIMIT_SECONDS, happen, in_loop

WAITS = "echo begun; while [ ! -e go ]; do sleep 0.05; done; echo over; exit 3"
STATIC = Policy.static(1, lease_seconds=LIMIT_SECONDS)
ELASTIC = Policy.elastic(1, 1, 1, lease_seconds=LIMIT_SECONDS)


class Launcher:
    """A launcher of the job, with a term of its own."""

    def __init__(
        self, authority: Authority, term: int, former: "Launcher | None" = None, policy: Policy = STATIC
    ) -> None:
        self.shown: list[AgentMessage] = []
        self.ends: list[Finish] = []
        self.has_ended = asyncio.Event()
        shown, state = None, None
        if former is not None:
            shown, state = former.server.streams.shown, former.server.state
        self._is_first = former is None
        kept = Term(term, state=state, secret=bytes(32), shown=shown or {})
        self.server: Server = Server(policy, self._carry_out, authority.issue_server(), term=kept)

    @property
    def output(self) -> bytes:
        """What the worker has written."""
        return b"".join(message.data for message in self.shown if isinstance(message, Output))

    @asynccontextmanager
    async def running(self) -> AsyncIterator[int]:
        """Serve meanwhile, at this port."""
        async with self.server as server:
            if self._is_first:
                server.submit(HostsChanged((Host("a", 1),)))
            server.stream("a").follow(self._take)
            yield await server.open(LOOPBACK)

    def _carry_out(self, effect: object) -> None:
        if isinstance(effect, Finish):
            self.ends.append(effect)

    def _take(self, message: AgentMessage | None, number: int) -> None:
        if message is None:
            self.has_ended.set()
        else:
            self.shown.append(message)
            self.server.stream("a").note_shown(number)


def start(tmp_path: Path, authority: Authority, network: Network, *orders: Order) -> "subprocess.Popen[bytes]":
    """An agent with these orders, behind the network."""
    agent = start_agent(tmp_path)
    begin = make_begin(tmp_path, "sh", "-c", WAITS)
    begin = replace(
        begin,
        credential=authority.issue_agent("a"),
        server=network.address,
        server_timeout_seconds=LIMIT_SECONDS,
        lease_seconds=2.0,
    )
    assert agent.stdin is not None
    agent.stdin.write(b"".join(map(codec.encode_order, (begin, *orders))))
    agent.stdin.flush()
    return agent


def cut_off(agent: "subprocess.Popen[bytes]") -> None:
    """The launcher at the other end of the pipes is killed."""
    for pipe in (agent.stdin, agent.stdout, agent.stderr):
        assert pipe is not None
        pipe.close()


async def release(launcher: Launcher, agent: "subprocess.Popen[bytes]") -> None:
    """Release the agent by its stream, and wait for its end."""
    await happen(lambda: launcher.server.stream("a").send(Release()))
    await launcher.has_ended.wait()
    assert await asyncio.to_thread(agent.wait, LIMIT_SECONDS) == 0


@in_loop
async def test_the_next_launcher_gets_the_rest_of_the_output_and_the_end_of_each_worker(tmp_path: Path) -> None:
    authority = Authority(JOB)
    launch = replace(LAUNCH, round=Round(0, 0, 1))
    former = Launcher(authority, 1)
    async with former.running() as port, open_network(port) as network:
        agent = start(tmp_path, authority, network, launch)
        try:
            await happen(lambda: former.output == b"begun\n" and former.server.state.last_heard["a"] is not None)
            await network.cut()
            cut_off(agent)
            (tmp_path / "go").touch()
            latter = Launcher(authority, 2, former)
            async with latter.running() as port_of_latter:
                await network.mend(port_of_latter)
                await happen(lambda: bool(latter.ends))
                assert latter.ends[0].outcome.exit_code == 3
                await happen(lambda: latter.output == b"over\n")
                await happen(lambda: any(isinstance(message, Reserved) for message in latter.shown))
                await release(latter, agent)
        finally:
            agent.kill()
            agent.wait()
    assert os.listdir(tmp_path) == ["go"]  # noqa: PTH208 - no thread is needed


@in_loop
async def test_an_agent_whose_host_was_lost_ends_when_it_reaches_the_launcher_again(tmp_path: Path) -> None:
    authority = Authority(JOB)
    launcher = Launcher(authority, 1, policy=ELASTIC)
    async with launcher.running() as port, open_network(port) as network:
        agent = start(tmp_path, authority, network, LAUNCH)
        try:
            await happen(lambda: launcher.output == b"begun\n" and launcher.server.state.last_heard["a"] is not None)
            await network.cut()
            cut_off(agent)
            launcher.server.submit(Lost("a", "its agent was silent"))
            await happen(lambda: launcher.server.number_agent("a") == 2)
            assert agent.poll() is None
            await network.mend(port)
            assert await asyncio.to_thread(agent.wait, LIMIT_SECONDS) == 1
        finally:
            agent.kill()
            agent.wait()
    assert os.listdir(tmp_path) == []  # noqa: PTH208 - no thread is needed


@in_loop
async def test_an_agent_without_a_worker_outlives_the_launcher_timeout_while_its_launcher_speaks(
    tmp_path: Path,
) -> None:
    agent = start_agent(tmp_path)
    try:
        send(agent, replace(describe(tmp_path), lease_seconds=0.5, launcher_timeout_seconds=0.5))
        ends = time.monotonic() + 1.5
        while time.monotonic() < ends:
            send(agent, Wait(0.5))
            await asyncio.sleep(0.05)  # between two of them
        assert agent.poll() is None
        send(agent, Release())
        assert await asyncio.to_thread(agent.wait, LIMIT_SECONDS) == 0
    finally:
        agent.kill()
        agent.wait()
        cut_off(agent)


def send(agent: "subprocess.Popen[bytes]", order: Order) -> None:
    """Send an order by the pipe."""
    assert agent.stdin is not None
    agent.stdin.write(codec.encode_order(order))
    agent.stdin.flush()


def test_an_agent_without_a_worker_ends_with_its_launcher(tmp_path: Path) -> None:
    begin = replace(describe(tmp_path), server_timeout_seconds=2 * LIMIT_SECONDS)
    returncode, _, errors = run_agent(codec.encode_order(begin), tmp_path)
    assert (returncode, errors) == (1, "its launcher disappeared\n")
    assert list(tmp_path.iterdir()) == []
