"""Agents that come by themselves, at a launcher's listener: real connections, certificates and files."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from hvdrun.errors import LaunchError
from hvdrun.joining import joining_agent as agent_module
from hvdrun.joining import listener as listener_module
from hvdrun.joining.channel import Channel, dial, make_client_context
from hvdrun.joining.joining_agent import JoiningAgent, JoinOptions, JoinRefusedError, WrongLauncherError
from hvdrun.joining.listener import JoinListener
from hvdrun.joining.roster import JoinedTransport, Roster
from hvdrun.joining.token import Keys, create_files, find_expiry
from hvdrun.processes.background import BackgroundTasks
from hvdrun.version import __version__
from rendezvous.core.model import LOOPBACK, Endpoint, Host
from rendezvous.server import authority as authority_module
from rendezvous.server.file_limit import count_connections
from rendezvous.wire import codec
from rendezvous.wire.orders import Admission, AgentAdmitted, AgentJoin, Hello, Release
from tests.ports import reserve_port
from tests.waiting import happen, in_loop

PATIENCE_SECONDS = 60.0


@dataclass
class Launcher:
    """A launcher's listener, and the agents that came."""

    keys: Keys
    roster: Roster
    place: Endpoint
    received: list[AgentJoin]


@dataclass
class Agent:
    """One agent, and what it has said."""

    said: list[str] = field(default_factory=list)
    running: asyncio.Task[int] | None = None

    @property
    def ended(self) -> bool:
        """Whether the agent has ended."""
        return self.running is not None and self.running.done()

    async def end(self) -> int:
        """Wait for the agent's end, and return its exit code."""
        assert self.running is not None
        return await self.running


@asynccontextmanager
async def opened(
    path: Path, *, keys: Keys | None = None, port: int = 0, limit_seconds: float = 60.0
) -> AsyncIterator[Launcher]:
    """Listen; the token is in the file at `path`."""
    keys = keys or create_files(path)
    tasks = BackgroundTasks()
    roster = Roster(0.1, tasks, proof_seconds=0.1, margin_seconds=0.2)
    received: list[AgentJoin] = []

    async def receive(join: AgentJoin, channel: Channel) -> AgentAdmitted:
        received.append(join)
        return await roster.receive(join, channel)

    listener = JoinListener(keys.token, keys.authority.issue_server(), receive, tasks, limit_seconds=limit_seconds)
    try:
        async with tasks:
            yield Launcher(keys, roster, Endpoint(LOOPBACK, await listener.open(LOOPBACK, port)), received)
            await roster.release()
    finally:
        listener.close()


@asynccontextmanager
async def started(place: Endpoint, path: Path, host: str = "a", slots: int = 2) -> AsyncIterator[Agent]:
    """An agent that wants to join the launcher at this place."""
    agent = Agent()
    running = asyncio.create_task(JoiningAgent(JoinOptions(place, path, host, slots), agent.said.append).run())
    agent.running = running
    try:
        yield agent
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def take(launcher: Launcher, host: str = "a") -> JoinedTransport:
    """The launcher's way to an agent; it is not open."""
    return JoinedTransport(host, launcher.roster, PATIENCE_SECONDS)


@in_loop
async def test_an_agent_joins_serves_and_is_released(tmp_path: Path) -> None:
    path = tmp_path / "job.token"
    async with opened(path) as launcher, started(launcher.place, path) as agent:
        assert await launcher.roster.await_change(()) == (Host("a", 2),)
        transport = take(launcher)
        await transport.open()
        messages = transport.messages()
        assert isinstance(await anext(messages), Hello)
        transport.send(Release())
        assert [message async for message in messages] == []
        assert await transport.wait() == "the connection of its agent ended; see what the agent printed there"
        assert await agent.end() == 0
        assert agent.said == [
            f"joined the job at {launcher.place} as a with 2 slots.",
            "the job has all its hosts, or has ended: this agent is not needed.",
        ]
        assert launcher.roster.hosts == ()
        with pytest.raises(LaunchError, match="the agent of the host 'a' has gone: start it again there"):
            await take(launcher).open()


def change_secret(keys: Keys) -> Keys:
    return replace(keys, token=replace(keys.token, secret=b"another"))


def let_run_out(keys: Keys) -> Keys:
    return replace(keys, token=replace(keys.token, expires=find_expiry(0.0)))


