"""The way to an agent on this machine: a real one at its other end."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from hvdrun.errors import LaunchError
from hvdrun.transport import local
from hvdrun.transport.local import LocalTransport
from rendezvous.authority import Authority
from rendezvous.core.effects import Launch, Terminate
from rendezvous.core.model import Assignment, Slot, Worker
from rendezvous.orders import Begin, Hello, Output, OutputStream, Release, Reserved, Telling
from tests.hvdrun.agent.jobs import JOB

LIMIT_SECONDS = 20.0
WORKER = Worker(Slot("a", 0), 1)
LAUNCH = Launch(WORKER, Assignment(0, 1, 0, 1, 0, 1), "placed")


def make_begin(directory: Path, script: str) -> Begin:
    return Begin(
        job=JOB,
        host="a",
        server="127.0.0.1:1",
        credential=Authority(JOB).issue_agent("a"),
        command=("sh", "-c", script),
        directory=str(directory),
        environment={b"PATH": os.environb[b"PATH"]},
        lease_seconds=30,
        start_timeout_seconds=30,
        address="127.0.0.1",
    )


@asynccontextmanager
async def opened(host: str = "a") -> AsyncIterator[LocalTransport]:
    transport = LocalTransport(host)
    await transport.open()
    try:
        async with asyncio.timeout(LIMIT_SECONDS):
            yield transport
    finally:
        await transport.close()


def find_agent(transport: LocalTransport) -> int:
    assert transport._process is not None
    return transport._process.pid


async def read_line(tellings: AsyncIterator[Telling]) -> bytes:
    """The first line of the worker's standard output."""
    data = b""
    async for telling in tellings:
        if isinstance(telling, Output) and telling.stream is OutputStream.STDOUT:
            data += telling.data
        if data.endswith(b"\n"):
            break
    return data


def test_orders_go_there_and_output_comes_back(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened() as transport:
            transport.send(make_begin(tmp_path, "echo $HOROVOD_HOSTNAME $HVD_SLOT; exec sleep 600"))
            transport.send(LAUNCH)
            tellings = transport.tellings()
            assert isinstance(await anext(tellings), Hello)
            assert isinstance(await anext(tellings), Reserved)
            assert await read_line(tellings) == b"a a:0\n"
            transport.send(Terminate(WORKER, 0.0, "the test wants it"))
            transport.send(Release())
            assert [telling async for telling in tellings if isinstance(telling, Output)] == []
            assert await transport.wait() == "its agent ended with exit code 0"

    asyncio.run(scenario())


def test_the_end_of_the_orders_ends_the_agent_and_its_workers(tmp_path: Path) -> None:
    async def scenario() -> int:
        async with opened() as transport:
            transport.send(make_begin(tmp_path, "trap '' TERM; echo $$; sleep 600; true"))
            transport.send(LAUNCH)
            return int(await read_line(transport.tellings()))

    assert not Path(f"/proc/{asyncio.run(scenario())}").exists()


def test_an_agent_s_last_words_are_in_the_sentence_about_its_end() -> None:
    async def scenario() -> None:
        async with opened() as transport:
            assert transport._process is not None
            assert transport._process.stdin is not None
            transport._process.stdin.write(b"\xff" * 8)
            how = await transport.wait()
            assert how.startswith("its agent ended with exit code 1: the peer does not speak hvdrun's protocol")

    asyncio.run(scenario())


def test_an_agent_that_was_killed_is_told_with_the_signal() -> None:
    async def scenario() -> None:
        async with opened() as transport:
            os.kill(find_agent(transport), signal.SIGKILL)
            assert [telling async for telling in transport.tellings()] == []
            assert await transport.wait() == "its agent ended with signal 9"
            transport.send(Release())  # is lost

    asyncio.run(scenario())


def test_an_agent_that_does_not_end_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with opened() as transport:
            os.kill(find_agent(transport), signal.SIGSTOP)
            await transport.close()
            assert await transport.wait() == "its agent ended with signal 9"

    monkeypatch.setattr(local, "_CLOSE_SECONDS", 0.2)
    asyncio.run(scenario())


def test_a_transport_that_was_never_opened_has_nothing_to_close() -> None:
    async def scenario() -> None:
        transport = LocalTransport("a")
        transport.send(Release())
        assert await transport.wait() == "it was never started"
        await transport.close()

    asyncio.run(scenario())


def test_an_agent_that_cannot_be_started_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "/no/such/python")
    with pytest.raises(LaunchError, match=r"the agent on a could not be started: .*No such file"):
        asyncio.run(LocalTransport("a").open())


def test_an_agent_is_in_a_session_of_its_own_and_holds_no_folder() -> None:
    async def scenario() -> None:
        async with opened() as transport:
            pid = find_agent(transport)
            assert os.getsid(pid) == pid
            assert os.readlink(f"/proc/{pid}/cwd") == "/"  # noqa: PTH115 - as short as it gets

    asyncio.run(scenario())


def test_an_agent_that_is_given_up_is_killed_and_its_tellings_end(tmp_path: Path) -> None:
    async def scenario() -> int:
        async with opened() as transport:
            tellings = transport.tellings()
            transport.send(make_begin(tmp_path, "echo $$; exec sleep 600"))
            transport.send(LAUNCH)
            worker = int(await read_line(tellings))
            os.kill(find_agent(transport), signal.SIGSTOP)
            await transport.abandon()
            assert [telling async for telling in tellings if isinstance(telling, Output)] == []
            assert await transport.wait() == "its agent ended with signal 9"
            return worker

    worker = asyncio.run(scenario())
    deadline = time.monotonic() + LIMIT_SECONDS
    while Path(f"/proc/{worker}").exists():  # its guardian ends it
        assert time.monotonic() < deadline
        time.sleep(0.01)
