"""The transport to an agent that outlives its launcher: which way an order takes, and what is the agent's end."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from unittest.mock import Mock

import pytest

from hvdrun.errors import LaunchError
from hvdrun.hosts.lasting_transport import LastingTransport
from hvdrun.hosts.lasting_tunnel import LastingTunnel
from rendezvous.core.outcome import TEMPORARY_FAILURE
from rendezvous.server.agent_streams import AgentStream
from rendezvous.wire import codec
from rendezvous.wire.orders import AgentMessage, Hold, Order, PassOn, Release, Remark, Stop
from tests.hvdrun.played_agent import HOW_IT_ENDED, TUNNEL_PORT, PlayedAgent
from tests.waiting import happen, in_loop


class Story:
    """A transport, its first way, and the agent's stream."""

    def __init__(
        self, *, has_first: bool = True, proves_end: bool = False, tunnel: LastingTunnel | None = None
    ) -> None:
        self.first = PlayedAgent()
        first = self.first if has_first else None
        self.transport = LastingTransport("a", first, tunnel=tunnel, proves_end=proves_end, return_seconds=0.01)
        self.stream = AgentStream()
        self.obeyed: list[Order] = []
        self.shown: list[AgentMessage] = []
        self.listening: asyncio.Task[None] | None = None

    async def listen(self) -> None:
        """Show what comes, to the end."""
        async for message in self.transport.messages():
            self.shown.append(message)

    @asynccontextmanager
    async def obeying(self) -> AsyncIterator[None]:
        """The agent's stream is open meanwhile."""

        async def obey() -> None:
            async for order in self.stream.orders():
                self.obeyed.append(order)

        task = asyncio.create_task(obey())
        await happen(lambda: self.stream.is_open)
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait({task})


def pack(*texts: str) -> list[bytes]:
    return [codec.pack_agent_message(Remark(text)) for text in texts]


@in_loop
async def test_orders_go_by_the_stream_while_it_is_open_and_else_by_the_first_way() -> None:
    story = Story()
    await story.transport.open()
    story.transport.send(PassOn(1))
    story.transport.attach(story.stream)
    story.transport.send(PassOn(2))
    async with story.obeying():
        story.transport.send(PassOn(3))
        await happen(lambda: story.obeyed == [PassOn(3)])
    story.transport.send(PassOn(4))
    assert story.first.orders == [PassOn(1), PassOn(2), PassOn(4)]


@in_loop
async def test_each_stream_begins_with_the_orders_that_hold() -> None:
    story = Story(has_first=False)
    story.transport.attach(story.stream)
    for order in (Hold(held=True), Stop(), PassOn(1), Hold(held=False)):
        story.transport.send(order)
    for _ in range(2):
        async with story.obeying():
            await happen(lambda: story.obeyed == [Hold(held=False), Stop()])
        story.obeyed.clear()


@in_loop
async def test_messages_come_by_both_ways_and_are_acknowledged_when_they_were_shown() -> None:
    story = Story()
    story.transport.attach(story.stream)
    listening = asyncio.create_task(story.listen())
    story.first.outbox.put_nowait(Remark("first"))
    await happen(lambda: bool(story.shown))
    assert await story.stream.receive(1, pack("second", "third")) == 2
    await story.stream.receive(3, [], is_last=True)
    await listening
    assert story.shown == [Remark("first"), Remark("second"), Remark("third")]


@in_loop
async def test_the_end_of_the_first_way_is_no_end_while_the_agent_comes_back() -> None:
    story = Story()
    story.transport.attach(story.stream)
    listening = asyncio.create_task(story.listen())
    async with story.obeying():
        story.first.end()
        await asyncio.sleep(0.05)
        assert not listening.done()
        assert await story.stream.receive(1, pack("later")) == 1
    await listening  # its stream is not opened again
    assert await story.transport.wait() == HOW_IT_ENDED


class PlayedTunnel(LastingTunnel):
    """Notes what it is to keep."""

    def __init__(self) -> None:
        super().__init__("a", Mock(), lambda _: None, 1.0)
        self.kept: list[tuple[int, int]] = []

    def keep(self, port: int, remote: int, fail: Callable[[BaseException], None]) -> None:
        """See `LastingTunnel`."""
        del fail
        self.kept.append((port, remote))


@in_loop
async def test_a_tunnel_is_opened_again_when_its_first_way_ends() -> None:
    tunnel = PlayedTunnel()
    story = Story(tunnel=tunnel)
    assert await story.transport.tunnel(7) == TUNNEL_PORT
    story.transport.attach(story.stream)
    listening = asyncio.create_task(story.listen())
    async with story.obeying():
        story.first.end()
        await happen(lambda: tunnel.kept == [(7, TUNNEL_PORT)])
    await listening


@in_loop
async def test_an_agent_of_a_former_launcher_may_be_without_a_stream_for_its_lease() -> None:
    story = Story(has_first=False)
    story.transport.attach(story.stream)
    listening = asyncio.create_task(story.listen())
    async with story.obeying():
        assert await story.stream.receive(1, pack("first")) == 1
    await asyncio.sleep(0.05)
    assert await story.stream.receive(2, pack("second"), is_last=True) == 2
    await listening
    assert story.shown == [Remark("first"), Remark("second")]


@pytest.mark.parametrize(("proves_end", "is_attached"), [(True, True), (False, False)])
@in_loop
async def test_the_end_of_a_first_way_is_the_end_of_an_agent_that_has_no_other(
    *, proves_end: bool, is_attached: bool
) -> None:
    story = Story(proves_end=proves_end)
    if is_attached:
        story.transport.attach(story.stream)
    listening = asyncio.create_task(story.listen())
    async with story.obeying():
        story.first.end()
        await listening


@in_loop
async def test_an_error_of_the_first_way_is_raised() -> None:
    story = Story()
    story.first.outbox.put_nowait(OSError("no memory"))
    with pytest.raises(OSError, match="no memory"):
        await story.listen()


@in_loop
async def test_a_transport_that_closes_releases_an_agent_that_was_not_released() -> None:
    story = Story(has_first=False)
    story.transport.attach(story.stream)
    async with story.obeying():
        await story.transport.close()
        await story.transport.kill()
        await happen(lambda: story.obeyed == [Release(TEMPORARY_FAILURE)])


@in_loop
async def test_a_transport_of_a_launcher_that_was_started_again_has_no_tunnel() -> None:
    story = Story(has_first=False)
    await story.transport.open()
    with pytest.raises(LaunchError, match="has no tunnel"):
        await story.transport.tunnel(1)
    assert "was cut off" in await story.transport.wait()
