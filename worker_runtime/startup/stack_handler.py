"""Has a forked worker answer where its main thread is, when its agent asks by a signal.

A thread that stands in a call is asked by a signal that `faulthandler` handles in C, which needs no running
interpreter: it answers within a call that holds the GIL, too. It reads the frames of this thread alone. While they
change, as in a thread that runs, that would crash the program. So a thread that runs is asked by another signal, which
Python itself handles between two instructions.

The answer goes to memory, which ends with the process, and which the agent finds among the open files of the worker. A
worker that has closed that file is not asked. At its end Python gives up its handlers; then the signals are ignored, so
that a question that comes late does not kill a worker that has succeeded. Executed workers do the same in
`hvdrun/shim/modules/sitecustomize.py`.
"""

import atexit
import faulthandler
import fcntl
import os
import signal
from collections.abc import Mapping
from contextlib import suppress
from types import FrameType

from worker_runtime.rendezvous import (
    INCARNATION,
    RUNNING_SIGNAL_OFFSET,
    STACK_DESCRIPTOR,
    STACK_MEMORY,
    STACK_SIGNAL_OFFSET,
)

_OF_A_SERVICE = "0"


def register(environment: Mapping[str, str]) -> None:
    """Answer from now on, in a worker; without memory files (`memfd_create`) it is not asked."""
    if environment.get(INCARNATION, _OF_A_SERVICE) == _OF_A_SERVICE:
        return
    try:
        with os.fdopen(os.memfd_create(STACK_MEMORY), "wb") as low:  # programs count on low numbers
            memory = fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, STACK_DESCRIPTOR)
    except (AttributeError, OSError):  # an old kernel, a Python that was built on one, or too many open files
        return
    fcntl.fcntl(memory, fcntl.F_SETFL, os.O_APPEND)  # forked children share it
    signal.signal(signal.SIGRTMIN + STACK_SIGNAL_OFFSET, signal.SIG_IGN)  # to which faulthandler returns at the end
    faulthandler.register(signal.SIGRTMIN + STACK_SIGNAL_OFFSET, file=memory, all_threads=False, chain=False)

    def answer(_number: int, frame: FrameType | None) -> None:
        lines = ["Stack (most recent call first):"]
        while frame is not None:
            lines.append(f'  File "{frame.f_code.co_filename}", line {frame.f_lineno} in {frame.f_code.co_name}')
            frame = frame.f_back
        with suppress(OSError):  # the program has closed it
            os.write(memory, "\n".join([*lines, ""]).encode(errors="backslashreplace"))

    signal.signal(signal.SIGRTMIN + RUNNING_SIGNAL_OFFSET, answer)
    atexit.register(signal.signal, signal.SIGRTMIN + RUNNING_SIGNAL_OFFSET, signal.SIG_IGN)
