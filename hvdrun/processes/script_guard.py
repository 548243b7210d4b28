"""Ends the run of the user's script that hvdrun leaves when it is killed: a guardian like the agents' does that.

A run is known by its session, and by the name in its environment wherever it went. One guardian lasts as long as the
script is asked; a run of it each second would cost too much.
"""

import contextlib
import os
import secrets
import subprocess
import sys
from collections.abc import Mapping
from types import TracebackType
from typing import Self

from hvdrun.processes import processes
from rendezvous.bootstrap import INCARNATION, JOB, SLOT

_STARTS = 10  # a guardian that dies again and again is not killed by chance


class ScriptGuard:
    """Keeps a guardian beside hvdrun while it is entered; where none can be started, it does without.

    own: the environment of hvdrun.
    environment: that of each run.
    """

    def __init__(self, own: Mapping[str, str]) -> None:
        around = processes.name_origin(own)
        token = secrets.token_hex(8)
        self._origin = f"{around}/{token}" if around else token  # what runs inside a worker is that worker's as well
        kept = {name: value for name, value in own.items() if name not in {SLOT, INCARNATION}}
        self.environment = {**kept, JOB: self._origin}
        self._starts_left = _STARTS
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self._start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Nothing is left to guard."""
        del kind, error, traceback
        self._tell("done")
        self._end()

    @property
    def pid(self) -> int | None:
        """Of the guardian; None while there is none."""
        return None if self._process is None else self._process.pid

    def add(self, pid: int) -> None:
        """A run has been started that leads the session `pid`."""
        if self._process is None or self._process.poll() is not None:
            self._end()
            self._start()
        process = processes.look(pid)
        self._tell(f"session {pid} {0 if process is None else process.started}")

    def remove(self, pid: int) -> None:
        """It has ended."""
        self._tell(f"end {pid}")

    def _start(self) -> None:
        if self._starts_left == 0:
            return
        self._starts_left -= 1
        with contextlib.suppress(OSError):
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "hvdrun.processes.guardian", self._origin],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                cwd=os.sep,
            )
            if self._process.stdin is not None:
                os.set_blocking(self._process.stdin.fileno(), False)

    def _tell(self, line: str) -> None:
        if self._process is not None and self._process.stdin is not None:
            try:
                os.write(self._process.stdin.fileno(), f"{line}\n".encode())  # as a whole, or not at all
            except BrokenPipeError:
                pass  # it was killed; the next run starts another
            except BlockingIOError:
                self._process.kill()  # it is stopped, and its pipe full

    def _end(self) -> None:
        if self._process is None:
            return
        process, self._process = self._process, None
        process.kill()  # it has nothing more to do, and may be stopped
        if process.stdin is not None:
            process.stdin.close()
        process.wait()
