"""Connections from the far side to this machine's loopback, through a real OpenSSH server."""

import asyncio
import errno
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import paramiko
import pytest

from hvdrun.transport.ssh.ssh_errors import TunnelRefusedError
from hvdrun.transport.ssh.transport import SshTransport
from tests.hvdrun.transport.ssh.agents import find_session, make_transport, opened, write_script
from tests.hvdrun.transport.ssh.servers import Home, SshServer, needs_sshd, serving
from tests.ports import reserve_port
from tests.waiting import happen, in_loop

pytestmark = needs_sshd

DATA = os.urandom(1024) * 1024
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def connected(home: Home, server: SshServer, folder: Path) -> AsyncIterator[SshTransport]:
    """A way to an agent that does nothing."""
    agent = write_script(folder / "idle", "#!/bin/sh\necho up\nexec cat\n")
    async with opened(home, server, agent) as transport:
        yield transport


@asynccontextmanager
async def tunnelling(transport: SshTransport, serve: Serve) -> AsyncIterator[int]:
    """A server here, which closes a connection when `serve` returns; the port there that leads to it."""

    async def serve_one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await serve(reader, writer)
            writer.close()
            await writer.wait_closed()
        except OSError:
            pass  # the other end has gone
        finally:
            writer.transport.abort()

    async with await asyncio.start_server(serve_one, "127.0.0.1", 0) as server:
        yield await transport.tunnel(server.sockets[0].getsockname()[1])


def is_open(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


async def read(port: int) -> bytes:
    """All bytes that come from the listener at this port."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    data = await reader.read(-1)
    writer.close()
    return data


@in_loop
async def test_bytes_go_both_ways_and_ends_too(home: Home, server: SshServer, tmp_path: Path) -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()

    async def converse(port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)

        async def send() -> None:
            writer.write(DATA)
            await writer.drain()
            writer.write_eof()

        received, _ = await asyncio.gather(reader.read(-1), send())
        assert received == DATA
        writer.close()

    async with connected(home, server, tmp_path) as transport, tunnelling(transport, echo) as port:
        await asyncio.gather(*(converse(port) for _ in range(4)))
    await happen(lambda: not is_open(port), "the close of the tunnel")


@in_loop
async def test_another_login_opens_the_tunnel_of_one_that_was_lost(
    home: Home, server: SshServer, tmp_path: Path
) -> None:
    async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"hello")

    async with connected(home, server, tmp_path) as former, tunnelling(former, greet) as remote:
        other = make_transport(home.target(server))
        with pytest.raises(TunnelRefusedError, match=f"opens port {remote} not again .*former connection may have"):
            await other.reopen_tunnel(1, remote)
        await other.kill()
        await former.kill()
        await happen(lambda: not is_open(remote), "the end of the tunnel")
        await happen(lambda: not server.sessions(), "the end of both sessions")
        async with await asyncio.start_server(greet_and_close, "127.0.0.1", 0) as here:
            later = make_transport(home.target(server))
            await later.reopen_tunnel(here.sockets[0].getsockname()[1], remote)
            assert await read(remote) == b"again"
            find_session(server).kill()
            await later.wait_lost()
            await later.kill()


async def greet_and_close(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"again")
    writer.close()


@in_loop
async def test_two_tunnels_lead_to_two_ports(home: Home, server: SshServer, tmp_path: Path) -> None:
    async with connected(home, server, tmp_path) as transport:
        for word in (b"one", b"two"):

            async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter, word: bytes = word) -> None:
                writer.write(word)

            async with tunnelling(transport, greet) as port:
                assert await read(port) == word


@in_loop
async def test_a_remote_side_that_does_not_read_pauses_the_sender(
    home: Home, server: SshServer, tmp_path: Path
) -> None:
    sent = 0

    async def flood(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        while True:
            writer.write(bytes(65536))
            await writer.drain()
            sent += 65536

    async with connected(home, server, tmp_path) as transport, tunnelling(transport, flood) as port:
        _, writer = await asyncio.open_connection("127.0.0.1", port, limit=65536)
        before = -1
        while sent == 0 or sent != before:
            before = sent
            await asyncio.sleep(0.3)  # no event shows that nothing happens
        assert sent < 32 * 1024 * 1024
        writer.close()


@in_loop
async def test_a_tunnel_to_a_port_without_a_listener_closes_the_connection(
    home: Home, server: SshServer, tmp_path: Path
) -> None:
    with reserve_port() as closed:
        async with connected(home, server, tmp_path) as transport:
            assert await read(await transport.tunnel(closed)) == b""


@in_loop
async def test_a_connection_for_which_no_socket_is_available_ends_alone(
    home: Home, server: SshServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(**_: object) -> socket.socket:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"hello")
        writer.close()

    async with connected(home, server, tmp_path) as transport, tunnelling(transport, greet) as port:
        with monkeypatch.context() as patch:
            patch.setattr("hvdrun.transport.ssh.channels.socket", SimpleNamespace(**{**vars(socket), "socket": fail}))
            assert await read(port) == b""
        assert await read(port) == b"hello"


@in_loop
async def test_a_server_that_forbids_forwarding_is_reported(home: Home, tmp_path: Path) -> None:
    with serving(tmp_path / "strict", options=("AllowTcpForwarding no",)) as server:
        server.authorize(home.key)
        home.trust(server)
        async with connected(home, server, tmp_path) as transport:
            with pytest.raises(TunnelRefusedError, match=r"denied the request\): set AllowTcpForwarding"):
                await transport.tunnel(1)


@in_loop
async def test_a_connection_that_ends_with_the_request_is_no_denial(
    home: Home, server: SshServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with connected(home, server, tmp_path) as transport:
        monkeypatch.setattr(paramiko.Transport, "request_port_forward", Mock(side_effect=EOFError))
        with pytest.raises(TunnelRefusedError, match="the connection has ended"):
            await transport.tunnel(1)
