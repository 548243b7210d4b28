"""What an agent that comes by itself ends with: a scheduler decides by it whether it is started again."""

import asyncio
import os
import signal
import socket
import threading
from asyncio.sslproto import _SSLProtocolTransport
from pathlib import Path

import pytest

from hvdrun.errors import CANNOT_LAUNCH, LaunchError
from hvdrun.joining import joining_agent as joining
from hvdrun.joining.joining_agent import JoiningAgent, JoinOptions
from hvdrun.joining.roster import Roster
from hvdrun.joining.token import create_files
from rendezvous.core.model import LOOPBACK, Endpoint, Host
from rendezvous.wire.orders import AgentAdmitted, Hello, Release
from tests.hvdrun.joining.test_listener import Launcher, opened, started, take
from tests.waiting import happen, in_loop

MAY_BE_STARTED_AGAIN = 75


@pytest.mark.parametrize("exit_code", [0, 3, MAY_BE_STARTED_AGAIN])
@in_loop
async def test_a_released_agent_ends_with_the_job_s_exit_code(exit_code: int, tmp_path: Path) -> None:
    path = tmp_path / "job.token"
    async with opened(path) as launcher, started(launcher.place, path) as agent:
        await launcher.roster.await_change(())
        transport = take(launcher)
        await transport.open()
        transport.send(Release(exit_code))
        assert [message async for message in transport.messages()][1:] == []
        assert await agent.end() == exit_code


@pytest.mark.parametrize("kills", [False, True])
@pytest.mark.parametrize("refusal", ["", "the job has all its hosts."])
@in_loop
async def test_an_agent_gets_the_exit_code_of_a_job_that_ends_before_it_begins_on_this_host(
    tmp_path: Path, *, kills: bool, refusal: str
) -> None:
    path = tmp_path / "job.token"
    async with opened(path) as launcher, started(launcher.place, path) as agent:
        await launcher.roster.await_change(())
        transport = take(launcher)
        await transport.open()
        launcher.roster.stop_admitting(refusal)
        await (transport.kill() if kills else transport.close())
        await happen(lambda: len(launcher.received) == 2)  # while the job ends
        launcher.roster.stop_admitting("the job has ended.", 125)
        await launcher.roster.release()
        assert await agent.end() == 125
        assert launcher.roster.hosts == ()


@in_loop
async def test_a_job_that_has_ended_waits_for_an_agent_that_joins_again(tmp_path: Path) -> None:
    path = tmp_path / "job.token"
    async with opened(path) as launcher, started(launcher.place, path) as agent:
        await launcher.roster.await_change(())
        transport = take(launcher)
        await transport.open()
        await transport.kill()
        launcher.roster.stop_admitting("the job has ended.", 3)
        await launcher.roster.release()
        assert len(launcher.received) == 2
        assert await agent.end() == 3


async def leave(launcher: Launcher, path: Path, host: str) -> int:
    """The exit code of an agent that comes to a job which needs no more."""
    async with started(launcher.place, path, host) as agent:
        return await agent.end()


@in_loop
async def test_an_agent_that_is_not_needed_may_be_started_again_unless_the_job_does_without_it(tmp_path: Path) -> None:
    path = tmp_path / "job.token"
    async with opened(path) as launcher, started(launcher.place, path, "a"):
        assert await launcher.roster.await_change(()) == (Host("a", 2),)
        transport = take(launcher)
        await transport.open()
        launcher.roster.stop_admitting("the job has all its hosts.")
        assert await leave(launcher, path, "b") == 0
        assert await leave(launcher, path, "a") == MAY_BE_STARTED_AGAIN  # the job cannot continue without host a
        launcher.roster.stop_admitting("the job has ended.", 3)
        assert await leave(launcher, path, "b") == 3
        await transport.close()


