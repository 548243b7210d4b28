"""A listener answers the probes of its connectivity check, and other connections can do it no harm."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from hvdrun.network.addresses import InterfaceAddress
from hvdrun.network.probe import MAX_CONNECTIONS, QUESTION_BYTES, Identity, Listener, probe
from rendezvous.core.model import Endpoint
from rendezvous.wire.orders import Listening, ProbeTarget
from tests.hvdrun.network.loopback import ADDRESSES
from tests.waiting import LIMIT_SECONDS, in_loop

TOKEN = b"token"
LONG_SECONDS = 600.0  # a silence that only counting can end


@asynccontextmanager
async def listening(
    *addresses: str, silence_seconds: float = LONG_SECONDS
) -> AsyncIterator[tuple[Listener, tuple[Listening, ...]]]:
    """A listener of host a on these addresses."""
    listener = Listener(TOKEN, "a", silence_seconds=silence_seconds)
    try:
        async with asyncio.timeout(LIMIT_SECONDS):
            yield listener, await listener.open([InterfaceAddress("lo", address, 8, 10) for address in addresses])
    finally:
        listener.close()


async def is_proven(endpoint: Endpoint) -> bool:
    return bool(await probe(TOKEN, [ProbeTarget("a", endpoint)], limit_seconds=LIMIT_SECONDS))


async def connect(endpoint: Endpoint, stack: AsyncExitStack) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection(endpoint.address, endpoint.port)

    async def close() -> None:
        writer.transport.abort()

    stack.push_async_callback(close)
    return reader, writer


async def read_rest(reader: asyncio.StreamReader) -> bytes:
    """What comes until the connection is ended, in whatever way."""
    try:
        return await reader.read()
    except ConnectionResetError:
        return b""


@in_loop
async def test_each_address_has_a_listener_of_its_own_and_no_other_address_has() -> None:
    async with listening(*ADDRESSES) as (_, opened):
        assert [(entry.endpoint.address, entry.prefix, entry.speed) for entry in opened] == [
            (address, 8, 10) for address in ADDRESSES
        ]
        assert all([await is_proven(entry.endpoint) for entry in opened])
        assert not await is_proven(Endpoint("127.0.0.3", opened[0].endpoint.port))


@in_loop
async def test_an_address_that_this_machine_lacks_is_left_out() -> None:
    async with listening("192.0.2.77", "127.0.0.1") as (_, opened):
        assert [entry.endpoint.address for entry in opened] == ["127.0.0.1"]


@in_loop
async def test_a_closed_listener_is_not_reached_and_keeps_no_connection() -> None:
    async with listening("127.0.0.1") as (listener, (entry,)), AsyncExitStack() as stack:
        reader, _ = await connect(entry.endpoint, stack)
        await is_proven(entry.endpoint)  # by now the first one has been let in
        listener.close()
        assert await read_rest(reader) == b""
        assert not await is_proven(entry.endpoint)


async def speak(endpoint: Endpoint, data: bytes) -> bytes:
    """The bytes that a stranger receives for these bytes."""
    async with AsyncExitStack() as stack:
        reader, writer = await connect(endpoint, stack)
        writer.write(data)
        return await read_rest(reader)


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nUser-Agent: a scanner with a long name\r\n\r\n",
        b"\x16\x03\x01" + b"\x00" * 200,
        os.urandom(1 << 20),
        Identity(b"another", "a", Endpoint("127.0.0.1", 1)).ask(),
    ],
    ids=["http", "tls", "much", "another connectivity check"],
)
@in_loop
async def test_a_stranger_gets_no_answer_and_is_cut_off_immediately(data: bytes) -> None:
    async with listening("127.0.0.1") as (_, (entry,)):
        assert (await speak(entry.endpoint, data), await is_proven(entry.endpoint)) == (b"", True)


@in_loop
async def test_a_question_is_understood_in_whatever_pieces_it_comes() -> None:
    async with listening("127.0.0.1") as (_, (entry,)), AsyncExitStack() as stack:
        identity = Identity(TOKEN, "a", entry.endpoint)
        question = identity.ask()
        reader, writer = await connect(entry.endpoint, stack)
        for byte in question:
            writer.write(bytes([byte]))
            await writer.drain()
            await asyncio.sleep(0)
        assert identity.has_answered(question, await reader.read())


@in_loop
async def test_a_question_with_bytes_behind_it_is_not_answered() -> None:
    async with listening("127.0.0.1") as (_, (entry,)):
        assert await speak(entry.endpoint, Identity(TOKEN, "a", entry.endpoint).ask() + b"x") == b""


async def say_nothing(_: asyncio.StreamWriter) -> None:
    """Connect, and send nothing."""


async def say_half(writer: asyncio.StreamWriter) -> None:
    writer.write(b"x" * (QUESTION_BYTES - 1))
    await writer.drain()


async def say_no_more(writer: asyncio.StreamWriter) -> None:
    writer.write(b"x")
    writer.write_eof()


@pytest.mark.parametrize("behave", [say_nothing, say_half, say_no_more])
@in_loop
async def test_a_late_question_is_cut_off(behave: Callable[[asyncio.StreamWriter], Awaitable[None]]) -> None:
    async with listening("127.0.0.1", silence_seconds=0.05) as (listener, (entry,)), AsyncExitStack() as stack:
        reader, writer = await connect(entry.endpoint, stack)
        await behave(writer)
        rest = await read_rest(reader)
        assert not listener._connections
        assert rest == b""


@in_loop
async def test_all_probes_of_one_moment_are_answered_among_many_silent_connections() -> None:
    async with listening("127.0.0.1") as (listener, (entry,)), AsyncExitStack() as stack:
        for _ in range(500):
            await connect(entry.endpoint, stack)
        targets = [ProbeTarget("a", entry.endpoint)] * 100
        probes = [probe(TOKEN, targets, limit_seconds=LIMIT_SECONDS) for _ in range(3)]
        assert [len(proofs) for proofs in await asyncio.gather(*probes)] == [100, 100, 100]
        assert len(listener._connections) <= MAX_CONNECTIONS


@in_loop
async def test_a_closed_listener_closes_a_connection_that_was_accepted_before() -> None:
    async with listening("127.0.0.1") as (listener, (entry,)):
        with socket.create_connection((entry.endpoint.address, entry.endpoint.port)) as prober:
            await asyncio.sleep(0)
            await asyncio.sleep(0)  # now the connection is accepted, and not handed over yet
            listener.close()
            reader, writer = await asyncio.open_connection(sock=prober)
            assert await read_rest(reader) == b""
            writer.transport.abort()
