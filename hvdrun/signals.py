"""How hvdrun answers the signals that reach it while a job runs."""

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rendezvous.core.outcome import SIGNAL_OFFSET

_STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_OTHERS = (signal.SIGTSTP, signal.SIGUSR2)


@contextmanager
def answer_signals(
    stop: Callable[[int, str], None], suspend: Callable[[], None], notice: Callable[[], None]
) -> Iterator[None]:
    """Answer signals on the running loop, but for those that are ignored: nohup and a shell's `&` want it so.

    Args:
        stop: is called for each signal that is to end the job, with the exit code and the reason for it.
        suspend: is called for Ctrl-Z.
        notice: is called for a stop notice, SIGUSR2.
    """
    loop = asyncio.get_running_loop()
    former = {number: signal.getsignal(number) for number in (*_STOPPING, *_OTHERS)}
    answered = [number for number, handler in former.items() if handler is not signal.SIG_IGN]
    for number in answered:
        if number in _OTHERS:
            loop.add_signal_handler(number, suspend if number is signal.SIGTSTP else notice)
        else:
            loop.add_signal_handler(number, stop, SIGNAL_OFFSET + number, f"{number.name} came to hvdrun")
    try:
        yield
    finally:
        for number in answered:
            loop.remove_signal_handler(number)
            signal.signal(number, former[number])
