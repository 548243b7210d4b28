"""Ways to real agents: what is true of those here, by a command and over ssh, and what is of the one here."""

import os
import signal
import sys
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from hvdrun import __version__
from hvdrun.errors import LaunchError
from hvdrun.transport import child
from hvdrun.transport.child import CommandTransport, LocalTransport
from hvdrun.transport.start import RemoteAgent
from hvdrun.transport.transport import Transport
from rendezvous.core.messages import Terminate
from rendezvous.server.authority import Authority
from rendezvous.wire.orders import AgentMessage, Begin, Hello, Output, OutputStream, Release
from tests.hvdrun.agent.jobs import JOB, LAUNCH, WORKER, make_begin
from tests.hvdrun.agent.sleepers import is_alive
from tests.hvdrun.transport.ssh.agents import make_transport
from tests.hvdrun.transport.ssh.servers import needs_sshd
from tests.waiting import LIMIT_SECONDS, happen, in_loop

Make = Callable[[], Transport]
SLEEPS = "echo $$ $PPID; trap '' TERM; sleep 600; true"


@pytest.fixture(params=["local", "command", pytest.param("ssh", marks=needs_sshd)])
def make(request: pytest.FixtureRequest) -> Make:
    """Makes a transport of each kind."""
    if request.param == "local":
        return lambda: LocalTransport("a")
    if request.param == "command":
        agent = RemoteAgent(sys.executable)
        return lambda: CommandTransport("a", ("sh", "-c", agent.command()), agent)
    target = request.getfixturevalue("home").target(request.getfixturevalue("server"))
    return lambda: make_transport(target)


def begin_with(directory: Path, script: str) -> Begin:
    """A job of one shell, whose lease ends nothing within a test."""
    begin = make_begin(directory, "sh", "-c", script)
    return replace(begin, credential=Authority(JOB).issue_agent("a"), lease_seconds=600, launcher_timeout_seconds=600)


@asynccontextmanager
async def opened(transport: Transport) -> AsyncIterator[AsyncIterator[AgentMessage]]:
    """The messages of its agent, after its greeting."""
    try:
        await transport.open()
        messages = transport.messages()
        hello = await anext(messages)
        assert isinstance(hello, Hello)
        assert hello.version == __version__
        yield messages
    finally:
        await transport.close()


async def start(transport: Transport, messages: AsyncIterator[AgentMessage], directory: Path, script: str) -> list[str]:
    """Launch the worker: the words of its first line."""
    transport.send(begin_with(directory, script))
    transport.send(LAUNCH)
    data = b""
    while not data.endswith(b"\n"):
        message = await anext(messages)
        if isinstance(message, Output) and message.stream is OutputStream.STDOUT:
            data += message.data
    return data.decode().split()


async def find_output(messages: AsyncIterator[AgentMessage]) -> list[AgentMessage]:
    """What output comes until the end."""
    return [message async for message in messages if isinstance(message, Output)]


@in_loop
async def test_orders_reach_the_agent_and_output_reaches_the_launcher(make: Make, tmp_path: Path) -> None:
    transport = make()
    async with opened(transport) as messages:
        script = "echo $HOROVOD_HOSTNAME $HVD_SLOT; exec sleep 600"
        assert await start(transport, messages, tmp_path, script) == ["a", "a:0"]
        transport.send(Terminate(WORKER, 0.0, "the test wants it"))
        transport.send(Release())
        assert await find_output(messages) == []
        assert (await transport.wait()).endswith(" ended with exit code 0")
        transport.send(Release())  # is lost


@in_loop
async def test_the_end_of_the_orders_ends_the_agent_and_its_workers(make: Make, tmp_path: Path) -> None:
    transport = make()
    async with opened(transport) as messages:
        pids = await start(transport, messages, tmp_path, SLEEPS)
    assert not any(is_alive(int(pid)) for pid in pids)


@in_loop
async def test_an_agent_that_is_given_up_ends_with_its_workers_and_reports_no_more(make: Make, tmp_path: Path) -> None:
    transport = make()
    async with opened(transport) as messages:
        worker, agent = map(int, await start(transport, messages, tmp_path, SLEEPS))
        if isinstance(transport, LocalTransport):
            os.kill(agent, signal.SIGSTOP)  # a stopped agent cannot end by itself
        await transport.kill()
        assert await find_output(messages) == []
        await happen(lambda: not is_alive(worker) and not is_alive(agent), "its end")


@in_loop
async def test_a_transport_that_was_never_opened_has_nothing_to_close(make: Make) -> None:
    transport = make()
    transport.send(Release())
    assert await transport.wait() == "it was never started"
    assert await find_output(transport.messages()) == []
    await transport.close()


def find_agent(transport: LocalTransport) -> psutil.Process:
    assert transport._process is not None
    return psutil.Process(transport._process.pid)


@in_loop
async def test_an_agent_s_last_words_are_in_the_sentence_about_its_end() -> None:
    transport = LocalTransport("a")
    async with opened(transport):
        assert transport._process is not None
        assert transport._process.stdin is not None
        transport._process.stdin.write(b"\xff" * 8)
        how = await transport.wait()
        assert how.startswith("its agent ended with exit code 1: the peer does not speak hvdrun's protocol")


@in_loop
async def test_an_agent_that_does_not_end_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child, "CLOSE_SECONDS", 0.2)
    transport = LocalTransport("a")
    async with opened(transport):
        find_agent(transport).suspend()
        await transport.close()
        assert await transport.wait() == "its agent ended with SIGKILL (signal 9)"


@in_loop
async def test_an_agent_that_is_killed_twice_has_ended_with_that_signal(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """On a busy machine the thread in which asyncio waits for a child may come late."""
    reap, may_reap = os.waitpid, threading.Event()

    def reap_late(pid: int, options: int) -> tuple[int, int]:
        if threading.current_thread() is not threading.main_thread():
            may_reap.wait(LIMIT_SECONDS)
        return reap(pid, options)

    monkeypatch.setattr(os, "waitpid", reap_late)
    transport = LocalTransport("a")
    async with opened(transport):
        agent = find_agent(transport).pid
        await transport.kill()
        await happen(lambda: not is_alive(agent), "its end")
        await transport.kill()
        may_reap.set()
        assert await transport.wait() == "its agent ended with SIGKILL (signal 9)"
    assert caplog.messages == []


@in_loop
async def test_an_agent_that_cannot_be_started_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "/no/such/python")
    with pytest.raises(
        LaunchError, match=r"the agent on a could not be started: .*No such file.* Check that this file exists"
    ):
        await LocalTransport("a").open()


@in_loop
async def test_an_agent_is_in_a_session_of_its_own_and_holds_no_folder() -> None:
    transport = LocalTransport("a")
    async with opened(transport):
        agent = find_agent(transport)
        assert (os.getsid(agent.pid), agent.cwd()) == (agent.pid, "/")
