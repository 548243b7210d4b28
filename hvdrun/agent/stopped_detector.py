"""Detects processes of the agent that are stopped for longer than the lease, while others wait for them.

In an elastic job such a worker is killed, so that the others continue without it. The sequencer and the forkserver are
killed, too, and replaced. In a static job no process can be replaced, and a user may have stopped the workers on
purpose. There the agent only reports a stopped sequencer, which a user would not look for.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import NoReturn, Protocol

from hvdrun.processes import processes
from hvdrun.processes.processes import Process
from hvdrun.processes.stopped import STOPPED, StoppedProcesses

LOOK_SECONDS = 0.1
_LOOKS_COST_AT_MOST = 0.01  # of the time: there may be a thousand workers to look at
_LATE_SECONDS = 0.01  # so that the lease has run out by then


class Owner(Protocol):
    """A part of the agent that has processes, as `hvdrun.agent.watch.Watch`."""

    def list_living(self) -> tuple[tuple[int, str], ...]:
        """The pid and the name of each process that was not reaped yet."""

    def note_stopped(self, pid: int, reason: str) -> None:
        """Act on a process that is stopped; called again until it has ended or continues."""


class StoppedDetector:
    """Looks at the processes of these owners; belongs to one event loop.

    Args:
        owners: of the processes.
        lease_seconds: how long a process may be stopped.
        look: reads the state of one process.
        clock: monotonic, in seconds.
    """

    def __init__(
        self,
        owners: Sequence[Owner],
        lease_seconds: float,
        *,
        look: Callable[[int], Process | None] = processes.look,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._owners = owners
        self._lease_seconds = lease_seconds
        self._stopped = StoppedProcesses(lease_seconds, look=look, clock=clock)
        self._clock = clock
        self._pause_seconds = min(LOOK_SECONDS, lease_seconds / 4)

    async def run(self) -> NoReturn:
        """Look until cancelled."""
        while True:
            await asyncio.sleep(self.find_pause())
            self.look()

    def find_pause(self) -> float:
        """Seconds until the next look: often, and when the lease of a stopped process runs out."""
        left = [limit + _LATE_SECONDS - self._clock() for limit in self._stopped.list_limits()]
        return min([self._pause_seconds, *(seconds for seconds in left if seconds > 0)])

    def look(self) -> None:
        """Look once, and report each process that was stopped for the lease."""
        began = self._clock()
        living = {pid: (owner, name) for owner in self._owners for pid, name in owner.list_living()}
        for pid, process in self._stopped.find(living).items():
            owner, name = living[pid]
            owner.note_stopped(pid, self._explain(name, process.state))
        cost_seconds = self._clock() - began
        self._pause_seconds = min(max(LOOK_SECONDS, cost_seconds / _LOOKS_COST_AT_MOST), self._lease_seconds / 4)

    def _explain(self, name: str, state: str) -> str:
        lease = f"for longer than the lease of {self._lease_seconds:g} s (--lease)"
        if state == STOPPED:
            return f"{name} was stopped {lease}"
        return f"the main thread of {name} exited, but other threads kept running {lease}"
