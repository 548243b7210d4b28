"""hvdrun as process 1 of a container: this process becomes a small init, and hvdrun runs as its child.

The kernel treats process 1 differently. A signal without a handler does nothing there, so that a container could not be
stopped while hvdrun starts. And process 1 adopts every orphan of the container, which stays a zombie until it is
reaped. The init forwards signals to hvdrun and reaps orphans. When process 1 ends, the kernel ends the container.
"""

import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

_FIRST_PROCESS = 1
_SIGNAL_OFFSET = 128
_INITS = frozenset({"docker-init", "tini", "dumb-init", "catatonit"})  # of containers
_KEPT = {signal.SIGCHLD, signal.SIGTTIN, signal.SIGTTOU}


def leave_init_behind() -> None:
    """Return in a child if this is process 1, else in this process; to be called before threads start."""
    if os.getpid() != _FIRST_PROCESS:
        return
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # where it is ignored, the kernel reaps, and no exit code is known
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    child = os.fork()
    if child:
        _serve(child)
    _take_terminal()
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


def ends_with_container() -> bool:
    """Whether the container ends with this process, since process 1 is an init that waits for this one alone."""
    if os.getppid() != _FIRST_PROCESS:
        return False
    first, own = Path("/proc/1"), Path("/proc/self")
    with suppress(OSError):  # no /proc
        name = (first / "comm").read_text(encoding="utf-8", errors="replace").strip()
        is_init = name in _INITS or (first / "cmdline").read_bytes() == (own / "cmdline").read_bytes()
        return is_init and not _is_adopted()
    return False


def _is_adopted() -> bool:
    """Whether this is an orphan: process 1 has started its only program before all that it has adopted."""
    with suppress(OSError):  # a kernel without this list
        children = Path("/proc/1/task/1/children").read_text(encoding="ascii").split()
        return children[:1] != [str(os.getpid())]
    return False


def _take_terminal() -> None:
    """Become the terminal's foreground job, if there is a terminal, so that a Ctrl-C comes once."""
    os.setpgid(0, 0)
    with suppress(OSError):  # there is no terminal
        os.tcsetpgrp(0, os.getpgrp())  # allowed, since SIGTTOU is blocked


def _serve(child: int) -> NoReturn:
    """Forward signals to the child and reap, until the child ends; exit with its exit code."""
    while True:
        number = signal.sigwait(signal.valid_signals())
        if number == signal.SIGCHLD:
            _reap(child)
        elif number not in _KEPT:
            os.kill(child, number)  # its pid stays its own until it is reaped


def _reap(child: int) -> None:
    """Reap all that have ended; when the child has, exit."""
    with suppress(ChildProcessError):  # no child is left
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            if pid == child:
                code = os.waitstatus_to_exitcode(status)
                if code < 0:
                    code = _SIGNAL_OFFSET - code
                os._exit(code)
