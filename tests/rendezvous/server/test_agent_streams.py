"""The streams of agents that outlive their launcher: orders, messages that are shown once, and the server's term."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

import grpc
import pytest

from rendezvous.client import AgentClient
from rendezvous.core.messages import Lost, Terminate
from rendezvous.core.model import Policy, Recovery
from rendezvous.errors import CallRefusedError, UnreachableError, WireError
from rendezvous.server.agent_streams import AgentStream, AgentStreams
from rendezvous.wire import codec
from rendezvous.wire.orders import AgentMessage, Order, Remark, Stop, agent_identity
from tests.rendezvous.stage import A0, Stage, in_clean_loop, open_network, open_stage
from tests.waiting import LIMIT_SECONDS, happen, in_loop

TEXTS = ("one", "two", "three")
MESSAGES = [codec.pack_agent_message(Remark(text)) for text in TEXTS]
LASTING = Policy(1, 4, failures_allowed=None, recovery=Recovery())
TERMINATE = Terminate(A0, 1.0, "it is over")


class Shower:
    """A launcher that shows what it gets, at once or never."""

    def __init__(self, stream: AgentStream, *orders: Order, shows: bool = True) -> None:
        self.texts: list[str] = []
        self.has_ended = False
        self._stream = stream
        self._shows = shows
        stream.follow(self.take, lambda: orders)

    def take(self, message: AgentMessage | None, number: int) -> None:
        """See `AgentStream.follow`."""
        if message is None:
            self.has_ended = True
            return
        assert isinstance(message, Remark)
        self.texts.append(message.text)
        if self._shows:
            self._stream.note_shown(number)


async def obey(orders: AsyncGenerator[Order, None]) -> Order:
    async with asyncio.timeout(LIMIT_SECONDS):
        return await anext(orders)


@in_loop
async def test_a_message_that_was_received_is_taken_once_and_acknowledged_when_it_was_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("rendezvous.server.agent_streams._ANSWER_SECONDS", 0.01)
    stream = AgentStream()
    shower = Shower(stream, shows=False)
    assert await stream.receive(1, MESSAGES[:2]) == 0
    assert await stream.receive(1, MESSAGES) == 0
    stream.note_shown(2)
    assert await stream.receive(1, MESSAGES) == 2
    assert tuple(shower.texts) == TEXTS


@in_loop
async def test_messages_wait_for_a_launcher_that_shows_them() -> None:
    stream = AgentStream()
    receiving = asyncio.create_task(stream.receive(1, MESSAGES))
    await asyncio.sleep(0)
    shower = Shower(stream)
    assert await receiving == len(TEXTS)
    assert tuple(shower.texts) == TEXTS


@in_loop
async def test_a_launcher_that_was_started_again_shows_only_what_its_former_one_has_not() -> None:
    identity = agent_identity("a")
    streams = AgentStreams()
    Shower(streams.of(identity))
    await streams.of(identity).receive(1, MESSAGES[:2])
    again = AgentStreams(streams.shown)
    assert again.shown == {identity: 2}
    shower = Shower(again.of(identity))
    assert await again.of(identity).receive(1, MESSAGES) == len(TEXTS)
    assert shower.texts == ["three"]


@in_loop
async def test_numbers_that_an_agent_leaves_out_are_no_fault() -> None:
    stream = AgentStream()
    shower = Shower(stream)
    assert await stream.receive(1, MESSAGES[:1]) == 1
    assert await stream.receive(7, MESSAGES[2:]) == 7
    assert shower.texts == ["one", "three"]


@in_loop
async def test_a_malformed_message_is_an_error() -> None:
    stream = AgentStream()
    Shower(stream)
    with pytest.raises(WireError):
        await stream.receive(1, [b"\xff"])


@in_clean_loop
async def test_each_stream_of_orders_begins_with_those_that_hold_and_a_cut_one_is_opened_again() -> None:
    async with (
        open_stage() as stage,
        open_network(stage.port) as network,
        stage.agent("a", address=network.address) as a,
        aclosing(a.obey()) as orders,
    ):
        stream = stage.server.stream("a")
        assert not stream.send(TERMINATE)
        Shower(stream, Stop())
        assert await obey(orders) == Stop()
        assert stream.send(TERMINATE)
        assert await obey(orders) == TERMINATE
        following = asyncio.create_task(obey(orders))
        await network.cut()
        await happen(lambda: not stream.is_open)
        await network.mend()
        assert await following == Stop()


@in_clean_loop
async def test_the_end_of_an_agents_messages_reaches_the_launcher() -> None:
    async with open_stage() as stage, stage.agent("a") as a:
        shower = Shower(stage.server.stream("a"))
        assert await a.deliver(1, MESSAGES) == len(TEXTS)
        assert await a.deliver(4, [], is_last=True) == len(TEXTS)
        assert (tuple(shower.texts), shower.has_ended) == (TEXTS, True)


@in_clean_loop
async def test_an_agent_that_was_replaced_has_no_stream() -> None:
    async with open_stage(policy=LASTING) as stage, stage.agent("a") as a:
        stage.server.submit(Lost("a", "it was cut off"))
        with pytest.raises(CallRefusedError, match="another agent has replaced"):
            await a.deliver(1, MESSAGES)
        with pytest.raises(CallRefusedError, match="another agent has replaced"):
            await obey(a.obey())


def set_term(stage: Stage, term: int) -> None:
    stage.server.term_number = term


@in_clean_loop
async def test_an_agent_refuses_the_answers_of_a_former_term_and_takes_those_of_a_later_one() -> None:
    async with open_stage() as stage, stage.agent("a") as a:
        set_term(stage, 2)
        await a.report(1, [A0], [], LIMIT_SECONDS)
        set_term(stage, 1)
        with pytest.raises(UnreachableError, match="a former server answers, of term 1 after 2"):
            await a.report(2, [A0], [], LIMIT_SECONDS)
        set_term(stage, 3)
        await a.report(3, [A0], [], LIMIT_SECONDS)


@in_clean_loop
async def test_a_refusal_of_a_former_term_is_not_final() -> None:
    async with open_stage(policy=LASTING) as stage, stage.agent("a") as a:
        set_term(stage, 2)
        await a.report(1, [A0], [], LIMIT_SECONDS)
        set_term(stage, 1)
        stage.server.submit(Lost("a", "it was cut off"))
        with pytest.raises(UnreachableError, match="a former server"):
            await a.report(2, [A0], [], LIMIT_SECONDS)


@in_clean_loop
async def test_a_stream_of_a_former_term_is_left_when_a_later_one_answers() -> None:
    async with open_stage() as stage, stage.agent("a") as a, aclosing(a.obey()) as orders:
        Shower(stage.server.stream("a"), Stop())
        assert await obey(orders) == Stop()
        set_term(stage, 2)
        await a.report(1, [A0], [], LIMIT_SECONDS)
        assert stage.server.stream("a").send(TERMINATE)
        assert await obey(orders) == Stop()  # of the next stream


@pytest.mark.parametrize(("is_patient", "kind"), [(True, UnreachableError), (False, CallRefusedError)])
def test_an_error_of_grpc_itself_is_final_only_where_the_server_cannot_come_back(
    monkeypatch: pytest.MonkeyPatch, is_patient: bool, kind: type[Exception]
) -> None:
    async def fail(*_: object, **__: object) -> int:
        metadata = grpc.aio.Metadata()
        raise grpc.aio.AioRpcError(grpc.StatusCode.RESOURCE_EXHAUSTED, metadata, metadata, "no memory")

    @in_clean_loop
    async def story() -> None:
        async with open_stage() as stage, stage.agent("a", is_patient=is_patient) as a:
            monkeypatch.setattr(a, "stub", type("Stub", (), {"Report": fail, "Deliver": fail}))
            with pytest.raises(kind, match="no memory"):
                await report(a)
            with pytest.raises(kind, match="no memory"):
                await a.deliver(1, MESSAGES)

    story()


async def report(agent: AgentClient) -> None:
    await agent.report(1, [A0], [], LIMIT_SECONDS)
