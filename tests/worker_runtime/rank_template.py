"""A process that has imported torch, and forks those that play ranks: the import takes longer than most tests."""

import array
import atexit
import functools
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Self

from tests.house.sources import ROOT
from tests.waiting import LIMIT_SECONDS

SCRIPT = Path(__file__).with_name("rank_process.py")
OUTPUTS = (1, 2)
MOST_BYTES = 1 << 18  # of a request, most of it the variables
STATUS = array.array("i", [0]).itemsize


class RankProcess:
    """A forked process, with the methods of `subprocess.Popen` that tests use.

    Args:
        pid: its number.
        pidfd: its descriptor; readable when it has ended.
        status: a pipe; the template writes the status of its end there.
    """

    def __init__(self, pid: int, pidfd: int, status: int) -> None:
        self.pid = pid
        self._pidfd = pidfd
        self._status = status
        self._code: int | None = None

    def poll(self) -> int | None:
        """The exit code, or the negative number of the signal that has ended it; None while it runs."""
        return self._read(0.0)

    def wait(self, limit_seconds: float) -> int:
        """Wait for the end, and return the exit code as `poll` does.

        Raises:
            TimeoutError: it has not ended within the limit.
        """
        code = self._read(limit_seconds)
        if code is None:
            raise TimeoutError(f"rank process {self.pid} has not ended within {limit_seconds} s")
        return code

    def send_signal(self, number: signal.Signals) -> None:
        """Send it a signal, unless it has ended."""
        if self.poll() is None:
            signal.pidfd_send_signal(self._pidfd, number)

    def kill(self) -> None:
        """Send SIGKILL, unless it has ended."""
        self.send_signal(signal.SIGKILL)

    def _read(self, limit_seconds: float) -> int | None:
        if self._code is None:
            poller = select.poll()
            poller.register(self._status, select.POLLIN)
            if not poller.poll(1000 * limit_seconds):
                return None
            status = os.read(self._status, STATUS)
            self._code = os.waitstatus_to_exitcode(array.array("i", status)[0]) if status else -signal.SIGKILL
            for descriptor in (self._status, self._pidfd):
                os.close(descriptor)
        return self._code


class RankTemplate:
    """The process that forks ranks. The kernel ends it, and its ranks, with this process."""

    def __init__(self) -> None:
        own, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._line = own
        # Where only a wheel is installed, nothing else leads to the modules of tests.
        self._path = {"PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))}
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, SCRIPT, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                start_new_session=True,
                env=os.environ | self._path,
            )

    @classmethod
    @functools.cache
    def find(cls) -> Self:
        """The template of this process; it is started once."""
        template = cls()
        atexit.register(template.close)
        return template

    def fork(self, rank: int, descriptors: list[int], variables: dict[str, str]) -> RankProcess:
        """Start the process of a rank, with the folder, the outputs and the variables of this one.

        Args:
            rank: its number.
            descriptors: its connection, its readable pipe and its writable ones.
            variables: these are added.
        """
        request = pickle.dumps((rank, Path.cwd(), os.environ | self._path | variables))
        assert len(request) < MOST_BYTES
        socket.send_fds(self._line, [request], [*OUTPUTS, *descriptors])
        poller = select.poll()
        poller.register(self._line, select.POLLIN)
        assert poller.poll(1000 * LIMIT_SECONDS), "the template of the ranks does not answer"
        pid, (pidfd, status), _, _ = socket.recv_fds(self._line, MOST_BYTES, 2)
        return RankProcess(int(pid), pidfd, status)

    def close(self) -> None:
        """End the template, once its ranks have ended."""
        self._line.close()
        self._process.wait(LIMIT_SECONDS)
