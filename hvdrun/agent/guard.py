"""The agent's side of the guardian: starts it, tells it of sessions, and starts another when it is killed."""

import contextlib
import os
import subprocess
import sys
from pathlib import Path

from hvdrun.agent import processes
from hvdrun.agent.folder import hide

_STARTS = 10  # a guardian that dies again and again is not killed by chance, and must not be all that this host does


class Guard:
    """Keeps a guardian beside the agent, as long as the agent lives.

    lease_seconds: an agent that is stopped for longer is killed by its guardian; None: it may be stopped.
    """

    def __init__(self, origin: str, folder: Path, lease_seconds: float | None = None) -> None:
        self._arguments = (origin, str(folder), str(hide(folder)))
        self._lease_seconds = lease_seconds
        self._sessions: dict[int, int] = {}
        self._starts_left = _STARTS
        self._process: subprocess.Popen[bytes] | None = None
        self._start()

    def owns(self, pid: int) -> bool:
        """This process is the guardian, so its end is the guard's business."""
        return self._process is not None and self._process.pid == pid

    def add(self, pid: int) -> None:
        """A worker has been started that leads the session `pid`."""
        process = processes.look(pid)
        self._sessions[pid] = 0 if process is None else process.started
        self._tell(f"session {pid} {self._sessions[pid]}")

    def remove(self, pid: int) -> None:
        """The session has ended, all of it."""
        self._sessions.pop(pid, None)
        self._tell(f"end {pid}")

    def replace(self) -> None:
        """The guardian was killed: start another that knows as much. Its former process has been reaped.

        Where that fails, the agent goes on without.
        """
        self._forget()
        if self._starts_left > 0:
            with contextlib.suppress(OSError):
                self._start()
        for pid, started in self._sessions.items():
            self._tell(f"session {pid} {started}")

    def dismiss(self) -> None:
        """The agent leaves in good order; nothing is left to guard."""
        self._tell("done")
        self._forget()

    def _start(self) -> None:
        self._starts_left -= 1
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "hvdrun.agent.guardian", *self._arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            cwd="/",
        )
        agent = processes.look(os.getpid())
        if agent is not None:
            self._tell(f"agent {agent.pid} {agent.started}")
        if self._lease_seconds is not None:
            self._tell(f"lease {self._lease_seconds}")

    def _tell(self, line: str) -> None:
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):  # it was killed; the agent hears of it and calls replace()
                self._process.stdin.write(f"{line}\n".encode())
                self._process.stdin.flush()

    def _forget(self) -> None:
        if self._process is None:
            return
        if self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()
        self._process.returncode = 0  # the agent reaps all its children itself; Popen must not try
        self._process = None
