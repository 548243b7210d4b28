"""Tells the agent that this worker fails as soon as its program has failed: to end its process may take seconds yet.

The others go on without it, or are ended, from that moment on. A worker that has been told of the end of another before
says nothing: the other's end is the cause, and may come to be known later than this one's.
"""

import threading
from collections.abc import Callable
from contextlib import closing, suppress
from typing import Protocol

from worker_runtime.rendezvous import Bootstrap, RendezvousError
from worker_runtime.startup.exit_code import ExitCode


class Telling(Protocol):
    """A client of the rendezvous (`rendezvous.client.WorkerClient`)."""

    def fail(self, returncode: int) -> None:
        """Say that this process will end with this code."""

    def close(self) -> None:
        """End the connection to the agent."""


class FailureNotice:
    """Of one process.

    Args:
        connect: makes a client.
        follows_another: another worker's end was told to this one.

    returncode: with which the program has failed; None where it has not, or that is not known.
    """

    def __init__(self, connect: Callable[[Bootstrap], Telling], follows_another: Callable[[], bool]) -> None:
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
