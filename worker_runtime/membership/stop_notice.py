"""A stop notice as one worker meets it: as SIGUSR2, which its agent is told of, and as a file that its agent has made.

A notice that comes to a worker is its host's: the worker passes the signal on, and decides nothing. Of one for the job
the sequencer tells all ranks at the same place; a rank that is alone has none, and looks for the file.
"""

import os
import signal
import threading
from contextlib import suppress
from functools import partial
from pathlib import Path

from worker_runtime.membership.agent_watch import find_listener
from worker_runtime.rendezvous import Bootstrap, name_stop_file
from worker_runtime.startup.parent_process import read_start


class StopNotice:
    """Of one process."""

    def __init__(self) -> None:
        self._file: Path | None = None
        self._has_handler = False

    def prepare(self, job: Bootstrap | None) -> None:
        """This process is a worker of that job; None for no job.

        A program that has a handler of SIGUSR2, or ignores it, keeps that; and so does one that sets it later.
        """
        self._file = None if job is None else name_stop_file(job.socket)
        is_main = threading.current_thread() is threading.main_thread()
        if job is None or self._has_handler or not is_main or signal.getsignal(signal.SIGUSR2) is not signal.SIG_DFL:
            return
        agent = find_listener(job.socket, 0.0)
        if agent:  # else it is hidden from here
            signal.signal(signal.SIGUSR2, partial(_pass_on, agent, read_start(agent)))
            self._has_handler = True

    def has_come(self) -> bool:
        """A notice has come for the job, as far as this host knows."""
        return self._file is not None and self._file.exists()


def _pass_on(agent: int, started: bytes, *_: object) -> None:
    if started and read_start(agent) == started:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(agent, signal.SIGUSR2)
