"""Has each Python program of an executed worker answer where its main thread is, when the agent asks by a signal.

Python imports this module at its start, by its name. `worker_runtime/startup/stack_handler.py` does the same for forked
workers, and explains it. Then the user's own `sitecustomize` takes this module's place. The program may be of any
version of Python, and need not have hvdrun: nothing of hvdrun is imported here.
"""

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# The names of rendezvous/bootstrap.py.
_STACK_SIGNAL_OFFSET, _RUNNING_SIGNAL_OFFSET, _STACK_DESCRIPTOR, _STACK_MEMORY = 12, 13, 100, "hvdrun-stack"
_INCARNATION = "HVD_INCARNATION"
_OF_A_SERVICE = "0"


def _register() -> None:
    """Only modules that Python has built in: each Python program of a worker pays for them."""
    import _signal  # type: ignore[import-not-found]  # noqa: PLC0415 - only workers pay for it
    import atexit  # noqa: PLC0415 - only workers pay for it
    import faulthandler  # noqa: PLC0415 - only workers pay for it
    import fcntl  # noqa: PLC0415 - only workers pay for it

    low = os.memfd_create(_STACK_MEMORY)
    try:
        memory = fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, _STACK_DESCRIPTOR)
    finally:
        os.close(low)
    fcntl.fcntl(memory, fcntl.F_SETFL, os.O_APPEND)
    _signal.signal(_signal.SIGRTMIN + _STACK_SIGNAL_OFFSET, _signal.SIG_IGN)
    faulthandler.register(_signal.SIGRTMIN + _STACK_SIGNAL_OFFSET, file=memory, all_threads=False, chain=False)

    def answer(_number: int, frame: "Any") -> None:
        lines = ["Stack (most recent call first):"]
        while frame is not None:
            lines.append(f'  File "{frame.f_code.co_filename}", line {frame.f_lineno} in {frame.f_code.co_name}')
            frame = frame.f_back
        try:  # noqa: SIM105 - contextlib would cost each program some milliseconds
            os.write(memory, "\n".join([*lines, ""]).encode(errors="backslashreplace"))
        except OSError:  # the program has closed it
            pass

    _signal.signal(_signal.SIGRTMIN + _RUNNING_SIGNAL_OFFSET, answer)
    atexit.register(_signal.signal, _signal.SIGRTMIN + _RUNNING_SIGNAL_OFFSET, _signal.SIG_IGN)


def _continue() -> None:
    """Import the user's module of this name.

    Raises:
        ImportError: there is none; Python ignores that.
    """
    folder = os.path.dirname(__file__)  # noqa: PTH120 - a string, as the path's entries
    index = sys.path.index(folder)
    del sys.modules[__name__], sys.path[index]
    try:
        __import__(__name__)
    finally:
        sys.path.insert(index, folder)


if os.environ.get(_INCARNATION, _OF_A_SERVICE) != _OF_A_SERVICE:
    try:  # noqa: SIM105 - contextlib would cost each program some milliseconds
        _register()
    except Exception:  # noqa: BLE001, S110 - an old kernel, or a Python that lacks something
        # Nothing may go wrong before the user's program.
        pass
_continue()
