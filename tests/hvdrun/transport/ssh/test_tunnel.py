"""Connections from the far side to this machine's loopback, through a real OpenSSH server."""

import asyncio
import hashlib
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from hvdrun.transport.ssh.failures import TunnelRefusedError
from hvdrun.transport.ssh.start import RemoteAgent
from hvdrun.transport.ssh.transport import SshTransport
from tests.hvdrun.transport.ssh.servers import Home, SshServer, needs_sshd, serving

pytestmark = needs_sshd

LIMIT_SECONDS = 40.0
DATA = os.urandom(1024) * 1024 * 4


@asynccontextmanager
async def opened(home: Home, server: SshServer, folder: Path) -> AsyncIterator[SshTransport]:
    agent = folder / "idle"
    agent.write_text("#!/bin/sh\necho up\nexec cat\n", encoding="utf-8")
    agent.chmod(0o755)
    transport = SshTransport(home.target(server), RemoteAgent(str(agent)))
    try:
        async with asyncio.timeout(LIMIT_SECONDS):
            await transport.open()
            yield transport
    finally:
        await transport.close()


def is_open(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send back what comes, until its end."""
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    writer.close()


def test_bytes_go_both_ways_and_ends_too(home: Home, server: SshServer, tmp_path: Path) -> None:
    async def converse(port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)

        async def send() -> None:
            writer.write(DATA)
            await writer.drain()
            writer.write_eof()

        received, _ = await asyncio.gather(reader.read(-1), send())
        assert hashlib.sha256(received).digest() == hashlib.sha256(DATA).digest()
        writer.close()

    async def scenario() -> None:
        async with opened(home, server, tmp_path) as transport:
            served = await asyncio.start_server(echo, "127.0.0.1", 0)
            port = await transport.tunnel(served.sockets[0].getsockname()[1])
            await asyncio.gather(*(converse(port) for _ in range(4)))
            served.close()
        while is_open(port):  # noqa: ASYNC110 - no event tells that the server has closed it
            await asyncio.sleep(0.01)

    asyncio.run(scenario())


def test_two_tunnels_lead_to_two_ports(home: Home, server: SshServer, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(home, server, tmp_path) as transport:
            for word in (b"one", b"two"):

                async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter, word: bytes = word) -> None:
                    writer.write(word)
                    writer.close()

                served = await asyncio.start_server(greet, "127.0.0.1", 0)
                port = await transport.tunnel(served.sockets[0].getsockname()[1])
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                assert await reader.read(-1) == word
                writer.close()
                served.close()

    asyncio.run(scenario())


def test_a_far_end_that_does_not_read_holds_the_sender_back(home: Home, server: SshServer, tmp_path: Path) -> None:
    sent = 0

    async def flood(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        try:
            while True:
                writer.write(bytes(65536))
                await writer.drain()
                sent += 65536
        except OSError:
            writer.close()

    async def scenario() -> None:
        async with opened(home, server, tmp_path) as transport:
            served = await asyncio.start_server(flood, "127.0.0.1", 0)
            port = await transport.tunnel(served.sockets[0].getsockname()[1])
            _, writer = await asyncio.open_connection("127.0.0.1", port, limit=65536)
            before = -1
            while sent == 0 or sent != before:
                before = sent
                await asyncio.sleep(0.3)  # no event tells that nothing happens
            assert sent < 32 * 1024 * 1024
            writer.close()
            served.close()

    asyncio.run(scenario())


def test_a_port_here_where_nobody_listens_ends_the_connection(home: Home, server: SshServer, tmp_path: Path) -> None:
    async def scenario() -> None:
        with socket.create_server(("127.0.0.1", 0)) as probe:
            closed = probe.getsockname()[1]
        async with opened(home, server, tmp_path) as transport:
            port = await transport.tunnel(closed)
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            assert await reader.read(-1) == b""
            writer.close()

    asyncio.run(scenario())


def test_a_server_that_forwards_nothing_is_told(home: Home, tmp_path: Path) -> None:
    async def scenario() -> None:
        with serving(tmp_path / "strict", options=("AllowTcpForwarding no",)) as server:
            server.authorize(home.key)
            home.trust(server)
            async with opened(home, server, tmp_path) as transport:
                with pytest.raises(TunnelRefusedError, match=r"denied the request\): set AllowTcpForwarding"):
                    await transport.tunnel(1)

    asyncio.run(scenario())
