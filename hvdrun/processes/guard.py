"""The agent's side of the guardian: starts it, tells it of sessions, and starts another when it is killed."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from hvdrun.processes import processes
from hvdrun.processes.folder import hide

_STARTS = 10  # a guardian that dies again and again is not killed by chance, and must not be all that this host does


class Guard:
    """Keeps a guardian beside the agent, as long as the agent lives; belongs to one event loop.

    A guardian that does not read (it may be stopped) is not waited for: what it is to know is kept.

    silence_seconds: an agent that is stopped for longer is killed by its guardian; None: it may be stopped.
    warn: takes a sentence for the user.
    """

    def __init__(
        self,
        origin: str,
        folder: Path,
        silence_seconds: float | None = None,
        warn: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._arguments = (origin, str(folder), str(hide(folder)))
        self._silence_seconds = silence_seconds
        self._sessions: dict[int, int] = {}
        self._warn = warn
        self._starts_left = _STARTS
        self._unread = bytearray()  # by the guardian
        self._is_waiting = False  # until there is room in its pipe
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

        Where that fails, the agent goes on without, and says so.
        """
        self._forget()
        reason = f"{_STARTS} were killed"
        if self._starts_left > 0:
            try:
                self._start()
            except OSError as error:
                reason = f"none can be started ({error.strerror})"
        if self._process is None:
            self._warn(f"no guardian ends what is left here, should the agent be killed: {reason}")
        for pid, started in self._sessions.items():
            self._tell(f"session {pid} {started}")

    def dismiss(self) -> None:
        """The agent leaves in good order; nothing is left to guard."""
        self._tell("done")
        self._forget()

    def _start(self) -> None:
        self._starts_left -= 1
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "hvdrun.processes.guardian", *self._arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            cwd="/",
        )
        if self._process.stdin is not None:
            os.set_blocking(self._process.stdin.fileno(), False)
        agent = processes.look(os.getpid())
        if agent is not None:
            self._tell(f"agent {agent.pid} {agent.started}")
        if self._silence_seconds is not None:
            self._tell(f"lease {self._silence_seconds}")

    def _tell(self, line: str) -> None:
        if self._process is not None:
            waits = bool(self._unread)
            self._unread += f"{line}\n".encode()
            if not waits:
                self._write()

    def _write(self) -> None:
        """Write what the guardian has not read; when its pipe is full, the rest later."""
        if self._process is None or self._process.stdin is None:
            return
        pipe = self._process.stdin.fileno()
        try:
            del self._unread[: os.write(pipe, self._unread)]
        except BlockingIOError:
            pass
        except BrokenPipeError:  # it was killed; the agent hears of it and calls replace()
            self._unread.clear()
        if self._unread:
            asyncio.get_running_loop().add_writer(pipe, self._write)
        elif self._is_waiting:
            asyncio.get_running_loop().remove_writer(pipe)
        self._is_waiting = bool(self._unread)

    def _forget(self) -> None:
        if self._process is None:
            return
        if self._process.stdin is not None:
            if self._is_waiting:
                asyncio.get_running_loop().remove_writer(self._process.stdin.fileno())
            self._process.stdin.close()
        self._unread.clear()
        self._is_waiting = False
        self._process.returncode = 0  # the agent reaps all its children itself; Popen must not try
        self._process = None
