"""How hvdrun answers the signals that reach it while a job runs."""

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from hvdrun.startup.early import EarlyNotice
from rendezvous.core.outcome import SIGNAL_OFFSET

_STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_ANSWERED = (*_STOPPING, signal.SIGTSTP, signal.SIGUSR2)


def answer_notice(notice: Callable[[], None]) -> None:
    """Answer stop notices, SIGUSR2, on the running loop; one that came earlier is answered soon."""
    loop, former = asyncio.get_running_loop(), signal.getsignal(signal.SIGUSR2)
    loop.add_signal_handler(signal.SIGUSR2, notice)
    if isinstance(former, EarlyNotice) and former.take():
        loop.call_soon(notice)


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
            answer_notice(notice)
        elif number is signal.SIGTSTP:
            loop.add_signal_handler(number, suspend)
        else:
            loop.add_signal_handler(number, stop, SIGNAL_OFFSET + number, f"received {number.name}")
    try:
        yield
    finally:
        for number in answered:
            loop.remove_signal_handler(number)
            signal.signal(number, former[number])
