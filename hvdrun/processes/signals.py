"""How hvdrun answers the signals that reach it while a job runs."""

import asyncio
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import filterfalse

from hvdrun.startup.early import STOPPING, EarlySignal, has_foreign_handler
from rendezvous.core.outcome import SIGNAL_OFFSET, name_signal

SUSPENDING = (signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU)
_ANSWERED = (*STOPPING, *SUSPENDING, signal.SIGUSR1, signal.SIGUSR2)
_FIRST_PROCESS = 1
_ECHO_SECONDS = 2.0  # on a busy machine a process may be late by so much
_REPEATED_BY_KERNEL = SIGNAL_OFFSET + signal.SIGXCPU  # after each further second of processor time


class StopRequests:
    """Counts the requests to stop, each with the exit code that it asks for.

    Another signal of the same moment repeats nothing: systemd and terminals send SIGHUP after SIGTERM. The same one, or
    Ctrl-C, is impatience. A child of process 1 gets a signal to all processes of its container twice: the second one is
    what process 1 forwards, and so does the guardian of a detached job.

    Args:
        parent: the pid of this process's parent.
        has_guardian: it is the guardian of a detached job.
    """

    def __init__(self, parent: int, *, has_guardian: bool = False) -> None:
        self.count = 0
        self._codes: set[int] = set()
        self._echo_seconds = 0.0
        if parent <= _FIRST_PROCESS or has_guardian:
            self._echo_seconds = _ECHO_SECONDS
        self._echoes_until = 0.0

    def note(self, code: int) -> bool:
        """Whether this is a request, and no mere company of the first one."""
        if not self._codes:
            self._echoes_until = time.monotonic() + self._echo_seconds
        elif code in self._codes and time.monotonic() < self._echoes_until:
            return False
        is_repeated = code in self._codes and code != _REPEATED_BY_KERNEL
        is_new = not self._codes or is_repeated or code == SIGNAL_OFFSET + signal.SIGINT
        self._codes.add(code)
        self.count += is_new
        return is_new


def stop_process(number: int) -> None:
    """Stop this process as the signal does by default; return when SIGCONT has come.

    It returns at once where no shell could continue the process: the kernel ignores the signal in an orphaned process
    group, such as that of `ssh -t`, and the parent of a container's main program is process 1.
    """
    if os.getppid() <= _FIRST_PROCESS:
        return
    former = signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    signal.signal(number, former)
    signal.siginterrupt(number, False)  # noqa: FBT003 - siginterrupt's signature


def answer_notice(notice: Callable[[], None]) -> None:
    """Answer stop notices, SIGUSR2, on the running loop; one that came earlier is answered soon."""
    _answer(signal.SIGUSR2, notice)


@contextmanager
def keep_signals() -> Iterator[None]:
    """Record the signals that end a job until `answer_signals` answers them, so that none keeps files from removal.

    After the job they have no effect. Those that are ignored stay ignored.
    """
    former = {number: signal.getsignal(number) for number in filterfalse(has_foreign_handler, STOPPING)}
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
    stop: Callable[[int, str], None],
    suspend: Callable[[int], None],
    notice: Callable[[], None],
    pass_on: Callable[[int], None],
) -> Iterator[None]:
    """Answer signals on the running loop.

    Those that nohup or a shell's `&` ignores stay ignored, and those that a library handles stay the library's.

    Args:
        stop: is called for each signal that ends the job, with the exit code and the reason.
        suspend: is called for Ctrl-Z, and for the use of the terminal in the background.
        notice: is called for a stop notice, SIGUSR2.
        pass_on: is called for SIGUSR1, which is for the workers.
    """
    loop = asyncio.get_running_loop()
    former = {number: signal.getsignal(number) for number in filterfalse(has_foreign_handler, _ANSWERED)}
    answered = [number for number, handler in former.items() if handler is not signal.SIG_IGN]

    for number in answered:
        if number is signal.SIGUSR2:
            _answer(number, notice)
        elif number is signal.SIGUSR1:
            _answer(number, pass_on, number)
        elif number in SUSPENDING:
            _answer(number, suspend, number)
        else:
            _answer(number, stop, SIGNAL_OFFSET + number, f"received {name_signal(number)}")

    try:
        yield
    finally:
        for number in answered:
            loop.remove_signal_handler(number)
            signal.signal(number, former[number])


def _answer(number: int, call: Callable[..., None], *given: object) -> None:
    """Answer a signal on the running loop; one that was recorded earlier is answered soon."""
    loop, former = asyncio.get_running_loop(), signal.getsignal(number)
    loop.add_signal_handler(number, call, *given)
    if isinstance(former, EarlySignal) and former.take():
        loop.call_soon(call, *given)
