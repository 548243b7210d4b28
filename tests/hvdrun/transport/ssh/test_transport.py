"""The way to an agent over a real OpenSSH server on this machine's loopback."""

import asyncio
import contextlib
import errno
import os
import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from hvdrun.transport.ssh import transport as transport_module
from hvdrun.transport.ssh.ssh_errors import SshError, TunnelRefusedError
from hvdrun.transport.start import RemoteAgent
from hvdrun.transport.transport_errors import AgentStartError, PythonMissingError, RemotePrefixError
from rendezvous.wire.orders import Hello, Release
from tests.hvdrun.agent.sleepers import is_alive
from tests.hvdrun.transport.ssh.agents import find_session, make_transport, opened, write_agent, write_silent
from tests.hvdrun.transport.ssh.servers import Home, SshServer, needs_sshd
from tests.waiting import LIMIT_SECONDS, happen, in_loop

pytestmark = needs_sshd


@in_loop
async def test_a_command_line_has_no_part_of_the_start(home: Home, server: SshServer) -> None:
    async with opened(home, server, RemoteAgent(sys.executable, "TOKEN=hidden-in-the-prefix")) as transport:
        assert isinstance(await anext(transport.messages()), Hello)
        processes = [find_session(server), *find_session(server).children(recursive=True)]
        lines = "\n".join(" ".join(process.cmdline()) for process in processes)
        assert "hvdrun.agent" in lines
        assert "hidden-in-the-prefix" not in lines


@in_loop
async def test_output_of_a_prefix_does_not_disturb_the_messages(home: Home, server: SshServer, tmp_path: Path) -> None:
    (tmp_path / "env.sh").write_text("export COLOUR=blue\ncat\n", encoding="utf-8")  # cat must not eat the orders
    prefix = f"# it's loud!\nsource {tmp_path}/env.sh\nprintf 'loaded \\0 \"x\" \\1'; seq 20000; echo oops >&2 # so"
    async with opened(home, server, RemoteAgent(sys.executable, prefix)) as transport:
        assert isinstance(await anext(transport.messages()), Hello)
        transport.send(Release())
        assert await transport.wait() == "its agent ended with exit code 0"


@pytest.mark.parametrize(
    ("agent", "error", "words"),
    [
        (RemoteAgent("/no/such python"), PythonMissingError, "no Python '/no/such python'"),
        (RemoteAgent("/bin/true"), AgentStartError, r"did not start \(exit code 0\)"),
        (RemoteAgent(sys.executable, "echo loading; echo why >&2; (exit 7)"), RemotePrefixError, r"code 7 \(why\)"),
    ],
)
@in_loop
async def test_an_agents_exit_code_and_words_show_why_it_does_not_start(
    home: Home, server: SshServer, agent: RemoteAgent, error: type[SshError], words: str
) -> None:
    with pytest.raises(error, match=words):
        async with opened(home, server, agent):
            pass


@in_loop
async def test_a_start_that_takes_too_long_is_ended(home: Home, server: SshServer, tmp_path: Path) -> None:
    with pytest.raises(AgentStartError, match=r"no sign of it within 3 s\): waiting"):
        async with opened(home, server, write_silent(tmp_path), start_seconds=3.0):
            pass
    assert server.process.poll() is None


@in_loop
async def test_a_reader_that_pauses_pauses_the_agent(home: Home, server: SshServer, tmp_path: Path) -> None:
    size, count = 100_000, 200  # 20 MB
    agent = write_agent(
        tmp_path,
        f"""
        written = open({str(tmp_path / "written")!r}, 'w')
        for number in range({count}):
            out.write(struct.pack('>I', {size}) + bytes({size}))
            out.flush()
            written.write('.')
            written.flush()
        """,
    )
    async with opened(home, server, agent) as transport:
        stalled_at = await settle(lambda: (tmp_path / "written").stat().st_size)
        assert 0 < stalled_at * size < 8 * 1024 * 1024
        received = len(transport._first)
        while chunk := await transport._read():
            received += len(chunk)
        assert received == count * (size + 4)