@pytest.mark.parametrize(
    ("change", "version", "host", "sentence"),
    [
        (change_secret, "", "a", "its token has another secret: give it the token file that this job has written"),
        (let_run_out, "", "a", r"its token expired at .*: start the job with a new one"),
        (None, "9.9", "a", r"it is hvdrun 9\.9, and the job runs with hvdrun .*: install the same on all hosts"),
        (None, "", "a b", r"'a b' with 2 slots is no host: give it a name of letters, digits, dots and dashes"),
    ],
)
def test_a_refused_agent_gets_the_reason(
    change: Callable[[Keys], Keys] | None,
    version: str,
    host: str,
    *,
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if version:
        monkeypatch.setattr(agent_module, "__version__", version)

    @in_loop
    async def run() -> None:
        path = tmp_path / "job.token"
        keys = create_files(path)
        async with opened(path, keys=keys if change is None else change(keys)) as launcher:
            async with started(launcher.place, path, host) as agent:
                with pytest.raises(JoinRefusedError, match=f"the job at .* refuses this agent: {sentence}") as caught:
                    await agent.end()
            assert launcher.roster.hosts == ()
        assert caught.value.exit_code == 125

    run()


@in_loop
async def test_an_agent_sends_its_secret_only_to_the_launcher_of_its_token(tmp_path: Path) -> None:
    path = tmp_path / "job.token"
    keys = create_files(path)
    another = create_files(tmp_path / "other.token")
    imitated = Keys(replace(another.token, secret=keys.token.secret), another.authority, path)
    async with opened(path, keys=imitated) as launcher, started(launcher.place, path) as agent:
        with pytest.raises(WrongLauncherError, match=r"is not the one that the token file '.*' was created for"):
            await agent.end()
        assert launcher.received == []


@pytest.mark.parametrize(
    ("years", "reason"), [((2001, 2002), "certificate has expired"), ((2998, 2999), "certificate is not yet valid")]
)
def test_an_agent_whose_clock_does_not_fit_a_token_of_an_older_hvdrun_names_the_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, years: tuple[int, int], reason: str
) -> None:
    begin, end = (datetime(year, 1, 1, tzinfo=UTC) for year in years)
    monkeypatch.setattr(authority_module, "_ALWAYS", (begin, end))

    @in_loop
    async def run() -> None:
        path = tmp_path / "job.token"
        async with opened(path) as launcher, started(launcher.place, path) as agent:
            with pytest.raises(WrongLauncherError, match=rf"\({reason}[^;]*; is a clock wrong here or there\?\): give"):
                await agent.end()

    run()


@in_loop
async def test_an_agent_waits_for_the_token_the_launcher_and_the_job(tmp_path: Path) -> None:
    path = tmp_path / "job.token"
    with reserve_port() as port:
        place = Endpoint(LOOPBACK, port)
        async with started(place, path) as agent:
            await happen(lambda: agent.said == [f"waiting for the token file {str(path)!r}, which does not exist yet."])
            keys = create_files(path)
            refused = f"waiting for hvdrun at {place} (connection refused)."
            await happen(lambda: agent.said[1:] == [refused])
            async with opened(path, keys=keys, port=port) as launcher:
                await launcher.roster.await_change(())
                transport = take(launcher)
                await transport.open()
                await transport.kill()  # a launcher that is gone, before its job has begun
                await launcher.roster.await_change((Host("a", 2),))
                assert await launcher.roster.await_change(()) == (Host("a", 2),)
                assert not agent.ended
            assert await agent.end() == 0


@in_loop
async def test_an_agent_reaches_the_rendezvous_through_the_launcher(tmp_path: Path) -> None:
    path = tmp_path / "job.token"

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            writer.write(await reader.readexactly(5) + b" heard")
            await reader.read()
        finally:
            writer.transport.abort()

    async with await asyncio.start_server(answer, LOOPBACK, 0) as inside, opened(path) as launcher:
        async with started(launcher.place, path):
            await launcher.roster.await_change(())
            transport = take(launcher)
            await transport.open()
            port = await transport.tunnel(inside.sockets[0].getsockname()[1])
            reader, writer = await asyncio.open_connection(LOOPBACK, port)
            writer.write(b"hello")
            assert await reader.readexactly(11) == b"hello heard"
            writer.close()
            path.unlink()  # used up: the agent has it
            reader, writer = await asyncio.open_connection(LOOPBACK, port)
            writer.write(b"later")
            assert await reader.readexactly(11) == b"later heard"
            writer.close()
        await happen(lambda: not launcher.roster.hosts)
        with pytest.raises(LaunchError, match="the agent of the host 'a' has gone"):
            await transport.tunnel(1)


