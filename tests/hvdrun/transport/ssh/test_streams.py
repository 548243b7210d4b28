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

from hvdrun.processes.background import in_thread
from hvdrun.transport.ssh.dial import dial
from hvdrun.transport.ssh.streams import Bridge, Pump, Stream
from tests.hvdrun.transport.ssh.servers import Home, SshServer, needs_sshd
from tests.waiting import LIMIT_SECONDS, in_loop

pytestmark = needs_sshd


@asynccontextmanager
async def running(home: Home, server: SshServer, *commands: str) -> AsyncIterator[list[tuple[Stream, Bridge]]]:
    """These commands on the far side of one connection."""
    connection = await dial(home.target(server), LIMIT_SECONDS)
    errors: list[BaseException] = []
    pump = Pump(errors.append)
    try:
        streams = []
        for command in commands:
            session = await in_thread(connection.client.open_session)
            await in_thread(functools.partial(session.exec_command, command))
            streams.append(pump.open_stream(session))
        yield streams
    finally:
        await in_thread(connection.close)
        await in_thread(pump.stop)
    assert errors == []


async def read_all(stream: Stream) -> bytes:
    data = b""
    while chunk := await stream.read():
        data += chunk
    return data


@in_loop
async def test_bytes_come_back_in_order_and_then_the_end(home: Home, server: SshServer) -> None:
    data = bytes(range(256)) * 16_000  # 4 MB, several times a window
    async with running(home, server, "cat; echo done >&2; exit 3") as ((stream, bridge),):
        for start in range(0, len(data), 100_000):
            stream.write(data[start : start + 100_000])
        stream.end_writing()
        assert await read_all(stream) == data
        await bridge.closed.wait()
        assert (bridge.exit_code, bridge.errors) == (3, b"done\n")
        assert await stream.read() == b""
        stream.write(b"lost")


@in_loop
async def test_one_channel_s_pause_is_not_the_others(home: Home, server: SshServer) -> None:
    commands = ("exec yes", "echo $$; exec sleep 600", "exec cat")
    async with running(home, server, *commands) as ((flood, _), (stuck, _), (echo, _)):
        assert await flood.read()
        pid = int(await stuck.read())
        for _ in range(64):
            stuck.write(bytes(100_000))  # more than its window
        for number in range(20):
            echo.write(b"%d\n" % number)
            assert await echo.read() == b"%d\n" % number
        os.kill(pid, signal.SIGKILL)


@in_loop
async def test_a_far_end_that_takes_nothing_for_a_while_gets_all_in_the_end(home: Home, server: SshServer) -> None:
    async with running(home, server, "sleep 0.5; exec wc -c") as ((stream, _),):
        stream.write(bytes(8 * 1024 * 1024))  # more than its window
        stream.end_writing()
        assert int(await read_all(stream)) == 8 * 1024 * 1024


@in_loop
async def test_what_the_loop_leaves_unread_is_bounded(home: Home, server: SshServer) -> None:
    async with running(home, server, "exec head -c 8000000 /dev/zero") as ((stream, _),):
        assert (arrived := len(await stream.read()))
        before = -1
        while before != stream._arrived_bytes:
            before = stream._arrived_bytes
            await asyncio.sleep(0.2)  # no event tells that nothing happens
        assert before < 1024 * 1024
        assert arrived + len(await read_all(stream)) == 8_000_000


@in_loop
async def test_a_noisy_error_stream_neither_blocks_nor_grows(home: Home, server: SshServer) -> None:
    command = "head -c 8000000 /dev/zero >&2; echo last >&2; echo up"
    async with running(home, server, command) as ((stream, bridge),):
        assert await read_all(stream) == b"up\n"
        await bridge.closed.wait()
        assert bridge.errors.endswith(b"last\n")
        assert len(bridge.errors) <= 16 * 1024


@in_loop
async def test_a_channel_that_cannot_send_ends_and_the_others_go_on(
    home: Home, server: SshServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    send = paramiko.Channel.send

    async with running(home, server, "exec cat", "exec cat") as ((lost, bridge), (echo, _)):

        def fail(channel: paramiko.Channel, data: bytes) -> int:
            if channel is bridge._channel:
                raise EOFError
            return send(channel, data)

        monkeypatch.setattr(paramiko.Channel, "send", fail)
        lost.write(b"x")
        await bridge.closed.wait()
        assert (await lost.read(), bridge.exit_code) == (b"", -1)
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
