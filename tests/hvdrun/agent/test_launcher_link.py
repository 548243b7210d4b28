"""What travels between an agent and the launchers of its job: each message reaches one of them, once and in order."""

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from hvdrun.agent.launcher_link import LauncherLink
from hvdrun.agent.spool import Spool
from hvdrun.agent.streams import OutputForwarder
from rendezvous.core.messages import HostsChanged
from rendezvous.core.model import Host, Policy
from rendezvous.errors import UnreachableError
from rendezvous.server.agent_streams import AgentStream
from rendezvous.server.server import Server
from rendezvous.server.state_machine import Term
from rendezvous.wire.orders import AgentMessage, Order, OutputStream, PassOn, Remark, Stop
from tests.rendezvous.stage import A0, LOOPBACK, Stage, in_clean_loop, open_network, open_stage
from tests.waiting import happen


class Launcher:
    """Shows what comes, up to a number of messages, and then nothing: it was killed."""

    def __init__(self, stream: AgentStream, limit: int = 10**9) -> None:
        self.shown: list[str] = []
        self.has_ended = False
        self._stream = stream
        self._limit = limit
        stream.follow(self._take, lambda: (Stop(),))

    def _take(self, message: AgentMessage | None, number: int) -> None:
        if message is None:
            self.has_ended = True
        elif len(self.shown) < self._limit:
            assert isinstance(message, Remark)
            self.shown.append(message.text)
            self._stream.note_shown(number)


class Agent:
    """An agent's side: what it says, and the orders that it gets."""

    def __init__(self, folder: Path) -> None:
        self.orders: list[Order] = []
        self.greetings = 0
        self.output = OutputForwarder()
        self.output.keep(Spool(folder, part_bytes=2000))
        self.link = LauncherLink(self.output, self.orders.append, self._greet)

    def say(self, *numbers: int) -> None:
        """Say a remark with each number."""
        for number in numbers:
            self.output.tell(Remark(f"{number}"))

    @asynccontextmanager
    async def running(self, stage: Stage, address: str = "") -> AsyncIterator[None]:
        """Follow the launcher meanwhile."""
        async with stage.agent("a", address=address, is_patient=True) as client:
            parts = [asyncio.create_task(part) for part in (self.link.obey(client), self.link.deliver(client))]
            try:
                yield
            finally:
                for part in parts:
                    part.cancel()
                await asyncio.wait(parts)

    def _greet(self) -> None:
        self.greetings += 1


class Away:
    """A client whose launcher takes no messages."""

    def __init__(self) -> None:
        self.tries = 0
        self.note_open: Callable[[], None] | None = None

    async def obey(self, note_open: Callable[[], None]) -> AsyncIterator[Order]:
        """Note what is called at an answer; no order comes."""
        self.note_open = note_open
        await asyncio.Event().wait()
        yield Stop()

    async def deliver(self, first: int, messages: Sequence[bytes], *, is_last: bool) -> int:
        """Fail."""
        self.tries += 1
        raise UnreachableError("the launcher", f"message {first} of {len(messages)}", f"the last: {is_last}")


def name(count: int) -> list[str]:
    return [f"{number}" for number in range(count)]


@asynccontextmanager
async def start_again(stage: Stage, shown: dict[str, int]) -> AsyncIterator[tuple[Server, int]]:
    """The server of the next term, with the same authority."""
    credential = stage.authority.issue_server()
    async with Server(Policy.static(2), stage.effects.append, credential, term=Term(2, shown=shown)) as server:
        port = await server.open(LOOPBACK)
        server.submit(HostsChanged((Host("a", 2),)))
        yield server, port


