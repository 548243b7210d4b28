"""How a running job answers signals; what follows from them is in test_launch and tests/system."""

import asyncio
import os
import signal
from collections.abc import Iterator

import pytest

from hvdrun.signals import answer_signals

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
LIMIT_SECONDS = 10.0


@pytest.fixture(params=STOPPING, ids=lambda number: number.name)
def number(request: pytest.FixtureRequest) -> Iterator[signal.Signals]:
    chosen: signal.Signals = request.param
    former = signal.getsignal(chosen)
    yield chosen
    signal.signal(chosen, former)


def answer(*numbers: signal.Signals, ignored: signal.Signals | None = None) -> list[object]:
    """What is called when these signals come, in order, after the ignored one."""
    calls: list[object] = []

    async def scenario() -> None:
        arrived = asyncio.Event()

        def stop(code: int, reason: str) -> None:
            calls.append((code, reason))
            arrived.set()

        def suspend() -> None:
            calls.append("suspend")
            arrived.set()

        with answer_signals(stop, suspend):
            if ignored is not None:
                os.kill(os.getpid(), ignored)
            for number in numbers:
                arrived.clear()
                os.kill(os.getpid(), number)
                await asyncio.wait_for(arrived.wait(), LIMIT_SECONDS)

    asyncio.run(scenario())
    return calls


def test_a_signal_stops_the_job_with_a_shell_s_code_for_it(number: signal.Signals) -> None:
    assert answer(number) == [(128 + number, f"{number.name} came to hvdrun")]


def test_ctrl_z_suspends_it() -> None:
    assert answer(signal.SIGTSTP, signal.SIGINT) == ["suspend", (130, "SIGINT came to hvdrun")]


def test_an_ignored_signal_stays_ignored(number: signal.Signals) -> None:
    signal.signal(number, signal.SIG_IGN)
    other = next(known for known in STOPPING if known is not number)
    assert answer(other, ignored=number) == [(128 + other, f"{other.name} came to hvdrun")]
    assert signal.getsignal(number) is signal.SIG_IGN


def test_afterwards_signals_mean_what_they_meant() -> None:
    numbers = (*STOPPING, signal.SIGTSTP)
    former = [signal.getsignal(number) for number in numbers]
    answer(signal.SIGINT)
    assert [signal.getsignal(number) for number in numbers] == former
