"""What becomes of the agent's processes that stand still for longer than the lease, while others wait for them.

In an elastic job such a worker is ended, so that the others continue without it; and so are the sequencer and the
forkserver, which are replaced. In a static job no process can be replaced, and a user may have stopped the workers:
there the agent only reports that the sequencer stands still, which no user thinks of.
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
_LATE_SECONDS = 0.01  # so that the lease is over by then


class Owner(Protocol):
    """A part of the agent that has such processes, as `hvdrun.agent.watch.Watch`."""

    def list_living(self) -> tuple[tuple[int, str], ...]:
        """Those that have not been seen to end: the pid and the name of each."""

    def put_down(self, pid: int, error: str) -> None:
        """A process stands still, for this reason; called until it has ended or continues."""


class Standstill:
    """Looks at these owners' processes on one host; belongs to one event loop."""

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
        """Seconds until the next look is due: often, and when a lease is over."""
        left = [limit + _LATE_SECONDS - self._clock() for limit in self._stopped.list_limits()]
        return min([self._pause_seconds, *(seconds for seconds in left if seconds > 0)])

    def look(self) -> None:
        """Look once, and report each process that has stood still for the lease."""
        began = self._clock()
        living = {pid: (owner, name) for owner in self._owners for pid, name in owner.list_living()}
        for pid, process in self._stopped.find(living).items():
            owner, name = living[pid]
            owner.put_down(pid, self._explain(name, process.state))
        cost_seconds = self._clock() - began
        self._pause_seconds = min(max(LOOK_SECONDS, cost_seconds / _LOOKS_COST_AT_MOST), self._lease_seconds / 4)

    def _explain(self, name: str, state: str) -> str:
        lease = f"for longer than the lease of {self._lease_seconds:g} s (--lease)"
        if state == STOPPED:
            return f"{name} was stopped {lease}"
        return f"the main thread of {name} had ended, and others had not, {lease}"
