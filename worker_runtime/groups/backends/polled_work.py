"""Waiting for libraries that cannot be waited for with a time limit, nor be interrupted."""

import threading
import time
from datetime import timedelta

from worker_runtime.groups.torch_groups import Work

# Most operations of UCC end within this time, and sleeping would take longer; whoever waits gives way meanwhile.
_SPIN_SECONDS = 0.0002
_PAUSE_SECONDS = 0.00005
_LONGEST_PAUSE_SECONDS = 0.001


class PolledWork:
    """A piece of communication that is looked at until it has ended, so that signals and interruptions get through.

    UCC's own wait takes no time limit and uses a core; there is nothing to be woken by.

    Args:
        work: the library's.
        interruption: when set, the work counts as failed, whatever becomes of it.
        limit: how long a wait without a limit may take.
    """

    def __init__(self, work: Work, interruption: threading.Event, limit: timedelta) -> None:
        self._work = work
        self._interruption = interruption
        self._limit = limit

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait for its end.

        Raises:
            RuntimeError: it failed, was interrupted, or did not end in time.
        """
        limit = timeout or self._limit
        now = time.monotonic()
        spun, deadline = now + _SPIN_SECONDS, now + limit.total_seconds()
        pause = _PAUSE_SECONDS
        while not self._work.is_completed():
            now = time.monotonic()
            if now >= deadline:
                raise RuntimeError(f"it did not end within {limit.total_seconds():g} s")
            if now < spun and not self._interruption.is_set():
                time.sleep(0)
            elif self._interruption.wait(min(pause, deadline - now)):
                raise RuntimeError("it was interrupted, since a peer was lost or the job ends")
            else:
                pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
        return self._work.wait()

    def is_completed(self) -> bool:
        """Whether it has ended, well or not, or nobody waits for it any more."""
        return self._interruption.is_set() or self._work.is_completed()

    @property
    def is_running(self) -> bool:
        """The library still has its hands on the tensors."""
        return not self._work.is_completed()
