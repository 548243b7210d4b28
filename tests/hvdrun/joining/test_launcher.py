"""A job that waits for agents: which of them it takes, and faults of hvdrun's own."""

import asyncio
import socket
import threading
from pathlib import Path
from typing import cast

import pytest

import hvdrun.console
from hvdrun.joining import launcher
from hvdrun.joining.launcher import JoinedHosts
from hvdrun.joining.roster import Roster
from hvdrun.options.kinds import parse_endpoint
from hvdrun.processes.background import BackgroundTasks
from hvdrun.spec.jobspec import JobSpec
from hvdrun.spec.remote import Joining
from rendezvous.core.model import LOOPBACK, Endpoint, Host
from rendezvous.core.outcome import Outcome
from rendezvous.errors import ListenError
from tests.hvdrun.joining.test_description import read
from tests.hvdrun.joining.test_listener import started
from tests.waiting import LIMIT_SECONDS, happen, in_loop


class Console:
    """Keeps what a person would read."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def notice(self, sentence: str) -> None:
        """A line."""
        self.said.append(sentence)

    @property
    def place(self) -> Endpoint:
        """Where agents are waited for."""
        return parse_endpoint(self.said[0].split()[10])


async def wait(roster: Roster) -> Outcome:
    """A job that has begun, and does not end."""
    await asyncio.Event().wait()
    raise AssertionError(roster)


class Kept:
    """What a launcher leaves to the next one."""

    def __init__(self) -> None:
        self.joining: bytes | None = None
        self.ports: list[tuple[str, int]] = []

    def keep_joining(self, facts: bytes) -> None:
        """See `Keeper`."""
        self.joining = facts

    def reserve(self, address: str, number: int = 0) -> int:
        """See `Keeper`."""
        with socket.create_server((address, number)) as found:
            self.ports.append(found.getsockname())
        return self.ports[-1][1]


def receive(
    console: Console, folder: Path, *words: str, bind: str = LOOPBACK, keeper: Kept | None = None
) -> asyncio.Task[Outcome]:
    """Wait for agents; the token is in `folder`."""
    spec = read("-np", "1", "--wait-for-agents", "--bind", bind, "--token-file", str(folder / "token"), *words)
    assert isinstance(spec.remote.joining, Joining)
    return asyncio.create_task(
        launcher.run_with_agents(spec, spec.remote.joining, cast(hvdrun.console.Console, console), wait, keeper)
    )


@pytest.mark.parametrize("words", [(), ("--min-np", "1")], ids=["static", "elastic"])
@in_loop
async def test_a_fault_of_the_listener_ends_the_job(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault = ZeroDivisionError("of ours")

    async def fail(*_: object) -> None:
        raise fault

    monkeypatch.setattr(Roster, "receive", fail)
    console = Console()
    receiving = receive(console, tmp_path, *words)
    await happen(lambda: bool(console.said))
    async with started(console.place, tmp_path / "token"):
        with pytest.raises(ZeroDivisionError) as caught:
            await receiving
    assert caught.value is fault


@in_loop
async def test_the_next_launcher_listens_at_the_same_place_with_the_same_token(tmp_path: Path) -> None:
    console, later, kept = Console(), Console(), Kept()
    receiving = receive(console, tmp_path, bind="localhost:0", keeper=kept)
    await happen(lambda: bool(console.said))
    receiving.cancel()
    await asyncio.wait({receiving})
    (tmp_path / "token").rename(tmp_path / "copy")  # that of an agent; the launcher's own is used up
    receiving = receive(later, tmp_path, bind="localhost:0", keeper=kept)
    await happen(lambda: len(kept.ports) == 2)
    async with started(Endpoint(LOOPBACK, kept.ports[0][1]), tmp_path / "copy") as agent:
        await happen(lambda: any("joined the job" in each for each in agent.said))
        receiving.cancel()
        await asyncio.wait({receiving})
    assert kept.ports[0] == kept.ports[1]
    assert later.said == []


@in_loop
async def test_a_port_that_cannot_be_kept_is_named(tmp_path: Path) -> None:
    class Full(Kept):
        def reserve(self, address: str, number: int = 0) -> int:
            raise ListenError(f"{address}:{number}", "Address already in use")

    with pytest.raises(launcher.CannotListenError, match="Address already in use; name another place with --bind"):
        await receive(Console(), tmp_path, keeper=Full())


@pytest.mark.parametrize("name", ["node1", "localhost"], ids=["the place is chosen", "it listens"])
def test_a_silent_name_server_does_not_delay_the_end_of_the_launcher(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, released, outlasted = threading.Event(), threading.Event(), []

    def be_silent(*_: object, **__: object) -> list[object]:
        asked.set()
        outlasted.append(released.wait(10))
        raise socket.gaierror

    @in_loop
    async def run() -> None:
        with monkeypatch.context() as patch:
            patch.setattr(socket, "getaddrinfo", be_silent)
            receiving = receive(Console(), tmp_path, bind=name)
            await happen(asked.is_set)
            receiving.cancel()
            with pytest.raises(asyncio.CancelledError):
                await receiving

    run()
    assert outlasted == []  # it still looks the name up
    released.set()


class PlayedRoster(Roster):
    """Agents join and leave as the test says."""

    def __init__(self) -> None:
        super().__init__(5.0, BackgroundTasks())
        self.present: tuple[Host, ...] = ()
        self.refusal = ""
        self.kept: frozenset[str] = frozenset()

    @property
    def hosts(self) -> tuple[Host, ...]:
        """See `Roster`."""
        return self.present

    async def change(self, *present: Host) -> None:
        """From now on these hosts have an agent; the job hears of it."""
        self.present = present
        self._note_change()
        for _ in range(5):
            await asyncio.sleep(0)

    def stop_admitting(self, reason: str, exit_code: int | None = None) -> None:
        """See `Roster`."""
        super().stop_admitting(reason, exit_code)
        self.refusal = reason

    async def release(self, keep: frozenset[str] = frozenset()) -> None:
        """See `Roster`."""
        self.kept = keep


N1, N2, N10 = Host("n1", 2), Host("n2", 1), Host("n10", 4)


@in_loop
async def test_a_static_job_keeps_the_first_hosts_that_have_its_slots() -> None:
    roster, said, used = PlayedRoster(), list[str](), list[JobSpec]()
    spec = read("-np", "3", "--wait-for-agents")
    finding = asyncio.create_task(JoinedHosts(spec, roster, said.append).run(used.append))
    await roster.change()
    await roster.change(N10)
    await asyncio.wait_for(finding, LIMIT_SECONDS)
    assert [each.workers.hosts for each in used] == [(), (Host("n10", 3),)]
    assert used[-1].remote.hosts == roster.kept == {"n10"}
    assert roster.refusal == launcher.FULL
    assert said == ["agents: n10 (4 slots); 4 slots."]


@in_loop
async def test_a_static_job_begins_with_the_hosts_of_its_former_launcher() -> None:
    roster, said, used = PlayedRoster(), list[str](), list[JobSpec]()
    roster.present = roster.restored = (N1, N2)
    await JoinedHosts(read("-np", "3", "--wait-for-agents"), roster, said.append).run(used.append)
    assert [each.workers.hosts for each in used] == [(N1, N2)]
    assert (said, roster.refusal) == ([], launcher.FULL)


@in_loop
async def test_the_agents_of_a_static_job_are_reported_until_it_has_its_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher, "_PAUSE_SECONDS", 0)
    roster, said, used = PlayedRoster(), list[str](), list[JobSpec]()
    spec = read("-np", "3", "--wait-for-agents")
    finding = asyncio.create_task(JoinedHosts(spec, roster, said.append).run(used.append))
    for present in ((), (N2,), (), (N2,), (N2, N1)):
        await roster.change(*present)
    await asyncio.wait_for(finding, LIMIT_SECONDS)
    assert [each.workers.hosts for each in used] == [(), (N2,), (), (N2,), (N1, N2)]
    alone = "agents: n2 (1 slot); 1 of 3 slots."
    assert said == [alone, "agents: none; 0 of 3 slots.", alone, "agents: n1 (2 slots), n2 (1 slot); 3 slots."]


@in_loop
async def test_an_elastic_job_takes_agents_as_long_as_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher, "_PAUSE_SECONDS", 0)
    roster, said, used = PlayedRoster(), list[str](), list[JobSpec]()
    spec = read("-np", "1", "--min-np", "1", "--wait-for-agents")
    finding = asyncio.create_task(JoinedHosts(spec, roster, said.append).run(used.append))
    for present in ((), (N2,), (N2, N1), (N1,), (N1, N10)):
        await roster.change(*present)
    finding.cancel()
    await asyncio.wait({finding})
    assert [each.workers.hosts for each in used] == [(), (N2,), (N2, N1), (N1,), (N1, N10)]
    assert used[-1].remote.hosts == {"n1", "n2", "n10"}
    assert said == [
        "agents: n2 (1 slot); 1 slot.",
        "agents: n2 (1 slot), n1 (2 slots); 3 slots.",
        "agents: n1 (2 slots), n10 (4 slots); 6 slots.",
    ]
    assert (roster.refusal, roster.kept) == ("", frozenset())
