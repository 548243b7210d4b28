"""The debugger of `pytest --pdb` on rank 0: it uses the terminal of pytest, on the same machine."""

import os
from pdb import Pdb
from types import TracebackType


def debug(terminal: str, title: str, step: TracebackType | None) -> bool:
    """Let the user look around where a test has failed; whether the user ends the whole run.

    Raises:
        OSError: this process may not use the terminal.
    """
    descriptor = os.open(terminal, os.O_RDWR | os.O_NOCTTY)
    with (
        open(descriptor, encoding="utf-8", errors="replace") as keys,  # noqa: PTH123 - a descriptor
        open(os.dup(descriptor), "w", encoding="utf-8", errors="replace") as screen,  # noqa: PTH123 - a descriptor
    ):
        screen.write(f"\n{title}\n")
        debugger = Pdb(stdin=keys, stdout=screen, nosigint=True)
        debugger.reset()
        debugger.interaction(None, step)
        return debugger.quitting
