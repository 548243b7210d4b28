"""Detects that this process was suspended, and that others are stopped (SIGSTOP), or that only their main thread ended.

A process that runs or sleeps counts as alive, however long it is silent: a C call may hold Python's lock for minutes. A
process that a debugger has stopped shows another state, and is left alone. This module imports little, since the
watchdog imports it.
"""

import time
from collections.abc import Callable, Iterable

from hvdrun.processes import processes
from hvdrun.processes.processes import Process

STOPPED, ZOMBIE = "T", "Z"
_SUSPENSION_SHARE = 0.5
_LEAST_SUSPENSION_SECONDS = 1.0


class SuspensionClock:
    """Detects from the time between two looks that this process was stopped, or its machine suspended.

    The processes that it watches may not have run either. `rendezvous.core.membership.advance` has this rule for the
    rendezvous, since that pure package cannot import a clock.

    Args:
        span_seconds: the time limit that the owner measures. Looks are frequent: half of the limit between two looks is
            a suspension.
        least_seconds: a shorter time is no suspension, since a look may be late on a busy machine.
        clock: a monotonic clock.

    now: the time of the last look.
    """

    def __init__(
        self, span_seconds: float, least_seconds: float = 0.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.now = clock()
        self._gap_seconds = max(_SUSPENSION_SHARE * span_seconds, least_seconds)
        self._clock = clock

    def look(self) -> bool:
        """Read the clock; returns whether this process was suspended since the last look."""
        before, self.now = self.now, self._clock()
        return self.now - before > self._gap_seconds


class StoppedProcesses:
    """Records since when processes are stopped.

    Args:
        limit_seconds: how long they may be.
        states: the states that count.
        look: reads a process by its pid.
        clock: a monotonic clock.
    """

    def __init__(
        self,
        limit_seconds: float,
        *,
        states: str = STOPPED + ZOMBIE,
        look: Callable[[int], Process | None] = processes.look,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._limit_seconds = limit_seconds
        self._states = states
        self._look = look
        self._clock = SuspensionClock(limit_seconds, _LEAST_SUSPENSION_SECONDS, clock)
        # By pid, start and state: a killed process is a zombie at first.
        self._since: dict[tuple[int, int, str], float] = {}

    def find(self, pids: Iterable[int]) -> dict[int, Process]:
        """The processes among these that are stopped for longer than the limit; to be called often."""
        if self._clock.look():
            self._since.clear()
        stopped: dict[tuple[int, int, str], float] = {}
        found: dict[int, Process] = {}
        for pid in pids:
            process = self._look(pid)
            if process is None or process.state not in self._states:
                continue
            key = pid, process.started, process.state
            stopped[key] = self._since.get(key, self._clock.now)
            if self._clock.now - stopped[key] > self._limit_seconds:
                found[pid] = process
        self._since = stopped
        return found

    def list_limits(self) -> list[float]:
        """The times at which stopped processes reach the limit, on the clock."""
        return [since + self._limit_seconds for since in self._since.values()]
