"""The debugger on rank 0, for `pytest --pdb` and breakpoint(). It uses pytest's terminal, on the same machine."""

import os
import sys
from bdb import BdbQuit
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pdb import Pdb
from types import TracebackType

import pytest

_NO_TERMINAL = (
    "breakpoint() needs pytest's terminal, and rank 0 has none: run pytest at a terminal, without -n, "
    "with rank 0 on the same machine"
)
_SKIPPED = ("contextlib", "hvdrun.*")  # so that `next` does not stop there after the test's last line


def debug(terminal: str, title: str, step: TracebackType | None) -> bool:
    """Open the debugger where a test has failed; True if the user quits, which ends the whole run.

    Raises:
        OSError: this process may not use the terminal.
    """
    with open_debugger(terminal, title) as debugger:
        debugger.reset()
        debugger.interaction(None, step)
        return debugger.quitting


@contextmanager
def open_debugger(terminal: str, title: str) -> Iterator[Pdb]:
    """A debugger at a terminal.

    Raises:
        OSError: this process may not use the terminal.
    """
    descriptor = os.open(terminal, os.O_RDWR | os.O_NOCTTY)
    with (
        open(descriptor, encoding="utf-8", errors="replace") as keys,  # noqa: PTH123 - a descriptor has no path
        open(os.dup(descriptor), "w", encoding="utf-8", errors="replace") as screen,  # noqa: PTH123 - a descriptor has no path
    ):
        screen.write(f"\n{title}\n")
        yield Pdb(stdin=keys, stdout=screen, nosigint=True, skip=_SKIPPED)


@contextmanager
def stops_at_breakpoints(terminal: str | None, rank: int, patch: pytest.MonkeyPatch) -> Iterator[None]:
    """In its block, breakpoint() and pdb.set_trace() stop on rank 0, and do nothing on the other ranks, which wait.

    Raises:
        RuntimeError: at a breakpoint without a terminal.
        pytest.exit.Exception: the user has quit the debugger.
    """
    with ExitStack() as stack:
        opened: list[Pdb] = []

        def stop(*_: object, **_options: object) -> None:
            if rank != 0:
                return
            if terminal is None:
                raise RuntimeError(f"{_NO_TERMINAL}.")
            try:
                opened[:] = opened or [stack.enter_context(open_debugger(terminal, ">>> a breakpoint on rank 0"))]
            except OSError as error:
                raise RuntimeError(f"{_NO_TERMINAL} ({terminal}: {error.strerror}).") from error
            opened[0].set_trace(sys._getframe().f_back)  # noqa: SLF001 - as pdb itself does it

        patch.setattr("pdb.set_trace", stop)
        patch.setattr(pytest, "set_trace", stop)
        try:
            yield
        except BdbQuit:
            pytest.exit("Quitting debugger")
        finally:
            if opened:
                sys.settrace(None)