@in_loop
async def test_the_agents_of_a_former_launcher_have_their_names_and_their_way(tmp_path: Path) -> None:
    path, said = tmp_path / "job.token", list[bytes]()

    async def note(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        said.append(await reader.read(1))
        writer.transport.abort()

    async with await asyncio.start_server(note, LOOPBACK, 0) as inside, opened(path) as launcher:
        roster = launcher.roster
        roster.restore((Host("a", 2), Host("b", 1)), {"a": 4711}, inside.sockets[0].getsockname()[1])
        assert roster.restored == roster.hosts == (Host("a", 2), Host("b", 1))
        for host, admission in (("a", Admission.ACCEPTED), ("b", Admission.REFUSED)):
            channel = await dial(LOOPBACK, launcher.place.port, make_client_context(launcher.keys.token.authority))
            call = AgentJoin(__version__, launcher.keys.token.secret, host, 0, 0)
            channel.transport.write(codec.encode_frame(call))
            assert codec.decode_frame(AgentAdmitted, await channel.read_frame()).admission is admission
            channel.transport.write(b"x")
            await channel.closed if admission is Admission.REFUSED else await happen(lambda: said == [b"x"])
        with pytest.raises(LaunchError, match="has gone"):
            roster.take("a", PATIENCE_SECONDS)
        async with started(launcher.place, path, "b") as refused:
            with pytest.raises(JoinRefusedError, match="the host 'b' has an agent, which answers"):
                await refused.end()
        roster._proof_seconds = 100.0
        async with started(launcher.place, path, "b", slots=3):
            await happen(lambda: len(launcher.received) == 4)
            roster.drop("b")  # the job has lost it
            await happen(lambda: roster.hosts == (Host("a", 2), Host("b", 3)))


@pytest.mark.parametrize("is_lasting", [False, True])
@in_loop
async def test_an_agent_that_serves_a_lasting_job_stays_until_the_job_has_lost_it(
    tmp_path: Path, *, is_lasting: bool
) -> None:
    path = tmp_path / "job.token"
    async with opened(path) as launcher:
        roster = launcher.roster
        roster._is_lasting = is_lasting
        async with started(launcher.place, path):
            await roster.await_change(())
            roster.drop("a")  # not yet: its connection is its life
            transport = take(launcher)
            await transport.open()
            roster.note_begun("a")
            await transport.kill()
            await transport.wait()
            await happen(lambda: roster.hosts == ((Host("a", 2),) if is_lasting else ()))
            roster.drop("a")
            assert "a" not in {host.name for host in roster.hosts} or not is_lasting


@in_loop
async def test_an_agent_that_is_not_needed_exits_with_0(tmp_path: Path) -> None:
    path = tmp_path / "job.token"
    async with opened(path) as launcher, started(launcher.place, path) as early:
        await launcher.roster.await_change(())
        launcher.roster.stop_admitting("enough.")
        await launcher.roster.release()
        async with started(launcher.place, path, "b") as late:
            assert (await early.end(), await late.end()) == (0, 0)
            assert late.said == ["enough."]


@pytest.mark.parametrize("is_used", [False, True])
def test_a_name_is_taken_from_an_agent_that_is_gone_and_from_no_other(
    *, is_used: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_module, "_ANSWER_SECONDS", 0.0)

    @in_loop
    async def run() -> None:
        path = tmp_path / "job.token"
        async with opened(path) as launcher, started(launcher.place, path) as former:
            await launcher.roster.await_change(())
            transport = take(launcher)
            if is_used:
                await transport.open()
            async with started(launcher.place, path) as second:
                with pytest.raises(JoinRefusedError, match="the host 'a' has an agent, which answers: end that one"):
                    await second.end()
            where = f"hvdrun at {launcher.place}: another agent may have the name 'a'."
            assert not former.ended
            launcher.roster._proof_seconds = 100.0
            async with started(launcher.place, path, slots=3) as third:
                await happen(lambda: third.said == [f"waiting for the answer of {where}"])
                assert launcher.roster.hosts == (Host("a", 2),)
                if not is_used:
                    await transport.open()
                await transport.kill()  # what a job does with an agent that its lease has given up
                await happen(lambda: launcher.roster.hosts == (Host("a", 3),))
                assert not third.ended

    run()


@in_loop
async def test_a_stranger_gets_a_connection_for_a_short_time_and_no_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    async with opened(tmp_path / "job.token", limit_seconds=0.2) as launcher:
        for words in (b"", b"GET / HTTP/1.1\r\n\r\n", bytes(100)):
            reader, writer = await asyncio.open_connection(launcher.place.address, launcher.place.port)
            writer.write(words)
            await reader.read()
            writer.close()
        assert launcher.received == []
    assert [record.getMessage() for record in caplog.records if record.levelno > logging.DEBUG] == []
    assert capfd.readouterr() == ("", "")


def test_strangers_leave_files_for_a_hundred_agents_where_few_may_be_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda _: (1024, 1024))
    assert 2 * count_connections() + listener_module.count_strangers() + 100 + 50 < 1024  # and 50 of the launcher's own


@in_loop
async def test_many_silent_strangers_keep_no_agent_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener_module, "MAX_STRANGERS", 2)
    path = tmp_path / "job.token"
    async with opened(path) as launcher:
        strangers = [await asyncio.open_connection(launcher.place.address, launcher.place.port) for _ in range(3)]
        async with started(launcher.place, path):
            await launcher.roster.await_change(())
        for _, writer in strangers:
            writer.close()
