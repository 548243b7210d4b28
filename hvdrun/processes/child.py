"""A child process that its parent reaps by itself: how it is started and killed, and the file that takes its output."""

import os
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence

from hvdrun.processes import processes

_TAIL_BYTES = 16 * 1024


def start_child(
    command: Sequence[str],
    streams: tuple[int, int, int],
    *,
    directory: str,
    environment: Mapping[bytes, bytes],
    executable: str | None = None,
    descriptors: Sequence[int] = (),
) -> int:
    """Start a process that leads a session of its own; its pid.

    Args:
        command: its words.
        streams: its standard input, output and error, which stay the caller's.
        directory: where it runs.
        environment: all that it has.
        executable: the file; None: the first word of the command.
        descriptors: that it gets besides, under their numbers.

    Raises:
        OSError: it cannot be started.
    """
    stdin, stdout, stderr = streams
    process = subprocess.Popen(
        command,
        executable=executable,
        cwd=directory,
        env=environment,
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        pass_fds=descriptors,
        start_new_session=True,
    )
    process.returncode = 0  # its parent waits for all children: Popen must not wait for this one
    return process.pid


def kill_child(pid: int) -> bool:
    """SIGKILL a child of this process; False where there is none of this number, or it was reaped."""
    process = processes.look(pid)
    if process is None or process.parent != os.getpid():
        return False
    processes.kill(process, signal.SIGKILL)
    return True


class OutputFile:
    """Takes what a child writes. A pipe that nobody reads would hold up a child that writes much.

    The file has no name, and is on the disk: not every Python can make one in memory.
    """

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - closed in close()
        self._tail = b""  # once the file is closed

    def fileno(self) -> int:
        """The descriptor to start the child with; it stays this object's."""
        return self._file.fileno()

    def read_tail(self) -> bytes:
        """The end of what was written, until this object was closed."""
        if self._file.closed:
            return self._tail
        size = os.fstat(self.fileno()).st_size
        return os.pread(self.fileno(), _TAIL_BYTES, max(0, size - _TAIL_BYTES))

    def read_last_line(self) -> str:
        """The last line that was written; "" when there is none."""
        return self.read_tail().decode(errors="replace").strip().rpartition("\n")[2]

    def close(self) -> None:
        """Close the descriptor; the child keeps its own."""
        self._tail = self.read_tail()
        self._file.close()
