"""Connections forwarded between an agent and its launcher: each end is closed, whenever the forwarding ends."""

import asyncio
import os
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest

from hvdrun.joining import channel as channel_module
from hvdrun.joining.channel import Channel, TunnelEnd, forward_inside, make_server_context
from hvdrun.processes.background import BackgroundTasks
from rendezvous.core.model import LOOPBACK
from rendezvous.server.authority import Authority
from tests.descriptors import list_descriptors, list_settled_descriptors
from tests.waiting import happen, in_loop

FREE_PORT = 0
CLOSED_PORT = 1


@asynccontextmanager
async def connected(port: int) -> AsyncIterator[asyncio.StreamReader]:
    reader, writer = await asyncio.open_connection(LOOPBACK, port)
    try:
        yield reader
    finally:
        writer.transport.abort()


async def await_close(reader: asyncio.StreamReader) -> None:
    with suppress(ConnectionResetError):
        assert await reader.read() == b""


@in_loop
async def test_a_forwarded_connection_is_closed_when_its_task_is_cancelled_before_it_ran() -> None:
    channels: list[Channel] = []

    def accept() -> Channel:
        channels.append(Channel())
        return channels[-1]

    server = await asyncio.get_running_loop().create_server(accept, LOOPBACK, FREE_PORT)
    async with server, connected(server.sockets[0].getsockname()[1]) as reader:
        await happen(lambda: any(channel.is_open for channel in channels))
        async with BackgroundTasks() as tasks:
            forward_inside(channels[0], CLOSED_PORT, tasks)
        await await_close(reader)


@in_loop
async def test_a_closed_tunnel_refuses_a_connection_that_was_accepted_before() -> None:
    async def connect() -> int:
        raise AssertionError("a closed tunnel calls the launcher")

    async with BackgroundTasks() as tasks:
        tunnel = TunnelEnd(connect, tasks)
        await tunnel.open()
        with socket.create_connection((LOOPBACK, tunnel.port)) as caller:
            await asyncio.sleep(0)
            await asyncio.sleep(0)  # now the connection is accepted, and not handed over yet
            tunnel.close()
            reader, writer = await asyncio.open_connection(sock=caller)
            await await_close(reader)
            writer.transport.abort()


@in_loop
async def test_a_tunnel_gives_up_a_launcher_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    async def connect() -> int:
        await asyncio.Event().wait()
        raise AssertionError("it is never set")

    monkeypatch.setattr(channel_module, "HANDSHAKE_SECONDS", 0.1)
    async with BackgroundTasks() as tasks:
        tunnel = TunnelEnd(connect, tasks)
        await tunnel.open()
        async with connected(tunnel.port) as reader:
            await await_close(reader)
        tunnel.close()


def test_the_launcher_s_credential_needs_no_file_in_memory_and_leaves_no_descriptor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(os, "memfd_create")
    credential = Authority("token").issue_server()
    before = list_settled_descriptors()
    assert isinstance(make_server_context(credential), ssl.SSLContext)
    assert list_descriptors() == before
