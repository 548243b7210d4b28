"""A prober believes only the host that it asks for, and is done in time whatever the others do."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from hvdrun.network.addresses import InterfaceAddress
from hvdrun.network.probe import ANSWER_BYTES, CONCURRENCY, QUESTION_BYTES, Identity, Listener, bound_seconds, probe
from rendezvous.core.model import Endpoint
from rendezvous.wire.orders import ProbeTarget, Proof
from tests.hvdrun.network.loopback import ADDRESSES
from tests.ports import reserve_port
from tests.waiting import LIMIT_SECONDS, in_loop

TOKEN = b"token"
SHORT_SECONDS = 0.2
ENOUGH_SECONDS = 5.0  # for a listener on this machine

Behaviour = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def listening(host: str, address: str, token: bytes = TOKEN) -> AsyncIterator[Endpoint]:
    listener = Listener(token, host)
    try:
        (entry,) = await listener.open([InterfaceAddress("lo", address, 8, 0)])
        yield entry.endpoint
    finally:
        listener.close()


@asynccontextmanager
async def impostor(behave: Behaviour) -> AsyncIterator[Endpoint]:
    """Another program, which behaves in this way towards each connection."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await behave(reader, writer)
        except OSError:
            pass  # the prober has had enough
        finally:
            writer.transport.abort()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield Endpoint("127.0.0.1", server.sockets[0].getsockname()[1])


async def prove(host: str, *endpoints: Endpoint, limit_seconds: float = LIMIT_SECONDS) -> tuple[Proof, ...]:
    return await probe(TOKEN, [ProbeTarget(host, endpoint) for endpoint in endpoints], limit_seconds=limit_seconds)


@pytest.mark.parametrize("address", ADDRESSES)
@in_loop
async def test_the_proof_of_a_listener_has_the_source_address_and_the_time(address: str) -> None:
    async with listening("a", address) as endpoint:
        (proof,) = await prove("a", endpoint)
    assert (proof.host, proof.address) == ("a", address)
    assert proof.source in {address, "127.0.0.1"}
    assert proof.milliseconds > 0


async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"SSH-2.0-OpenSSH_9.2p1 Debian-2+deb12u3\r\n" * 1000)
    await writer.drain()
    await reader.read()


async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Accept, and end it."""


async def stop_short(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readexactly(QUESTION_BYTES)
    writer.write(b"x" * (ANSWER_BYTES - 1))
    await writer.drain()


@pytest.mark.parametrize("behave", [greet, hang_up, stop_short])
@in_loop
async def test_an_impostor_is_not_believed(behave: Behaviour) -> None:
    async with impostor(behave) as endpoint:
        assert await prove("a", endpoint) == ()


async def stay_silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:  # noqa: ARG001 - a Behaviour
    await reader.read()


async def dribble(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:  # noqa: ARG001 - a Behaviour
    while True:
        writer.write(b"x")
        await writer.drain()
        await asyncio.sleep(SHORT_SECONDS / 4)


@pytest.mark.parametrize("behave", [stay_silent, dribble])
@in_loop
async def test_a_peer_that_does_not_answer_is_given_up_and_hides_no_other(behave: Behaviour) -> None:
    async with impostor(behave) as silent, listening("b", "127.0.0.1") as endpoint:
        targets = [ProbeTarget("a", silent), ProbeTarget("b", endpoint)]
        assert [proof.host for proof in await probe(TOKEN, targets, limit_seconds=ENOUGH_SECONDS)] == ["b"]


@in_loop
async def test_a_peer_that_never_accepts_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full:
        endpoint = Endpoint("127.0.0.1", full.getsockname()[1])
        assert await prove("a", *[endpoint] * 5, limit_seconds=SHORT_SECONDS) == ()


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "240.0.0.1", "fe80::1"])
@in_loop
async def test_an_address_without_a_listener_is_not_proven(address: str) -> None:
    with reserve_port() as port:
        assert await prove("a", Endpoint(address, port), limit_seconds=SHORT_SECONDS) == ()


def test_no_target_is_no_proof() -> None:
    assert asyncio.run(probe(TOKEN, [])) == ()


@in_loop
async def test_more_targets_than_fit_together_are_all_tried_and_come_in_their_order() -> None:
    async with listening("a", "127.0.0.1") as one, listening("b", "127.0.0.2") as two:
        targets = [ProbeTarget("a", one), ProbeTarget("b", two)] * CONCURRENCY
        proofs = await probe(TOKEN, targets, limit_seconds=LIMIT_SECONDS)
        assert [proof.host for proof in proofs] == ["a", "b"] * CONCURRENCY


@pytest.mark.parametrize(("count", "rounds"), [(0, 0), (1, 1), (CONCURRENCY, 1), (CONCURRENCY + 1, 2)])
def test_the_time_that_probing_takes_is_known_before(count: int, rounds: int) -> None:
    assert bound_seconds(count, 2.0) == 2.0 * rounds


ASKED = Identity(b"token", "a", Endpoint("10.0.0.1", 4711))
OTHER_IDENTITIES = [
    replace(ASKED, token=b"another"),
    replace(ASKED, host="b"),
    replace(ASKED, endpoint=Endpoint("10.0.0.2", 4711)),
    replace(ASKED, endpoint=Endpoint("10.0.0.1", 4712)),
    replace(ASKED, host="a\x0010.0.0.1", endpoint=Endpoint("", 4711)),
]


@pytest.mark.parametrize("host", ["a", "caf\udce9"])
def test_the_requested_host_answers(host: str) -> None:
    asked = replace(ASKED, host=host)
    question = asked.ask()
    answer = asked.answer(question)
    assert answer is not None
    assert (len(question), len(answer)) == (QUESTION_BYTES, ANSWER_BYTES)
    assert asked.has_answered(question, answer)


@pytest.mark.parametrize("other", OTHER_IDENTITIES, ids=str)
def test_no_other_host_answers_or_is_believed(other: Identity) -> None:
    question = ASKED.ask()
    assert other.answer(question) is None
    assert not ASKED.has_answered(question, other._sign(b"answer", question[:16]))


def test_an_answer_is_good_for_its_own_question_only() -> None:
    answer = ASKED.answer(ASKED.ask())
    assert answer is not None
    assert not ASKED.has_answered(ASKED.ask(), answer)


def test_a_question_sent_back_is_no_answer() -> None:
    question = ASKED.ask()
    assert not ASKED.has_answered(question, question[:ANSWER_BYTES])
    assert not ASKED.has_answered(question, question[-ANSWER_BYTES:])


@pytest.mark.parametrize("length", [0, 1, 16, 47, 49, 4096])
def test_bytes_that_are_no_question_have_no_answer(length: int) -> None:
    assert ASKED.answer(b"\x00" * length) is None


@pytest.mark.parametrize("length", [0, 1, 31, 33])
def test_bytes_of_another_length_are_no_answer(length: int) -> None:
    assert not ASKED.has_answered(ASKED.ask(), b"\x00" * length)
