"""Channels that are connected with sockets, over a real OpenSSH server."""

import asyncio
import functools
import os
import signal
import socket
import threading
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

import paramiko
import pytest

from hvdrun.processes.background import in_thread
from hvdrun.transport.ssh.channels import ForwardedChannel, Forwarder
from hvdrun.transport.ssh.dial import dial
from tests.hvdrun.transport.ssh.servers import Home, SshServer, needs_sshd
from tests.waiting import LIMIT_SECONDS, in_loop

pytestmark = needs_sshd


@dataclass
class Stream:
    """The event loop's end of a channel."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    channel: ForwardedChannel

    async def read(self) -> bytes:
        """The next bytes; empty at the end."""
        return await self.reader.read(1024 * 1024)


@asynccontextmanager
async def running(home: Home, server: SshServer, *commands: str) -> AsyncIterator[list[Stream]]:
    """These commands on the far side of one connection."""
    connection = await dial(home.target(server), LIMIT_SECONDS)
    errors: list[BaseException] = []
    forwarder = Forwarder(errors.append)
    async with AsyncExitStack() as sockets, AsyncExitStack() as stack:
        stack.push_async_callback(in_thread, forwarder.stop)
        stack.push_async_callback(in_thread, connection.close)
        streams = []
        for command in commands:
            session = await in_thread(connection.client.open_session)
            await in_thread(functools.partial(session.exec_command, command))
            ours, end = socket.socketpair()
            end.setblocking(False)  # noqa: FBT003 - socket's signature
            sockets.callback(end.close)
            reader, writer = await asyncio.open_connection(sock=ours)
            sockets.callback(writer.transport.abort)
            streams.append(Stream(reader, writer, forwarder.add(session, end)))
        yield streams
    assert errors == []


async def read_all(stream: Stream) -> bytes:
    data = b""
    while chunk := await stream.read():
        data += chunk
    return data


@in_loop
async def test_bytes_come_back_in_order_and_then_the_end(home: Home, server: SshServer) -> None:
    data = bytes(range(256)) * 16_000  # 4 MB, several times a window
    async with running(home, server, "cat; echo done >&2; exit 3") as (stream,):
        for start in range(0, len(data), 100_000):
            stream.writer.write(data[start : start + 100_000])
        stream.writer.write_eof()
        assert await read_all(stream) == data
        await stream.channel.wait_closed()
        assert (stream.channel.exit_code, stream.channel.errors) == (3, b"done\n")
        assert await stream.read() == b""


@in_loop
async def test_a_channel_that_pauses_does_not_delay_the_others(home: Home, server: SshServer) -> None:
    commands = ("exec yes", "echo $$; exec sleep 600", "exec cat")
    async with running(home, server, *commands) as (flood, stuck, echo):
        assert await flood.read()
        pid = int(await stuck.read())
        for _ in range(64):
            stuck.writer.write(bytes(100_000))  # more than its window
        for number in range(20):
            echo.writer.write(b"%d\n" % number)
            assert await echo.read() == b"%d\n" % number
        os.kill(pid, signal.SIGKILL)


@in_loop
async def test_a_command_that_reads_late_gets_all_bytes(home: Home, server: SshServer) -> None:
    async with running(home, server, "sleep 0.5; exec wc -c") as (stream,):
        stream.writer.write(bytes(8 * 1024 * 1024))  # more than its window
        stream.writer.write_eof()
        assert int(await read_all(stream)) == 8 * 1024 * 1024


@in_loop
async def test_a_reader_that_pauses_bounds_what_is_received(
    home: Home, server: SshServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    receive = paramiko.Channel.recv
    received = 0

    def count(channel: paramiko.Channel, size: int) -> bytes:
        nonlocal received
        data = receive(channel, size)
        received += len(data)
        return data

    monkeypatch.setattr(paramiko.Channel, "recv", count)
    async with running(home, server, "exec head -c 8000000 /dev/zero") as (stream,):
        read = len(await stream.read())
        before = -1
        while before != received:
            before = received
            await asyncio.sleep(0.2)  # no event reports that nothing happens
        assert before < 2 * 1024 * 1024
        assert read + len(await read_all(stream)) == 8_000_000


@in_loop
async def test_a_noisy_error_stream_neither_blocks_nor_grows(home: Home, server: SshServer) -> None:
    command = "head -c 8000000 /dev/zero >&2; echo last >&2; echo up"
    async with running(home, server, command) as (stream,):
        assert await read_all(stream) == b"up\n"
        await stream.channel.wait_closed()
        assert stream.channel.errors.endswith(b"last\n")
        assert len(stream.channel.errors) <= 16 * 1024


@in_loop
async def test_a_channel_that_cannot_send_ends_and_the_others_continue(
    home: Home, server: SshServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    send = paramiko.Channel.send

    async with running(home, server, "exec cat", "exec cat") as (lost, echo):

        def fail(channel: paramiko.Channel, data: bytes) -> int:
            if channel is lost.channel._channel:
                raise EOFError
            return send(channel, data)

        monkeypatch.setattr(paramiko.Channel, "send", fail)
        lost.writer.write(b"x")
        await lost.channel.wait_closed()
        assert (await lost.read(), lost.channel.exit_code) == (b"", -1)
        echo.writer.write(b"y")
        assert await echo.read() == b"y"


@in_loop
async def test_a_wait_that_is_cancelled_leaves_the_others_waiting(home: Home, server: SshServer) -> None:
    async with running(home, server, "exec cat") as (echo,):
        cancelled, other = (asyncio.create_task(echo.channel.wait_closed()) for _ in range(2))
        await asyncio.sleep(0)
        cancelled.cancel()
        await asyncio.wait([cancelled])
        assert not other.done()
        echo.writer.write_eof()
        await other
        assert echo.channel.exit_code == 0


@in_loop
async def test_a_connection_has_one_thread_of_ours_and_one_of_paramiko_s(home: Home, server: SshServer) -> None:
    def count() -> tuple[int, int]:
        threads = threading.enumerate()
        ours = sum(thread.name == "hvdrun-ssh-forwarder" for thread in threads)
        return ours, sum(isinstance(thread, paramiko.Transport) for thread in threads)

    async with running(home, server, "exec cat", "exec cat", "exec cat"):
        assert count() == (1, 1)
    assert count()[0] == 0
