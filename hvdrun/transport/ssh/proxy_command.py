"""The command of the ssh configuration that connects to a host."""

import contextlib
import os
import signal
import socket
import subprocess

from hvdrun.processes.child import OutputFile
from hvdrun.transport.ssh.ssh_errors import JumpFailedError

_CLOSE_SECONDS = 2.0  # for a process to end after a signal


class ProxyCommand:
    """A running ProxyCommand.

    Args:
        host: the host that it leads to.
        command: the line for the user's shell.

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
                [os.environ.get("SHELL") or "/bin/sh", "-c", f"exec {command}"],
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
        """End the command, for up to a few seconds; return the last line that it wrote, else how it ended."""
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
