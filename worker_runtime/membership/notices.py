"""What a worker and its agent tell each other by notices: that the job is to stop, and that this worker fails.

A stop notice that comes to a worker is its host's: the worker passes the signal on to its agent, and decides nothing.
The sequencer tells all ranks of a notice for the job at the same place. A rank that is alone has no sequencer, and
looks for the file that its agent has made.

A worker whose program has failed tells the agent immediately: to end its process may take seconds. The others continue
without it, or are ended, from that moment on. A worker that has heard of the end of another before tells nothing: that
end is the cause, and may become known later than this one.
"""

import os
import signal
import threading
from collections.abc import Callable
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from worker_runtime.membership.agent_watch import find_listener
from worker_runtime.rendezvous import Bootstrap, RendezvousError, name_stop_file
from worker_runtime.startup.exit_code import ExitCode
from worker_runtime.startup.parent_process import read_start

if TYPE_CHECKING:
    from worker_runtime.rendezvous import WorkerClient


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


class FailureNotice:
    """Of one process.

    Args:
        connect: makes a client.
        follows_another: another worker's end was told to this one.

    returncode: with which the program has failed; None where it has not, or that is not known.
    """

    def __init__(self, connect: Callable[[Bootstrap], "WorkerClient"], follows_another: Callable[[], bool]) -> None:
        self.returncode: int | None = None
        self._connect = connect
        self._follows_another = follows_another
        self._job: Bootstrap | None = None
        self._exit_code: ExitCode | None = None

    def prepare(self, job: Bootstrap | None) -> None:
        """This process is a worker of that job, and from now on tells it; None for no job."""
        self._job = job
        if job is not None and self._exit_code is None:
            self._exit_code = ExitCode()
            # Before any function of atexit, since those of the program may take long.
            with suppress(RuntimeError):  # where the program joins in one of these
                threading._register_atexit(self._tell)  # type: ignore[attr-defined]  # noqa: SLF001 - nothing else is called before

    def _tell(self) -> None:
        """The program has ended."""
        self.returncode = None if self._exit_code is None else self._exit_code.find_failure()
        if self.returncode is None or self._job is None or self._follows_another():
            return
        # Where the agent has gone, or does not answer in time, it sees the end of the process or nothing.
        with closing(self._connect(self._job)) as client, suppress(RendezvousError):
            client.fail(self.returncode)