async def settle(measure: Callable[[], int]) -> int:
    """How much has been written when no more is."""
    looks = [-1]
    while len(looks) < 10 or len(set(looks[-10:])) > 1:
        await asyncio.sleep(0.02)  # no event shows that nothing happens
        looks.append(measure() or -len(looks))
    return looks[-1]


STAYS = "out.write(b'x'); out.flush(); time.sleep(600)"


@in_loop
async def test_an_order_is_not_waited_for_when_the_agent_does_not_read(
    home: Home, server: SshServer, tmp_path: Path
) -> None:
    async with opened(home, server, write_agent(tmp_path, STAYS)) as transport:
        for _ in range(64):
            transport._write(bytes(256 * 1024))  # would never return
        session = find_session(server)
        (agent,) = session.children(recursive=True)[-1:]
        session.kill()
        assert await transport.wait() == "its ssh connection was lost"
    agent.kill()


@in_loop
async def test_a_lost_connection_ends_the_messages_and_the_agent(home: Home, server: SshServer) -> None:
    async with opened(home, server) as transport:
        messages = transport.messages()
        assert isinstance(await anext(messages), Hello)
        session = find_session(server)
        agents = session.children(recursive=True)
        session.kill()
        assert [message async for message in messages] == []
        assert (await transport.wait()).startswith("its ssh connection was lost")
        await happen(lambda: not any(is_alive(agent.pid) for agent in agents), "the end of the agent")


@in_loop
async def test_an_agent_that_does_not_end_is_left_with_its_connection(
    home: Home, server: SshServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hvdrun.transport.ssh.transport.CLOSE_SECONDS", 0.2)
    async with opened(home, server, write_agent(tmp_path, STAYS)) as transport:
        agent = find_session(server).children(recursive=True)[-1]
    assert await transport.wait() == "its agent was killed by a signal"  # for all that is known of it here
    assert is_alive(agent.pid)
    agent.kill()
    await happen(lambda: server.sessions() == [], "the end of the connection")


@in_loop
async def test_an_open_without_a_free_descriptor_is_one_sentence(
    home: Home, server: SshServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(socket, "socketpair", fail)
    with pytest.raises(SshError, match=r"this machine cannot open an ssh connection to .*: Too many open files"):
        async with opened(home, server):
            pass
    await happen(lambda: not server.sessions(), "the end of the connection")


@in_loop
async def test_a_transport_that_was_never_opened_has_no_tunnel(home: Home) -> None:
    with pytest.raises(TunnelRefusedError):
        await make_transport(home.target()).tunnel(1)


@in_loop
async def test_a_cancelled_open_ends_the_remote_session(home: Home, server: SshServer, tmp_path: Path) -> None:
    transport = make_transport(home.target(server), write_silent(tmp_path))
    opening = asyncio.create_task(transport.open())
    await happen(lambda: "cat" in list_names(server), "the start on the other side")
    opening.cancel()
    await asyncio.gather(opening, return_exceptions=True)
    await transport.close()
    await happen(lambda: server.sessions() == [], "the end of the connection")


@in_loop
async def test_a_close_that_is_cancelled_closes_everything(
    home: Home, server: SshServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    begins, may_end = threading.Event(), threading.Event()
    disconnect = transport_module._disconnect

    def disconnect_slowly(*ends: Any) -> None:
        begins.set()
        assert may_end.wait(LIMIT_SECONDS)
        disconnect(*ends)

    monkeypatch.setattr(transport_module, "_disconnect", disconnect_slowly)
    async with opened(home, server) as transport:
        writer = transport._writer
        assert writer is not None
        closing = asyncio.create_task(transport.close())
        await happen(begins.is_set, "the disconnection")
        closing.cancel()
        await asyncio.gather(closing, return_exceptions=True)
        assert closing.cancelled()
        assert writer.is_closing()
        may_end.set()
    await happen(lambda: server.sessions() == [], "the end of the connection")


def list_names(server: SshServer) -> list[str]:
    """The names of the server's processes."""
    names = []
    for process in psutil.Process(server.process.pid).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            names.append(process.name())
    return names
