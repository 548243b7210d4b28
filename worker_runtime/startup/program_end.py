"""How the program ends: with which exit code, and what its traceback shows.

The exit code is known before Python's teardown, which takes a second with torch. Python reports it nowhere. An
uncaught exception is left in `sys.last_value`. An exception of `sys.exit()` is not: a function that leaves a mark in
its frame takes the place of `sys.exit`. The frame lives as long as the exception. When the mark goes and no Python
frame is left, nothing has caught the exception, and it has ended the program. A SystemExit that the program raises
itself is not seen.

The traceback of an error of ours that ends the program shows the user's frames alone.
"""

import runpy
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType, TracebackType

_FAILURE = 1
_LONGEST_CAUSE = 200  # so much is told of an error's text
_CODES = 256  # the kernel keeps a byte


class ExitCode:
    """The exit code of the program that this process runs; one for each process."""

    def __init__(self) -> None:
        self._exited: int | None = None  # by sys.exit()
        exit_process = sys.exit

        def leave(status: str | int | None = None, /) -> None:
            mark = _Mark(self, status)
            exit_process(status)
            del mark  # type: ignore[unreachable]  # it goes with this frame

        leave.__name__ = leave.__qualname__ = "exit"
        leave.__doc__ = exit_process.__doc__
        sys.exit = leave  # type: ignore[assignment]  # it does not return either

    def find_failure(self) -> int | None:
        """How the program has failed, as waitpid will tell it; None where it has not, or that is not known.

        To be asked when the program has ended, in an exit hook.
        """
        error = getattr(sys, "last_value", None)
        traceback = getattr(error, "__traceback__", None)
        if traceback is not None and _is_outermost(traceback.tb_frame):
            return -signal.SIGINT if isinstance(error, KeyboardInterrupt) else _FAILURE
        return self._exited or None

    def note_exit(self, status: str | int | None) -> None:
        """An exception of `sys.exit()` has gone; it has ended the program where nothing of it runs any more."""
        if threading.current_thread() is not threading.main_thread():
            return
        if sys._getframe(1).f_back is None:  # noqa: SLF001 - the caller is the mark
            self._exited = 0 if status is None else status % _CODES if isinstance(status, int) else _FAILURE


class _Mark:
    """Tells when the exception has gone in whose frame it is."""

    def __init__(self, exit_code: ExitCode, status: str | int | None) -> None:
        self._exit_code = exit_code
        self._status = status

    def __del__(self) -> None:
        self._exit_code.note_exit(self._status)


def describe_end(returncode: int | None) -> str:
    """How this process ends, for the others, to follow "rank 1"; as far as is known in an exit hook.

    returncode: with which the program has failed; None where it has not, or that is not known.
    """
    error = getattr(sys, "last_value", None)
    if error is not None:
        return f"ended ({f'{type(error).__name__}: {error}'.splitlines()[0].rstrip(': ')[:_LONGEST_CAUSE]})"
    return "ended" if returncode is None else f"ended (exit code {returncode})"


def _is_outermost(frame: FrameType) -> bool:
    """Whether this was the frame of the whole program: C code may print exceptions that have ended less."""
    program = vars(sys.modules["__main__"])
    if frame.f_globals is not program and frame.f_code is not runpy._run_module_as_main.__code__:  # type: ignore[attr-defined]  # noqa: SLF001 - under `python -m`
        return False
    return frame.f_back is None


_OURS = frozenset({"worker_runtime", "horovod"})


def shorten_tracebacks() -> None:
    """From now on; to be called once. What is not raised by this package is shown as ever."""
    hook = sys.excepthook

    def show(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        if _is_ours(kind.__module__):
            shorten(error)
            traceback = error.__traceback__
        hook(kind, error, traceback)

    sys.excepthook = show


def shorten(error: BaseException) -> None:
    """Leave our frames out, where there are others; and an error before it that was raised and handled among them."""
    kept: TracebackType | None = None
    for each in reversed(list(_list_others(error.__traceback__))):
        kept = TracebackType(kept, each.tb_frame, each.tb_lasti, each.tb_lineno)
    error.__traceback__ = kept or error.__traceback__
    former = error.__context__
    if former is not None and not any(_list_others(former.__traceback__)):
        error.__suppress_context__ = True


def _list_others(traceback: TracebackType | None) -> Iterator[TracebackType]:
    while traceback is not None:
        if not _is_ours(traceback.tb_frame.f_globals.get("__name__", "")):
            yield traceback
        traceback = traceback.tb_next


def _is_ours(module: str) -> bool:
    return module.partition(".")[0] in _OURS
