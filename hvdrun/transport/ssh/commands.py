"""The commands of the ssh configuration: those of `Match exec`, and ProxyCommand."""

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
_CLOSE_SECONDS = 2.0  # for a process to end after a signal


def find_shell() -> str:
    """The shell that ssh uses for the commands of its configuration."""
    return os.environ.get("SHELL") or "/bin/sh"


class MatchCommands:
    """Runs the commands of `Match exec`, each once for a host; several threads may call it.

    A command leads a session, so that its limit and `close` end all its processes.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._results: dict[tuple[str, str], Future[bool]] = {}
        self._running: set[subprocess.Popen[bytes]] = set()
        self._is_closed = False

    def succeeds(self, host: str, command: str) -> bool:
        """The command of this host ends with 0; a second caller waits for the first one's command."""
        with self._lock:
            result = self._results.get((host, command))
            is_first = result is None
            if result is None:
                result = self._results[host, command] = Future()
        if is_first:
            try:
                result.set_result(self._run(command))
            except (OSError, ValueError):  # no such shell, no more processes, or the command has a null character
                result.set_result(False)
            except BaseException as error:
                result.set_exception(error)
                raise
        return result.result()

    def close(self) -> None:
        """Kill the commands that run; start no more."""
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
            with contextlib.suppress(subprocess.TimeoutExpired):  # the kernel ends it later
                process.wait(_CLOSE_SECONDS)


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill the session of a process that has not been reaped."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)


class ProxyCommand:
    """A running ProxyCommand.

    socket: connected with the command's standard input and output.
    has_failed: after `close`: the command had ended by itself, with another exit code than 0.

    paramiko.ProxyCommand has no limit for a write, and no shell.
    """

    def __init__(self, host: str, command: str) -> None:
        self._errors = OutputFile()
        try:
            ours, theirs = socket.socketpair()
        except OSError:
            self._errors.close()
            raise
        try:
            self._process = subprocess.Popen(  # as ssh does; its session is killed as a whole
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
        """End the command; the last line that it wrote, else how it ended. Blocks for up to a few seconds."""
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
            with contextlib.suppress(ProcessLookupError):  # its group has ended
                os.killpg(self._process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):  # the next signal follows
                self._process.wait(_CLOSE_SECONDS)
                return
