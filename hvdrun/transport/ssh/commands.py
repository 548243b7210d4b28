"""Runs the commands of the ssh configuration: those of `Match exec`, and ProxyCommand."""

import contextlib
import os
import signal
import socket
import subprocess
import threading
from concurrent.futures import Future

from hvdrun.processes.child import OutputFile
from hvdrun.transport.ssh.failures import JumpFailedError

LIMIT_SECONDS = 10.0


def find_shell() -> str:
    """The shell in which ssh runs the commands of its configuration."""
    return os.environ.get("SHELL") or "/bin/sh"


class MatchCommands:
    """The commands that have run or are running; for use from many threads.

    A command runs in a session of its own, so that it ends as a whole: at its limit, and with `close`.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._verdicts: dict[tuple[str, str], Future[bool]] = {}
        self._running: set[subprocess.Popen[bytes]] = set()
        self._is_closed = False

    def succeeds(self, host: str, command: str) -> bool:
        """The command of this host has ended with 0; who asks while it runs waits for it."""
        with self._lock:
            verdict = self._verdicts.get((host, command))
            is_first = verdict is None
            if verdict is None:
                verdict = self._verdicts[host, command] = Future()
        if is_first:
            try:
                verdict.set_result(self._run(command))
            except (OSError, ValueError):  # no such shell, no process is to be had, or the command has a null character
                verdict.set_result(False)
        return verdict.result()

    def close(self) -> None:
        """End the commands that run; none is started any more."""
        with self._lock:
            self._is_closed = True
            for process in self._running:
                _kill(process)

    def _run(self, command: str) -> bool:
        with self._lock:
            if self._is_closed:
                return False
            process = subprocess.Popen(
                [find_shell(), "-c", command],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            self._running.add(process)
        try:
            return process.wait(LIMIT_SECONDS) == 0
        except subprocess.TimeoutExpired:
            return False
        finally:
            with self._lock:
                self._running.discard(process)
                if process.returncode is None:
                    _kill(process)
            process.wait()


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a process that has not been reaped, and what it has started."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)


_CLOSE_SECONDS = 2.0


class ProxyCommand:
    """A running command; `socket` is its other end.

    A real socket, so that paramiko's limits hold; paramiko's own class for this knows no limit for a write.
    """

    def __init__(self, host: str, command: str) -> None:
        self._errors = OutputFile()
        try:
            ours, theirs = socket.socketpair()
        except OSError:
            self._errors.close()
            raise
        try:
            self._process = subprocess.Popen(  # ssh runs it so as well; in a session of its own, to be ended as a whole
                [find_shell(), "-c", f"exec {command}"],
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=self._errors.fileno(),
                start_new_session=True,
            )
        except OSError as error:
            ours.close()
            self._errors.close()
            raise JumpFailedError(host, "its ProxyCommand", str(error)) from error
        finally:
            theirs.close()
        self.socket = ours
        self.has_failed = False

    def close(self) -> str:
        """End the command; what it had to say, if it ended by itself. Blocks for a moment."""
        self.socket.close()
        try:
            code: int | None = self._process.wait(_CLOSE_SECONDS / 10)
        except subprocess.TimeoutExpired:
            code = None
            self._end()
        self.has_failed = code is not None and code != 0
        self._errors.close()
        return self._errors.read_last_line() or f"it ended with exit code {code}"

    def _end(self) -> None:
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_CLOSE_SECONDS)
                return