@in_clean_loop
async def test_messages_from_before_the_launcher_listens_come_first(tmp_path: Path) -> None:
    agent = Agent(tmp_path)
    async with open_stage() as stage:
        agent.say(*range(100))
        async with agent.running(stage):
            launcher = Launcher(stage.server.stream("a"))
            await happen(lambda: len(launcher.shown) == 100)
            agent.say(*range(100, 200))
            await happen(lambda: len(launcher.shown) == 200)
            assert launcher.shown == name(200)
            await happen(lambda: agent.orders == [Stop()])
            assert agent.greetings == 1


@in_clean_loop
async def test_a_launcher_that_was_started_again_shows_the_rest_and_each_message_once(tmp_path: Path) -> None:
    agent = Agent(tmp_path)
    async with (
        open_stage() as stage,
        open_network(stage.port) as network,
        agent.running(stage, network.address),
    ):
        former = Launcher(stage.server.stream("a"), limit=30)
        agent.say(*range(50))
        await happen(lambda: len(former.shown) == 30 and agent.orders == [Stop()])
        await network.cut()
        agent.say(*range(50, 500))
        async with start_again(stage, stage.server.streams.shown) as (server, port):
            latter = Launcher(server.stream("a"))
            await network.mend(port)
            await happen(lambda: len(former.shown) + len(latter.shown) == 500)
            assert former.shown + latter.shown == name(500)
            await happen(lambda: agent.greetings == 2)
            await happen(lambda: server.stream("a").send(PassOn(10)))
            await happen(lambda: agent.orders == [Stop(), Stop(), PassOn(10)])
        assert os.listdir(tmp_path) == []  # noqa: PTH208 - no thread is needed


@in_clean_loop
async def test_an_agent_ends_when_the_launcher_has_shown_everything(tmp_path: Path) -> None:
    agent = Agent(tmp_path)
    async with open_stage() as stage, agent.running(stage):
        agent.say(*range(3))
        draining = asyncio.create_task(agent.output.drain())
        await asyncio.sleep(0)
        assert not draining.done()
        launcher = Launcher(stage.server.stream("a"))
        await draining
        assert (launcher.shown, launcher.has_ended) == (name(3), True)


@in_clean_loop
async def test_workers_wait_for_a_launcher_that_is_slow_and_not_for_one_that_is_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hvdrun.agent.launcher_link.BEHIND_BYTES", 100_000)
    monkeypatch.setattr("rendezvous.server.agent_streams._ANSWER_SECONDS", 0.05)
    agent = Agent(tmp_path)
    reading, writing = os.pipe()
    async with (
        open_stage() as stage,
        open_network(stage.port) as network,
        agent.running(stage, network.address),
    ):
        Launcher(stage.server.stream("a"), limit=0)
        agent.say(0)
        await happen(lambda: agent.greetings == 1)
        agent.output.add(A0, OutputStream.STDOUT, reading)
        may_end = threading.Event()
        working = asyncio.create_task(asyncio.to_thread(write_on, writing, may_end))
        await happen(lambda: agent.output._is_held)
        assert not agent.output._may_read
        await network.cut()
        await happen(lambda: agent.output._may_read)
        may_end.set()
        await working
    await agent.output._drained.wait()


@in_clean_loop
async def test_a_delivery_that_is_cancelled_as_a_launcher_answers_ends(tmp_path: Path) -> None:
    agent, client = Agent(tmp_path), Away()
    agent.say(0)
    parts = [
        asyncio.create_task(part)
        for part in (agent.link.obey(cast(Any, client)), agent.link.deliver(cast(Any, client)))
    ]
    await happen(lambda: client.tries == 1 and client.note_open is not None)
    assert client.note_open is not None
    client.note_open()
    for part in parts:
        part.cancel()
    _, left = await asyncio.wait(parts, timeout=5.0)
    for part in left:
        part.cancel()
    assert not left


def write_on(descriptor: int, may_end: threading.Event) -> None:
    """A worker writes until it may end."""
    with os.fdopen(descriptor, "wb", buffering=0) as pipe:
        while not may_end.is_set():
            pipe.write(b"x" * 1023 + b"\n")
