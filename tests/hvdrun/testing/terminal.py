"""Runs a program at a terminal, types, and reads what it shows."""

import os
import pty
import select
import signal
import time
from collections.abc import Sequence
from pathlib import Path

LIMIT_SECONDS = 60.0


class Terminal:
    """A program that runs at a terminal of its own."""

    def __init__(self, command: Sequence[str], folder: Path) -> None:
        self.pid, self._screen = pty.fork()
        if self.pid == 0:
            os.chdir(folder)
            os.execv(command[0], list(command))  # noqa: S606 - no shell is wanted
        self.shown = ""
        self._seen = 0

    def type(self, text: str) -> None:
        """Press these keys."""
        os.write(self._screen, text.encode())

    def wait_for(self, text: str) -> None:
        """Wait until the program has shown this, after what was waited for before."""
        deadline = time.monotonic() + LIMIT_SECONDS
        while (found := self.shown.find(text, self._seen)) < 0:
            assert self._read(deadline), f"waited for {text!r}:\n{self.shown}"
        self._seen = found + len(text)

    def end(self) -> int:
        """Wait until the program ends; its exit code."""
        deadline = time.monotonic() + LIMIT_SECONDS
        while self._read(deadline):
            pass
        os.close(self._screen)
        if time.monotonic() >= deadline:
            os.kill(self.pid, signal.SIGKILL)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def _read(self, deadline: float) -> bool:
        ready, _, _ = select.select([self._screen], [], [], max(0.0, deadline - time.monotonic()))
        try:
            data = os.read(self._screen, 65536) if ready else b""
        except OSError:  # no process has the terminal open any more
            data = b""
        self.shown += data.decode(errors="replace")
        return bool(data)
