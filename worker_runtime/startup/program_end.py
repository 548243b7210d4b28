"""The end of the program: its exit code before Python's teardown, and a traceback with the user's frames only.

The teardown takes a second with torch, and Python does not report the exit code before it. An uncaught exception is in
`sys.last_value`. The SystemExit of `sys.exit()` is not; so this module replaces `sys.exit` by a function with a mark in
its frame. The frame lives as long as the exception. If no Python frame is left when the mark is deleted, nothing has
caught the exception, and it ends the program. A SystemExit that the program raises itself is not seen.

The traceback of an error of this package shows only the user's frames.
"""

import runpy
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType, TracebackType

_FAILURE = 1
_LONGEST_CAUSE = 200  # characters of an error's text
_CODES = 256  # the kernel stores a byte
UNKNOWN_END = "ended"  # with 0, or by a SystemExit that the program has raised itself


class ExitCode:
    """The exit code of the program of this process; create one for each process."""

    def __init__(self) -> None:
        self._exited: int | None = None  # the code of sys.exit()
        self.place = ""  # where the program called sys.exit(), if that has ended it
        exit_process = sys.exit

        def leave(status: str | int | None = None, /) -> None:
            caller = sys._getframe().f_back  # noqa: SLF001 - its name and line; None where C code calls
            place = "" if caller is None else f"{Path(caller.f_code.co_filename).name}:{caller.f_lineno}"
            del caller  # the exception's frames would hold it
            mark = _Mark(self, status, place)
            exit_process(status)
            del mark  # type: ignore[unreachable]  # deleted with this frame

        leave.__name__ = leave.__qualname__ = "exit"
        leave.__doc__ = exit_process.__doc__
        sys.exit = leave  # type: ignore[assignment]  # it does not return either

    def find_failure(self) -> int | None:
        """The exit code of a failed program, as waitpid will report it; None if it has not failed, or is unknown.

        Call it in an exit hook, after the program has ended.
        """
        error = getattr(sys, "last_value", None)
        traceback = getattr(error, "__traceback__", None)
        if traceback is not None and _is_outermost(traceback.tb_frame):
            return -signal.SIGINT if isinstance(error, KeyboardInterrupt) else _FAILURE
        return self._exited or None

    def note_exit(self, status: str | int | None, place: str) -> None:
        """Process the deletion of an exception of `sys.exit()`; without a caller it has ended the program."""
        if threading.current_thread() is not threading.main_thread():
            return
        if sys._getframe(1).f_back is None:  # noqa: SLF001 - the caller is the mark
            if status is None:
                self._exited = 0
            else:
                self._exited = status % _CODES if isinstance(status, int) else _FAILURE
            self.place = place


class _Mark:
    """Reports the deletion of the exception whose traceback has its frame.

    Args:
        exit_code: gets the report.
        status: the argument of `sys.exit()`.
        place: the file and line of the call.
    """

    def __init__(self, exit_code: ExitCode, status: str | int | None, place: str) -> None:
        self._exit_code = exit_code
        self._status = status
        self._place = place

    def __del__(self) -> None:
        self._exit_code.note_exit(self._status, self._place)


def describe_end(returncode: int | None, place: str = "") -> str:
    """A description of this process's end, to follow "rank 1" in the other ranks' messages; for an exit hook.

    Args:
        returncode: the exit code of the failed program; None if it has not failed, or is unknown.
        place: where the program called `sys.exit()`, if that has ended it.
    """
    error = getattr(sys, "last_value", None)
    if error is not None:
        return f"ended ({f'{type(error).__name__}: {error}'.splitlines()[0].rstrip(': ')[:_LONGEST_CAUSE]})"
    if place:
        return f"ended with {returncode or 0} at {place}"
    return UNKNOWN_END if returncode is None else f"ended (exit code {returncode})"


def _is_outermost(frame: FrameType) -> bool:
    """Whether this is the frame of the whole program: C code may print exceptions that do not end the program."""
    program = vars(sys.modules["__main__"])
    if frame.f_globals is not program and frame.f_code is not runpy._run_module_as_main.__code__:  # type: ignore[attr-defined]  # noqa: SLF001 - under `python -m`
        return False
    return frame.f_back is None


_OURS = frozenset({"worker_runtime", "horovod"})


def shorten_tracebacks() -> None:
    """Shorten tracebacks of this package's errors from now on; call it once. Other errors are unaffected."""
    hook = sys.excepthook

    def show(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        if _is_ours(kind.__module__):
            shorten(error)
            traceback = error.__traceback__
        hook(kind, error, traceback)

    sys.excepthook = show


def shorten(error: BaseException) -> None:
    """Remove this package's frames, if there are others; and a context that was raised and handled only in them."""
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
