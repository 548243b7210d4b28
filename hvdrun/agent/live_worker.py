"""A worker that was started and not reaped yet, and the signals that end it."""

import asyncio
import os
import resource
import signal
import time
from collections.abc import Callable

from rendezvous.core.model import Worker

_NO_CORE = 1  # a limit of 0 bytes does not count where the kernel pipes cores to a program


class LiveWorker:
    """Times the signals for one worker; belongs to one event loop.

    Args:
        worker, pid: the worker, and its main process.
        kill: sends SIGKILL to the worker and to all that it has started.

    error: why the agent has killed it; None where it has not.
    has_left: its program had ended without a failure before it was stopped.
    lets_save: what it leaves is asked to end before it is killed.
    """

    def __init__(self, worker: Worker, pid: int, kill: Callable[[Worker, int], None]) -> None:
        self.worker = worker
        self.pid = pid
        self.error: str | None = None
        self.has_left = False
        self.lets_save = False
        self._kill = kill
        self._kill_at: float | None = None
        self._timers: list[asyncio.TimerHandle] = []

    @property
    def is_stopping(self) -> bool:
        """The worker was asked to end."""
        return self._kill_at is not None

    def terminate(self, grace_seconds: float, first: int = signal.SIGTERM, *, lets_save: bool = False) -> None:
        """Signal its process group, and kill it after the grace; the earliest order counts.

        first: the signal; SIGTERM follows SIGINT at half of the grace.
        lets_save: only the worker itself gets it, and its group SIGTERM at half of the grace.
        """
        if self._kill_at is None and grace_seconds > 0:
            self.lets_save = lets_save
            if lets_save:
                os.kill(self.pid, first)  # a child that was not reaped
            else:
                self._signal(first)
            if lets_save or first == signal.SIGINT:
                self._call_later(grace_seconds / 2, self._signal, signal.SIGTERM)
        self.kill_after(grace_seconds)

    def kill_after(self, grace_seconds: float) -> None:
        """Kill it after the grace, unless an earlier time was ordered."""
        kill_at = time.monotonic() + grace_seconds
        if self._kill_at is None or kill_at < self._kill_at:
            self._kill_at = kill_at
            self._call_later(grace_seconds, self._kill, self.worker, self.pid)

    def forget(self) -> None:
        """Send no more signals, since it was reaped: another process may have its pid."""
        for timer in self._timers:
            timer.cancel()

    def _call_later(self, seconds: float, function: Callable[..., object], *arguments: object) -> None:
        self._timers.append(asyncio.get_running_loop().call_later(seconds, function, *arguments))

    def _signal(self, number: int) -> None:
        if number == signal.SIGABRT:
            forbid_core(self.pid)
        try:
            os.killpg(self.pid, number)
        except ProcessLookupError:  # just forked, it does not lead a group yet
            os.kill(self.pid, number)


def forbid_core(pid: int) -> None:
    """Have a process dump no core when it is aborted: its traceback is all that is wanted."""
    _, hard = resource.prlimit(pid, resource.RLIMIT_CORE)
    limit = _NO_CORE
    if hard != resource.RLIM_INFINITY:
        limit = min(_NO_CORE, hard)
    resource.prlimit(pid, resource.RLIMIT_CORE, (limit, hard))


def terminate_group(pid: int) -> bool:
    """Ask what is left of a worker's process group to end; False if nothing is."""
    try:
        os.killpg(pid, signal.SIGTERM)
    except OSError:  # the group is empty, or another user's
        return False
    return True
