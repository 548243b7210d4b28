"""How hvdrun answers the signals that reach it while a job runs."""

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from hvdrun.startup.early import EarlySignal
from rendezvous.core.outcome import SIGNAL_OFFSET

_STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_ANSWERED = (*_STOPPING, signal.SIGTSTP, signal.SIGUSR2)


def answer_notice(notice: Callable[[], None]) -> None:
    """Answer stop notices, SIGUSR2, on the running loop; one that came earlier is answered soon."""
    _answer(signal.SIGUSR2, notice)


@contextmanager
def keep_signals() -> Iterator[None]:
    """Record the signals that end a job until `answer_signals` answers them, so that none keeps files from removal.

    After the job they have no effect. Those that are ignored stay ignored.
    """
    former = {number: signal.getsignal(number) for number in _STOPPING}
    kept = [number for number, handler in former.items() if handler is not signal.SIG_IGN]
    for number in kept:
        signal.signal(number, EarlySignal())
    try:
        yield
    finally:
        for number in kept:
            signal.signal(number, former[number])


@contextmanager
def answer_signals(
    stop: Callable[[int, str], None], suspend: Callable[[], None], notice: Callable[[], None]
) -> Iterator[None]:
    """Answer signals on the running loop; those that nohup or a shell's `&` ignores stay ignored.

    Args:
        stop: is called for each signal that ends the job, with the exit code and the reason.
        suspend: is called for Ctrl-Z.
        notice: is called for a stop notice, SIGUSR2.
    """
    loop = asyncio.get_running_loop()
    former = {number: signal.getsignal(number) for number in _ANSWERED}
    answered = [number for number, handler in former.items() if handler is not signal.SIG_IGN]
    for number in answered:
        if number is signal.SIGUSR2:
            _answer(number, notice)
        elif number is signal.SIGTSTP:
            _answer(number, suspend)
        else:
            _answer(number, stop, SIGNAL_OFFSET + number, f"received {number.name}")
    try:
        yield
    finally:
        for number in answered:
            loop.remove_signal_handler(number)
            signal.signal(number, former[number])


def _answer(number: signal.Signals, call: Callable[..., None], *given: object) -> None:
    """Answer a signal on the running loop; one that was recorded earlier is answered soon."""
    loop, former = asyncio.get_running_loop(), signal.getsignal(number)
    loop.add_signal_handler(number, call, *given)
    if isinstance(former, EarlySignal) and former.take():
        loop.call_soon(call, *given)