@pytest.mark.parametrize(
    ("number", "exit_code"),
    [
        (signal.SIGTERM, MAY_BE_STARTED_AGAIN),
        (signal.SIGUSR2, MAY_BE_STARTED_AGAIN),
        (signal.SIGHUP, 129),
        (signal.SIGINT, 130),
        (signal.SIGXCPU, 152),
    ],
)
@pytest.mark.parametrize("has_joined", [False, True])
@in_loop
async def test_a_signal_ends_an_agent_that_waits(
    number: signal.Signals, exit_code: int, tmp_path: Path, *, has_joined: bool
) -> None:
    path = tmp_path / "job.token"
    async with opened(path) as launcher:
        place = launcher.place if has_joined else Endpoint(LOOPBACK, 1)
        async with started(place, path) as agent:
            if has_joined:
                transport = take(launcher)
                await launcher.roster.await_change(())
                await transport.open()
                assert isinstance(await anext(transport.messages()), Hello)
            else:
                await happen(lambda: len(agent.said) == 1)
            os.kill(os.getpid(), number)
            assert await agent.end() == exit_code
            assert agent.said[1:] == [f"{number.name} came while this agent had no workers: it ends."]
            await happen(lambda: not launcher.roster.hosts)


@in_loop
async def test_an_agent_with_an_expired_token_does_not_wait_without_a_launcher(tmp_path: Path) -> None:
    path = tmp_path / "job.token"
    create_files(path, lifetime_seconds=0.0)
    async with started(Endpoint(LOOPBACK, 1), path) as agent, asyncio.timeout(30):
        with pytest.raises(LaunchError, match=r"nothing listens at .*, and the token file '.*' expired at ") as caught:
            await agent.end()
    assert caught.value.exit_code == CANNOT_LAUNCH
    assert agent.said == []


def test_a_silent_name_server_does_not_delay_the_end_of_an_agent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, released, outlasted = threading.Event(), threading.Event(), []

    def be_silent(*_: object, **__: object) -> list[object]:
        asked.set()
        outlasted.append(released.wait(60))
        return []

    @in_loop
    async def run() -> None:
        path = tmp_path / "job.token"
        create_files(path)
        async with started(Endpoint("launcher.invalid", 1), path) as agent:
            monkeypatch.setattr(socket, "getaddrinfo", be_silent)
            await happen(asked.is_set)
            os.kill(os.getpid(), signal.SIGTERM)
            assert await agent.end() == MAY_BE_STARTED_AGAIN

    run()
    assert outlasted == []  # it still looks the name up
    released.set()


@in_loop
async def test_an_agent_gives_up_when_no_job_is_there_for_too_long(tmp_path: Path) -> None:
    said: list[str] = []
    application = JoinOptions(Endpoint(LOOPBACK, 1), tmp_path / "job.token", "a", 1, limit_seconds=0.01)
    async with asyncio.timeout(30):
        assert await JoiningAgent(application, said.append).run() == MAY_BE_STARTED_AGAIN
    assert said[-1] == "no job was there for 0.01 s (--join-timeout): start this agent again later."


@in_loop
async def test_an_agent_gives_up_when_a_launcher_does_not_answer_for_too_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that is stopped: the kernel accepts connections for it."""

    async def be_silent(*_: object) -> AgentAdmitted:
        await asyncio.Event().wait()
        raise AssertionError("it is never set")

    monkeypatch.setattr(Roster, "receive", be_silent)
    monkeypatch.setattr(joining, "_ANSWER_SECONDS", 0.1)
    said: list[str] = []
    path = tmp_path / "job.token"
    async with opened(path) as launcher, asyncio.timeout(30):
        application = JoinOptions(launcher.place, path, "a", 1, limit_seconds=1.0)
        assert await JoiningAgent(application, said.append).run() == MAY_BE_STARTED_AGAIN
    assert said == [
        f"waiting for the answer of hvdrun at {launcher.place}: another agent may have the name 'a'.",
        f"waiting for hvdrun at {launcher.place} (no answer).",
        "no job was there for 1 s (--join-timeout): start this agent again later.",
    ]


@in_loop
async def test_an_agent_that_has_gone_is_closed_in_python_3_11_2_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Debian 12 has it: what `abort` does there fails after a `close` that comes later than the connection's end."""
    abort = _SSLProtocolTransport.abort

    def abort_as_there(transport: _SSLProtocolTransport) -> None:
        assert transport._ssl_protocol is not None, "AttributeError"
        abort(transport)

    monkeypatch.setattr(_SSLProtocolTransport, "abort", abort_as_there)
    path = tmp_path / "job.token"
    async with opened(path) as launcher, started(launcher.place, path) as agent:
        await launcher.roster.await_change(())
        transport = take(launcher)
        await transport.open()
        transport.send(Release())
        assert await agent.end() == 0
        await transport.wait()
        await transport.close()
