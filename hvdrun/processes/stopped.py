"""Finds processes that stand still for good: stopped, or dead while a part of them lives on.

A process that runs or sleeps is alive, however long it takes: a C call may hold Python's lock for minutes. One that is
stopped (SIGSTOP), or a zombie whose main thread has ended while others have not, takes part in nothing. A process that
a debugger has stopped shows another state, and is left alone. Light: the watchdog imports it.
"""

import time
from collections.abc import Callable, Iterable

from hvdrun.processes import processes
from hvdrun.processes.clock import SuspensionClock
from hvdrun.processes.processes import Process

STOPPED, ZOMBIE = "T", "Z"
_LEAST_SUSPENSION_SECONDS = 1.0


class StoppedProcesses:
    """Remembers since when processes stand still.

    Args:
        limit_seconds: for how long they may.
        states: that count.
        look: reads a process by its number.
        clock: seconds of a clock that never goes back.
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
        self._since: dict[tuple[int, int, str], float] = {}  # by pid, start and state: the killed are zombies at first

    def find(self, pids: Iterable[int]) -> dict[int, Process]:
        """The processes among these that have stood still for longer than the limit; to be asked often."""
        if self._clock.look():
            self._since.clear()
        still: dict[tuple[int, int, str], float] = {}
        found: dict[int, Process] = {}
        for pid in pids:
            process = self._look(pid)
            if process is None or process.state not in self._states:
                continue
            key = pid, process.started, process.state
            still[key] = self._since.get(key, self._clock.now)
            if self._clock.now - still[key] > self._limit_seconds:
                found[pid] = process
        self._since = still
        return found

    def list_limits(self) -> list[float]:
        """When the limits of those that stand still are reached, in seconds of the clock."""
        return [since + self._limit_seconds for since in self._since.values()]
