"""Channels on the side of the event loop, over a real OpenSSH server."""

import asyncio
import functools
import os
import signal
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import paramiko
import pytest

from hvdrun.transport.ssh.dial import dial
from hvdrun.transport.ssh.streams import Pump, Stream
from hvdrun.transport.ssh.threads import in_thread
from tests.hvdrun.transport.ssh.servers import Home, SshServer, needs_sshd
from tests.waiting import LIMIT_SECONDS, in_loop

pytestmark = needs_sshd


@asynccontextmanager
async def running(home: Home, server: SshServer, *commands: str) -> AsyncIterator[list[Stream]]:
    """These commands on the far side of one connection."""
    connection = await dial(home.target(server), LIMIT_SECONDS)
    pump = Pump()
    try:
        streams = []
        for command in commands:
            session = await in_thread(connection.client.open_session)
            await in_thread(functools.partial(session.exec_command, command))
            streams.append(pump.add(session))
        yield streams
    finally:
        await in_thread(connection.close)
        await in_thread(pump.stop)


async def read_all(stream: Stream) -> bytes:
    data = b""
    while chunk := await stream.read():
        data += chunk
    return data


@in_loop
async def test_bytes_come_back_in_order_and_then_the_end(home: Home, server: SshServer) -> None:
    data = bytes(range(256)) * 16_000  # 4 MB, several times a window
    async with running(home, server, "cat; echo done >&2; exit 3") as (stream,):
        reading = asyncio.create_task(read_all(stream))
        for start in range(0, len(data), 100_000):
            stream.write(data[start : start + 100_000])
            await stream.drain()
        stream.end_writing()
        await stream.flush()
        assert await reading == data
        await stream.wait_closed()
        assert (stream.exit_code, stream.errors) == (3, b"done\n")
        assert await stream.read() == b""
        stream.write(b"lost")
        await stream.drain()


@in_loop
async def test_one_channel_s_pause_is_not_the_others(home: Home, server: SshServer) -> None:
    async with running(home, server, "exec yes", "echo $$; exec sleep 600", "exec cat") as (flood, stuck, echo):
        assert await flood.read()
        pid = int(await stuck.read())
        for _ in range(64):
            stuck.write(bytes(100_000))  # more than its window
        for number in range(20):
            echo.write(b"%d\n" % number)
            assert await echo.read() == b"%d\n" % number
        os.kill(pid, signal.SIGKILL)


@in_loop
async def test_drain_waits_for_a_far_end_that_does_not_take(home: Home, server: SshServer) -> None:
    async with running(home, server, "read go; exec cat") as (stream,):
        stream.write(bytes(8 * 1024 * 1024))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await stream.drain()
        stream.abandon()
        await stream.drain()
        await stream.wait_closed()


@in_loop
async def test_a_noisy_error_stream_neither_blocks_nor_grows(home: Home, server: SshServer) -> None:
    async with running(home, server, "head -c 8000000 /dev/zero >&2; echo last >&2; echo up") as (stream,):
        assert await read_all(stream) == b"up\n"
        await stream.wait_closed()
        assert stream.errors.endswith(b"last\n")
        assert len(stream.errors) <= 16 * 1024


@in_loop
async def test_a_channel_that_cannot_send_ends_and_the_others_go_on(
    home: Home, server: SshServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    send = paramiko.Channel.send

    async with running(home, server, "exec cat", "exec cat") as (lost, echo):

        def fail(channel: paramiko.Channel, data: bytes) -> int:
            if channel is lost._channel:
                raise EOFError
            return send(channel, data)

        monkeypatch.setattr(paramiko.Channel, "send", fail)
        lost.write(b"x")
        await lost.wait_closed()
        assert (await lost.read(), lost.exit_code) == (b"", -1)
        echo.write(b"y")
        assert await echo.read() == b"y"


@in_loop
async def test_a_connection_has_one_thread_of_ours_and_one_of_paramiko_s(home: Home, server: SshServer) -> None:
    def count() -> tuple[int, int]:
        threads = threading.enumerate()
        ours = sum(thread.name == "hvdrun-ssh-pump" for thread in threads)
        return ours, sum(isinstance(thread, paramiko.Transport) for thread in threads)

    async with running(home, server, "exec cat", "exec cat", "exec cat"):
        assert count() == (1, 1)
    assert count()[0] == 0
