"""How a running job answers signals; what follows from them is in tests/system."""

import asyncio
import os
import signal
from collections.abc import Iterator

import pytest

from hvdrun.processes.signals import answer_signals, keep_signals
from hvdrun.startup.early import keep_notice
from tests.waiting import LIMIT_SECONDS

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
OTHERS = (signal.SIGTSTP, signal.SIGUSR2)


@pytest.fixture(autouse=True)
def _guarded() -> Iterator[None]:
    """A signal that is not answered is dropped: it must not end the process of the tests."""
    former = {number: signal.signal(number, lambda *_: None) for number in (*STOPPING, *OTHERS)}
    yield
    for number, handler in former.items():
        signal.signal(number, handler)


numbers = pytest.mark.parametrize("number", STOPPING, ids=lambda number: number.name)


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

        def notice() -> None:
            calls.append("notice")
            arrived.set()

        with answer_signals(stop, suspend, notice):
            if ignored is not None:
                os.kill(os.getpid(), ignored)
            for number in numbers:
                arrived.clear()
                os.kill(os.getpid(), number)
                await asyncio.wait_for(arrived.wait(), LIMIT_SECONDS)

    asyncio.run(scenario())
    return calls


@numbers
def test_a_signal_stops_the_job_with_a_shell_s_code_for_it(number: signal.Signals) -> None:
    assert answer(number) == [(128 + number, f"received {number.name}")]


def test_ctrl_z_suspends_it_and_sigusr2_is_a_stop_notice() -> None:
    said = answer(signal.SIGTSTP, signal.SIGUSR2, signal.SIGINT)
    assert said == ["suspend", "notice", (130, "received SIGINT")]


@numbers
def test_an_ignored_signal_stays_ignored(number: signal.Signals) -> None:
    signal.signal(number, signal.SIG_IGN)
    other = next(known for known in STOPPING if known is not number)
    assert answer(other, ignored=number) == [(128 + other, f"received {other.name}")]
    assert signal.getsignal(number) is signal.SIG_IGN


@numbers
def test_a_kept_signal_is_answered_when_the_job_answers_signals(number: signal.Signals) -> None:
    handler = signal.getsignal(number)
    with keep_signals():
        os.kill(os.getpid(), number)
        assert answer(signal.SIGUSR2)[0] == (128 + number, f"received {number.name}")
        os.kill(os.getpid(), number)  # has no effect
    assert signal.getsignal(number) is handler


def test_afterwards_signals_mean_what_they_meant() -> None:
    numbers = (*STOPPING, *OTHERS)
    former = [signal.getsignal(number) for number in numbers]
    answer(signal.SIGINT)
    assert [signal.getsignal(number) for number in numbers] == former


def test_a_notice_that_comes_before_it_can_be_answered_is_answered_once() -> None:
    signal.signal(signal.SIGUSR2, signal.SIG_DFL)
    keep_notice()
    os.kill(os.getpid(), signal.SIGUSR2)
    assert answer(signal.SIGINT)[0] == "notice"
    assert "notice" not in answer(signal.SIGINT)
