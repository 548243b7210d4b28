"""hvdrun as process 1 of a container: a small init, as which this process stays behind, and hvdrun as its child.

The kernel treats process 1 unlike any other. A signal for which it has no handler does nothing: a container could not
be stopped while hvdrun starts. And it inherits every orphan of the container, which stays a zombie until it is reaped.
The init forwards signals and reaps whatever ends. hvdrun itself reaps its own children alone, and is an ordinary
process. When process 1 ends, the kernel ends all others of the container.
"""

import os
import signal
from contextlib import suppress
from typing import NoReturn

_FIRST_PROCESS = 1
_SIGNAL_OFFSET = 128
_KEPT = {signal.SIGCHLD, signal.SIGTTIN, signal.SIGTTOU}


def leave_init_behind() -> None:
    """Return in a child if this is process 1, and in this process if it is not; to be called before threads start."""
    if os.getpid() != _FIRST_PROCESS:
        return
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # ignored, it would reap by itself and nothing would be told
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    child = os.fork()
    if child:
        _serve(child)
    _take_terminal()
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _take_terminal() -> None:
    """Be the terminal's foreground job, if there is a terminal: a Ctrl-C comes once, from there."""
    os.setpgid(0, 0)
    with suppress(OSError):
        os.tcsetpgrp(0, os.getpgrp())  # its SIGTTOU is blocked, which allows it


def _serve(child: int) -> NoReturn:
    """Forward each signal to the child and reap what ends, until the child does; its exit code is this process's."""
    while True:
        number = signal.sigwait(signal.valid_signals())
        if number == signal.SIGCHLD:
            _reap(child)
        elif number not in _KEPT:
            os.kill(child, number)  # it is there until it is reaped


def _reap(child: int) -> None:
    """Reap all that have ended; with the child, this process ends."""
    with suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            if pid == child:
                code = os.waitstatus_to_exitcode(status)
                os._exit(code if code >= 0 else _SIGNAL_OFFSET - code)
