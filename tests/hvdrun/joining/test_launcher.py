"""A job that waits for agents, up to its own start: signals, and faults of hvdrun's own."""

import asyncio
import os
import signal
from pathlib import Path
from typing import cast

import pytest

import hvdrun.console
from hvdrun.joining import launcher
from hvdrun.joining.roster import Roster
from hvdrun.options.kinds import parse_endpoint
from hvdrun.spec.jobspec import JobSpec
from hvdrun.spec.remote import Joining
from rendezvous.core.model import LOOPBACK, Endpoint
from rendezvous.core.outcome import Outcome
from tests.hvdrun.joining.test_description import read
from tests.hvdrun.joining.test_listener import started
from tests.waiting import happen, in_loop


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


async def wait(_: JobSpec, roster: Roster) -> Outcome:
    """A job that has begun, and does not end."""
    await asyncio.Event().wait()
    raise AssertionError(roster)


def receive(console: Console, folder: Path, *words: str) -> asyncio.Task[Outcome]:
    """Wait for agents; the token is in `folder`."""
    spec = read("-np", "1", "--wait-for-agents", "--bind", LOOPBACK, "--token-file", str(folder / "token"), *words)
    assert isinstance(spec.remote.joining, Joining)
    return asyncio.create_task(
        launcher.run_with_agents(spec, spec.remote.joining, cast(hvdrun.console.Console, console), wait)
    )


@pytest.mark.parametrize(
    ("number", "exit_code", "sentences"),
    [
        (
            signal.SIGUSR2,
            75,
            ["the job has ended, as its stop notice asked (exit code 75): start it again to continue."],
        ),
        (signal.SIGTERM, 143, ["received SIGTERM."]),
        (signal.SIGINT, 130, []),
    ],
)
@in_loop
async def test_a_signal_ends_the_wait_for_agents_with_a_sentence(
    number: signal.Signals, exit_code: int, sentences: list[str], tmp_path: Path
) -> None:
    console = Console()
    receiving = receive(console, tmp_path)
    await happen(lambda: bool(console.said))
    os.kill(os.getpid(), number)
    assert (await receiving).exit_code == exit_code
    assert console.said[1:] == sentences


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
