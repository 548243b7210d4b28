"""The way to an agent over a real OpenSSH server on this machine's loopback.

Long because each way in which a start or a connection fails has its test here.
"""

import asyncio
import resource
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import paramiko
import psutil
import pytest

from hvdrun import __version__
from hvdrun.transport.ssh.failures import (
    AgentStartError,
    HvdrunMissingError,
    PythonMissingError,
    PythonTooOldError,
    RemotePrefixError,
    TunnelRefusedError,
)
from hvdrun.transport.ssh.start import RemoteAgent
from hvdrun.transport.ssh.transport import Limits, SshTransport
from rendezvous.core.effects import Terminate
from rendezvous.orders import Hello, Output, Release
from tests.hvdrun.transport.ssh.agents import (
    LAUNCH,
    WORKER,
    find_session,
    list_names,
    make_begin,
    opened,
    read_line,
    write_agent,
    write_silent,
)
from tests.hvdrun.transport.ssh.servers import Home, SshServer, needs_sshd

pytestmark = needs_sshd


def test_orders_go_there_and_output_comes_back(home: Home, server: SshServer, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(home, server) as transport:
            tellings = transport.tellings()
            hello = await anext(tellings)
            assert isinstance(hello, Hello)
            assert hello.version == __version__
            transport.send(make_begin(tmp_path, "echo $HOROVOD_HOSTNAME $HVD_SLOT; exec sleep 600"))
            transport.send(LAUNCH)
            assert await read_line(tellings) == b"a a:0\n"
            transport.send(Terminate(WORKER, 0.0, "the test wants it"))
            transport.send(Release())
            assert [telling async for telling in tellings if isinstance(telling, Output)] == []
            assert await transport.wait() == "its agent ended with exit code 0"
            transport.send(Release())  # is lost

    asyncio.run(scenario())


def test_the_end_of_the_orders_ends_the_agent_and_its_workers(home: Home, server: SshServer, tmp_path: Path) -> None:
    async def scenario() -> int:
        async with opened(home, server) as transport:
            transport.send(make_begin(tmp_path, "trap '' TERM; echo $$; sleep 600; true"))
            transport.send(LAUNCH)
            return int(await read_line(transport.tellings()))

    assert not Path(f"/proc/{asyncio.run(scenario())}").exists()


def test_an_agent_that_is_given_up_ends_with_its_connection(home: Home, server: SshServer, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(home, server) as transport:
            tellings = transport.tellings()
            transport.send(make_begin(tmp_path, "echo up; exec sleep 600"))
            transport.send(LAUNCH)
            await read_line(tellings)
            agent = find_session(server).children(recursive=True)
            await transport.abandon()
            assert [telling async for telling in tellings if isinstance(telling, Output)] == []
            _, alive = psutil.wait_procs(agent, timeout=20)
            assert not alive

    asyncio.run(scenario())


def test_nothing_of_an_order_or_of_the_start_is_on_a_command_line(
    home: Home, server: SshServer, tmp_path: Path
) -> None:
    async def scenario() -> None:
        agent = RemoteAgent(sys.executable, "TOKEN=hidden-in-the-prefix")
        async with opened(home, server, agent) as transport:
            transport.send(make_begin(tmp_path, "echo up; exec sleep 600"))
            transport.send(LAUNCH)
            await read_line(transport.tellings())
            processes = [find_session(server), *find_session(server).children(recursive=True)]
            lines = "\n".join(" ".join(process.cmdline()) for process in processes)
            assert "hvdrun.agent" in lines
            assert "hidden-in-the-prefix" not in lines
            assert "PRIVATE KEY" not in lines

    asyncio.run(scenario())


def test_what_a_prefix_prints_does_not_disturb(home: Home, server: SshServer, tmp_path: Path) -> None:
    (tmp_path / "env.sh").write_text("export COLOUR=blue\ncat\n", encoding="utf-8")  # cat must not eat the orders
    prefix = f"# it's loud!\nsource {tmp_path}/env.sh\nprintf 'loaded \\0 \"x\" \\1'; seq 20000; echo oops >&2 # so"

    async def scenario() -> None:
        async with opened(home, server, RemoteAgent(sys.executable, prefix)) as transport:
            tellings = transport.tellings()
            assert isinstance(await anext(tellings), Hello)
            transport.send(make_begin(tmp_path, "true"))
            transport.send(Release())
            assert [telling async for telling in tellings if isinstance(telling, Output)] == []
            assert await transport.wait() == "its agent ended with exit code 0"

    asyncio.run(scenario())


def test_a_prefix_prepares_the_agent_s_environment(home: Home, server: SshServer, tmp_path: Path) -> None:
    agent = write_agent(tmp_path, "sys.stderr.write(os.environ['COLOUR']); out.write(b'x')")

    async def scenario() -> None:
        async with opened(home, server, RemoteAgent(agent.python, "export COLOUR=blue")) as transport:
            assert await transport.wait() == "its agent ended with exit code 0: blue"

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("prefix", "words"),
    [
        ("source /no/such/env.sh", "with exit code 1 .*No such file"),
        ("echo loading; echo why >&2; (exit 7)", r"with exit code 7 \(why\)"),
        ("false", "with exit code 1: correct it"),
    ],
)
def test_a_prefix_that_fails_is_told(home: Home, server: SshServer, prefix: str, words: str) -> None:
    async def scenario() -> None:
        with pytest.raises(RemotePrefixError, match=words):
            async with opened(home, server, RemoteAgent(sys.executable, prefix)):
                pass

    asyncio.run(scenario())


def test_each_reason_why_an_agent_does_not_start_has_its_error(home: Home, server: SshServer, tmp_path: Path) -> None:
    bare = tmp_path / "bare" / "python"
    bare.parent.mkdir()
    bare.write_text(f'#!/bin/sh\nexec {sys._base_executable} -I -S "$@"\n', encoding="utf-8")  # type: ignore[attr-defined]  # CPython has it
    bare.chmod(0o755)
    old = tmp_path / "old"
    old.write_text("#!/bin/sh\necho 'Unknown option: -P' >&2\nexit 2\n", encoding="utf-8")
    old.chmod(0o755)
    locked = tmp_path / "locked"
    locked.touch()
    loud = tmp_path / "loud"
    loud.write_text("#!/bin/sh\necho first >&2; echo last >&2; exit 3\n", encoding="utf-8")
    loud.chmod(0o755)
    cases = [
        ("/no/such python", PythonMissingError, "no Python '/no/such python'"),
        (str(locked), PythonMissingError, "cannot be executed"),
        (str(bare), HvdrunMissingError, f"-m pip install hvdrun=={__version__}"),
        (str(old), PythonTooOldError, "older than 3.11"),
        (str(loud), AgentStartError, r"did not start \(exit code 3\): last"),
    ]

    async def scenario() -> None:
        for python, error, words in cases:
            with pytest.raises(error, match=words):
                async with opened(home, server, RemoteAgent(python)):
                    pass

    asyncio.run(scenario())


def test_a_start_that_takes_too_long_is_ended(home: Home, server: SshServer, tmp_path: Path) -> None:
    async def scenario() -> None:
        agent = RemoteAgent(str(write_silent(tmp_path)))
        with pytest.raises(AgentStartError, match=r"no sign of it within 2 s\): waiting"):
            async with opened(home, server, agent, Limits(start_seconds=2.0)):
                pass
        assert server.process.poll() is None

    asyncio.run(scenario())


def test_a_reader_that_pauses_holds_the_host_back(home: Home, server: SshServer, tmp_path: Path) -> None:
    size, count = 100_000, 1000  # 100 MB
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

    async def scenario() -> None:
        async with opened(home, server, agent) as transport:
            assert transport._stream is not None
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            stalled_at = await settle(lambda: (tmp_path / "written").stat().st_size)
            assert 0 < stalled_at * size < 8 * 1024 * 1024
            received = len(transport._first)
            while chunk := await transport._stream.read():
                received += len(chunk)
            assert received == count * (size + 4)
            assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 32 * 1024  # kilobytes

    asyncio.run(scenario())


async def settle(measure: Callable[[], int]) -> int:
    """How much has been written when no more is."""
    looks = [-1]
    while len(looks) < 10 or len(set(looks[-10:])) > 1:
        await asyncio.sleep(0.02)  # no event tells that nothing happens
        looks.append(measure() or -len(looks))
    return looks[-1]


def test_an_order_is_not_waited_for_when_the_agent_does_not_read(home: Home, server: SshServer, tmp_path: Path) -> None:
    agent = write_agent(tmp_path, "out.write(b'x'); out.flush(); time.sleep(600)")

    async def scenario() -> None:
        async with opened(home, server, agent) as transport:
            assert transport._stream is not None
            loop = asyncio.get_running_loop()
            started = loop.time()
            for _ in range(64):
                transport._stream.write(bytes(256 * 1024))
            assert loop.time() - started < 1
            (process,) = find_session(server).children(recursive=True)
            find_session(server).kill()
            assert await transport.wait() == "its ssh connection was lost"
            process.kill()

    asyncio.run(scenario())


def test_a_connection_found_lost_by_sending_ends_all_that_it_carries(
    home: Home, server: SshServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = write_agent(tmp_path, "out.write(b'x'); out.flush(); sys.stdin.read()")

    def fail(*_: object) -> None:
        raise EOFError

    async def scenario() -> None:
        async with opened(home, server, agent) as transport:
            assert transport._stream is not None
            monkeypatch.setattr(paramiko.Transport, "_send_user_message", fail)
            transport._stream.write(b"x")
            await transport._stream.wait_closed()

    asyncio.run(scenario())


def test_a_lost_connection_ends_what_is_told(home: Home, server: SshServer, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(home, server) as transport:
            tellings = transport.tellings()
            transport.send(make_begin(tmp_path, "echo up; exec sleep 600"))
            transport.send(LAUNCH)
            assert await read_line(tellings) == b"up\n"
            session = find_session(server)
            agents = session.children(recursive=True)
            session.send_signal(signal.SIGKILL)
            assert [telling async for telling in tellings if isinstance(telling, Output)] == []
            assert (await transport.wait()).startswith("its ssh connection was lost")
            await asyncio.to_thread(psutil.wait_procs, agents, 10)
            assert not [agent for agent in agents if agent.is_running()]

    asyncio.run(scenario())


def test_an_agent_that_was_killed_is_told(home: Home, server: SshServer, tmp_path: Path) -> None:
    agent = write_agent(tmp_path, "out.write(b'x'); out.flush(); os.kill(os.getpid(), 9)")

    async def scenario() -> None:
        async with opened(home, server, agent) as transport:
            assert await transport.wait() == "its agent was killed by a signal"

    asyncio.run(scenario())


def test_an_agent_that_does_not_end_is_left_with_its_connection(
    home: Home, server: SshServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = write_agent(tmp_path, "out.write(b'x'); out.flush(); time.sleep(600)")
    monkeypatch.setattr("hvdrun.transport.ssh.transport._CLOSE_SECONDS", 0.2)

    async def scenario() -> None:
        async with opened(home, server, agent) as transport:
            (process,) = find_session(server).children(recursive=True)[-1:]
        assert (await transport.wait()) != ""
        process.kill()

    asyncio.run(scenario())


def test_a_transport_that_was_never_opened_has_nothing_to_close(home: Home) -> None:
    async def scenario() -> None:
        transport = SshTransport(home.target(), RemoteAgent(sys.executable))
        transport.send(Release())
        assert await transport.wait() == "it was never started"
        assert [telling async for telling in transport.tellings()] == []
        with pytest.raises(TunnelRefusedError):
            await transport.tunnel(1)
        await transport.close()

    asyncio.run(scenario())


def test_an_open_that_is_given_up_leaves_nothing(home: Home, server: SshServer, tmp_path: Path) -> None:
    async def scenario() -> None:
        transport = SshTransport(home.target(server), RemoteAgent(str(write_silent(tmp_path))))
        opening = asyncio.create_task(transport.open())
        while "cat" not in list_names(server):  # noqa: ASYNC110 - no event tells of a process on the other side
            await asyncio.sleep(0.01)
        opening.cancel()
        await asyncio.gather(opening, return_exceptions=True)
        await transport.close()
        await asyncio.to_thread(psutil.wait_procs, psutil.Process(server.process.pid).children(), 10)
        assert psutil.Process(server.process.pid).children() == []

    asyncio.run(scenario())
