"""The watchdog's client: starts the watchdog, reports sessions to it, and starts another when it was killed.

An agent has a watchdog, and so has hvdrun while it uses a discovery script.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

from hvdrun.processes import processes
from hvdrun.processes.child import Children
from hvdrun.processes.folder import hide
from rendezvous.bootstrap import INCARNATION, JOB, SLOT

_END_SECONDS = 5.0  # for the watchdog to be gone after SIGKILL
_STARTS = 10  # starts after which something seems to kill every watchdog; more would only load this host


class Watchdog:
    """Keeps a watchdog beside this process, as long as this process lives.

    A watchdog that does not read is stopped. It is killed, and its successor gets all that it had to know.

    Args:
        origin: the origin of all processes that the watchdog kills.
        folders: the agent's, which the watchdog removes; none: this process is no agent.
        silence_seconds: the watchdog kills an agent that is stopped for longer; None: it may be stopped.
        warn: takes a sentence for the user.
        children: reports the watchdog's end; None: the caller reaps it.
    """

    def __init__(
        self,
        origin: str,
        folders: Sequence[Path] = (),
        silence_seconds: float | None = None,
        warn: Callable[[str], None] = lambda _: None,
        children: Children | None = None,
    ) -> None:
        self._arguments = (origin, *(str(path) for folder in folders for path in (folder, hide(folder))))
        self._has_agent = bool(folders)
        self._silence_seconds = silence_seconds
        self._sessions: dict[int, int] = {}
        self._warn = warn
        self._children = children
        self._starts_left = _STARTS
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """The watchdog's pid; None while there is none."""
        if self._process is None:
            return None
        return self._process.pid

    def owns(self, pid: int) -> bool:
        """Whether this process is the watchdog."""
        return self.pid == pid

    def start(self) -> None:
        """Start it.

        Raises:
            OSError: it cannot be started.
        """
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
        if self._children is not None:
            self._children.watch(self._process.pid, lambda _: self.replace())

        agent = None
        if self._has_agent:
            agent = processes.look(os.getpid())
        if agent is not None:
            self._send(f"agent {agent.pid} {agent.started}")
        if self._silence_seconds is not None:
            self._send(f"lease {self._silence_seconds}")

    def add(self, pid: int) -> None:
        """Report a process that was started and leads the session `pid`."""
        process = processes.look(pid)
        self._sessions[pid] = 0
        if process is not None:
            self._sessions[pid] = process.started
        self._send(f"session {pid} {self._sessions[pid]}")

    def remove(self, pid: int) -> None:
        """Report that all processes of the session have ended."""
        self._sessions.pop(pid, None)
        self._send(f"end {pid}")

    def replace(self) -> None:
        """Start another watchdog after one was killed and reaped, and report the same sessions to it.

        Where that fails, this process warns, and continues without a watchdog.
        """
        self._forget()
        reason = f"{_STARTS} were killed"
        if self._starts_left > 0:
            try:
                self.start()
            except OSError as error:
                reason = f"none can be started ({error.strerror})"
        if self._process is None:
            self._warn(f"if the agent is killed, no watchdog kills its workers on this host: {reason}")
        for pid, started in self._sessions.items():
            self._send(f"session {pid} {started}")

    def end(self) -> None:
        """Kill the watchdog, and wait for its end; to be called when nothing is left for it."""
        if self._process is not None:
            if self._children is not None:
                self._children.forget(self._process.pid)
            self._process.kill()  # it may be stopped
            with suppress(subprocess.TimeoutExpired):  # the kernel ends it later
                self._process.wait(_END_SECONDS)
        self._forget()

    def _send(self, line: str) -> None:
        if self._process is not None and self._process.stdin is not None:
            try:
                os.write(self._process.stdin.fileno(), f"{line}\n".encode())  # the whole line, or nothing
            except BrokenPipeError:
                # The watchdog was killed, and is replaced soon.
                pass
            except BlockingIOError:
                os.kill(self._process.pid, signal.SIGKILL)  # the watchdog is stopped, and its pipe is full

    def _forget(self) -> None:
        if self._process is not None:
            if self._process.stdin is not None:
                self._process.stdin.close()
            if self._has_agent:
                self._process.returncode = 0  # Popen must not wait for it: an agent reaps all its children
            self._process = None


class ScriptWatchdog(Watchdog):
    """Kills the run of the discovery script that a killed hvdrun leaves; does nothing where no watchdog can be started.

    A run is known by its session, and by an origin in its environment. One watchdog serves all runs while this object
    is entered: one for each run, every second, would cost too much.

    Args:
        own: the environment of hvdrun.

    environment: the environment of each run.
    """

    def __init__(self, own: Mapping[str, str]) -> None:
        origin = processes.name_job(own)
        super().__init__(origin)
        self._origin = origin
        self._since = processes.find_own_start()
        kept = {name: value for name, value in own.items() if name not in {SLOT, INCARNATION}}
        self.environment = {**kept, JOB: origin}

    def __enter__(self) -> Self:
        self.replace()
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def add(self, pid: int) -> None:
        """Report a run that was started and leads the session `pid`."""
        if self._process is None or self._process.poll() is not None:
            self.replace()
        super().add(pid)

    def kill_strays(self) -> None:
        """Kill what a run that has ended has started in other sessions, and what earlier runs have."""
        for process in processes.running():
            if processes.comes_from(process, self._origin, self._since):
                processes.kill(process, signal.SIGKILL)
