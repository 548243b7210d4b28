"""The watchdog's client: starts the watchdog, reports sessions to it, and starts another when it is killed.

An agent has one, and so has hvdrun while it runs its discovery script.
"""

import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from hvdrun.processes import processes
from hvdrun.processes.folder import hide
from rendezvous.bootstrap import INCARNATION, JOB, SLOT

_STARTS = 10  # a watchdog that dies again and again is not killed by chance, and must not be all that this host does


class Watchdog:
    """Keeps a watchdog beside this process, for as long as this process lives.

    A watchdog that does not read is stopped, and is killed: the next one is told all that it has to know.

    Args:
        origin: of all that it ends.
        folder: the agent's; None: no process is an agent, and the sessions are all there is.
        silence_seconds: an agent that is stopped for longer is killed; None: it may be stopped.
        warn: takes a sentence for the user.
    """

    def __init__(
        self,
        origin: str,
        folder: Path | None = None,
        silence_seconds: float | None = None,
        warn: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._arguments = (origin,) if folder is None else (origin, str(folder), str(hide(folder)))
        self._has_agent = folder is not None
        self._silence_seconds = silence_seconds
        self._sessions: dict[int, int] = {}
        self._warn = warn
        self._starts_left = _STARTS
        self._process: subprocess.Popen[bytes] | None = None
        self._start()

    @property
    def pid(self) -> int | None:
        """Of the watchdog; None while there is none."""
        return None if self._process is None else self._process.pid

    def owns(self, pid: int) -> bool:
        """Whether this process is the watchdog, whose end is reported by `replace`."""
        return self.pid == pid

    def has_ended(self) -> bool:
        """Reap the watchdog if it has ended; for a parent that does not reap all its children itself."""
        return self._process is None or self._process.poll() is not None

    def add(self, pid: int) -> None:
        """A process was started that leads the session `pid`."""
        process = processes.look(pid)
        self._sessions[pid] = 0 if process is None else process.started
        self._send(f"session {pid} {self._sessions[pid]}")

    def remove(self, pid: int) -> None:
        """All processes of the session have ended."""
        self._sessions.pop(pid, None)
        self._send(f"end {pid}")

    def replace(self) -> None:
        """The watchdog was killed and reaped: start another, and tell it the same.

        Where that fails, this process continues without a watchdog, and warns.
        """
        self._forget()
        reason = f"{_STARTS} were killed"
        if self._starts_left > 0:
            try:
                self._start()
            except OSError as error:
                reason = f"none can be started ({error.strerror})"
        if self._process is None:
            self._warn(f"no watchdog ends what is left here, should the agent be killed: {reason}")
        for pid, started in self._sessions.items():
            self._send(f"session {pid} {started}")

    def end(self) -> None:
        """End the watchdog, and wait for its end: nothing is left that it would have to end."""
        if self._process is not None:
            self._process.kill()  # it may be stopped
            self._process.wait()
        self._forget()

    def _start(self) -> None:
        self._starts_left -= 1
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "hvdrun.processes.watchdog_process", *self._arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            cwd="/",
        )
        if self._process.stdin is not None:
            os.set_blocking(self._process.stdin.fileno(), False)
        agent = processes.look(os.getpid()) if self._has_agent else None
        if agent is not None:
            self._send(f"agent {agent.pid} {agent.started}")
        if self._silence_seconds is not None:
            self._send(f"lease {self._silence_seconds}")

    def _send(self, line: str) -> None:
        if self._process is not None and self._process.stdin is not None:
            try:
                os.write(self._process.stdin.fileno(), f"{line}\n".encode())  # as a whole, or not at all
            except BrokenPipeError:
                pass  # it was killed, and will be replaced
            except BlockingIOError:
                os.kill(self._process.pid, signal.SIGKILL)  # it is stopped, and its pipe is full

    def _forget(self) -> None:
        if self._process is not None:
            if self._process.stdin is not None:
                self._process.stdin.close()
            if self._has_agent:
                self._process.returncode = 0  # known to Popen as ended, since an agent reaps all its children itself
            self._process = None


class ScriptWatchdog:
    """Ends the run of the user's script that hvdrun leaves when it is killed; without one where none can be started.

    A run is known by its session, and by the name in its environment wherever it went. One watchdog lasts as long as
    this is entered: one for each run, every second, would cost too much.

    own: the environment of hvdrun.
    environment: that of each run.
    """

    def __init__(self, own: Mapping[str, str]) -> None:
        around = processes.name_origin(own)
        token = secrets.token_hex(8)
        self._origin = f"{around}/{token}" if around else token  # what runs inside a worker is that worker's as well
        kept = {name: value for name, value in own.items() if name not in {SLOT, INCARNATION}}
        self.environment = {**kept, JOB: self._origin}
        self._watchdog: Watchdog | None = None

    def __enter__(self) -> Self:
        with suppress(OSError):
            self._watchdog = Watchdog(self._origin)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        del kind, error, traceback
        if self._watchdog is not None:
            self._watchdog.end()

    @property
    def pid(self) -> int | None:
        """Of the watchdog; None while there is none."""
        return None if self._watchdog is None else self._watchdog.pid

    def add(self, pid: int) -> None:
        """A run was started that leads the session `pid`."""
        if self._watchdog is not None:
            if self._watchdog.has_ended():
                self._watchdog.replace()
            self._watchdog.add(pid)

    def remove(self, pid: int) -> None:
        """The run has ended."""
        if self._watchdog is not None:
            self._watchdog.remove(pid)
