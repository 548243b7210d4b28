"""The user's ProxyCommand: a program whose standard input and output are the connection to the host."""

import contextlib
import os
import signal
import socket
import subprocess

from hvdrun.processes.child import OutputFile
from hvdrun.transport.ssh.failures import JumpFailedError
from hvdrun.transport.ssh.match_commands import find_shell

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
