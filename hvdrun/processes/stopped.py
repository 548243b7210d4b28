"""Finds processes that are stopped (SIGSTOP) for too long, or whose main thread has ended while other threads live.

A process that runs or sleeps counts as alive, however long it is silent: a C call may hold Python's lock for minutes. A
process that a debugger has stopped shows another state, and is left alone. This module imports little, since the
watchdog imports it.
"""

import time
from collections.abc import Callable, Iterable

from hvdrun.processes import processes
from hvdrun.processes.clock import SuspensionClock
from hvdrun.processes.processes import Process

STOPPED, ZOMBIE = "T", "Z"
_LEAST_SUSPENSION_SECONDS = 1.0


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
