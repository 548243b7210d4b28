"""Finds processes that others wait for and that stand still for good: stopped, or dead while a part of them lives on.

A worker that runs or sleeps is alive, however long it takes: a C call may hold Python's lock for minutes. One that is
stopped (SIGSTOP) or a zombie (its main thread has ended, others have not) for longer than the lease takes part in
nothing, while the others wait for it. In an elastic job it is ended, so that they go on without it; and so are the
sequencer and the forkserver, which are replaced. In a static job nobody can be replaced, and a user may have stopped
the workers himself: there it is only said of the sequencer, which no user thinks of. A process that a debugger has
stopped shows another state, and is left alone.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import NoReturn, Protocol

from hvdrun.processes import processes
from hvdrun.processes.processes import Process

LOOK_SECONDS = 0.1
_LOOKS_COST_AT_MOST = 0.01  # of the time: there may be a thousand workers to look at
_LATE_SECONDS = 0.01  # so that the lease is over by then
_STOPPED, _ZOMBIE = "T", "Z"
_SLEEP_SHARE = 0.5  # of a lease between two looks: this process did not run meanwhile, and nor did the others
_LEAST_SLEEP_SECONDS = 1.0  # a look may be late on a busy machine


class Owner(Protocol):
    """Who has some of these processes, such as `hvdrun.agent.watch.Watch`."""

    def list_living(self) -> tuple[tuple[int, str], ...]:
        """Those that have not been seen to end, by pid, and what to call them."""

    def put_down(self, pid: int, error: str) -> None:
        """One stands still, for this reason; told until it has ended or goes on."""


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
        self._look_at = look
        self._clock = clock
        self._since: dict[tuple[int, str], float] = {}  # by pid and state: one that was put down is a zombie at first
        self._looked = clock()
        self._pause_seconds = min(LOOK_SECONDS, lease_seconds / 4)

    async def run(self) -> NoReturn:
        """Look until cancelled."""
        while True:
            await asyncio.sleep(self.find_pause())
            self.look()

    def find_pause(self) -> float:
        """Seconds until the next look is due: often, and when somebody's lease is over."""
        left = [since + self._lease_seconds + _LATE_SECONDS - self._clock() for since in self._since.values()]
        return min([self._pause_seconds, *(seconds for seconds in left if seconds > 0)])

    def look(self) -> None:
        """Look once, and tell of whoever has stood still for the lease."""
        now = self._clock()
        if now - self._looked > max(_SLEEP_SHARE * self._lease_seconds, _LEAST_SLEEP_SECONDS):
            self._since.clear()
        self._looked = now
        still: dict[tuple[int, str], float] = {}
        for owner in self._owners:
            for pid, name in owner.list_living():
                process = self._look_at(pid)
                if process is None or process.state not in (_STOPPED, _ZOMBIE):
                    continue
                key = (pid, process.state)
                still[key] = self._since.get(key, now)
                if now - still[key] > self._lease_seconds:
                    owner.put_down(pid, self._explain(name, process.state))
        self._since = still
        cost_seconds = self._clock() - now
        self._pause_seconds = min(max(LOOK_SECONDS, cost_seconds / _LOOKS_COST_AT_MOST), self._lease_seconds / 4)

    def _explain(self, name: str, state: str) -> str:
        lease = f"for longer than the lease of {self._lease_seconds:g} s (--lease)"
        if state == _STOPPED:
            return f"{name} was stopped {lease}"
        return f"the main thread of {name} had ended, and others had not, {lease}"
