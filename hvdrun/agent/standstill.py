"""Finds workers of an elastic job that stand still for good: stopped, or dead while a part of them lives on.

A worker that runs or sleeps is alive, however long it takes: a C call may hold Python's lock for minutes. One that is
stopped (SIGSTOP) or a zombie (its main thread has ended, others have not) for longer than the lease takes part in
nothing, while the others wait for it. It is ended, so that they go on without it. A process that a debugger has stopped
shows another state, and is left alone.
"""

import asyncio
import time
from collections.abc import Callable
from typing import NoReturn, Protocol

from hvdrun.agent import processes
from hvdrun.agent.processes import Process
from rendezvous.core.model import Worker

LOOK_SECONDS = 0.25
_STOPPED, _ZOMBIE = "T", "Z"
_SLEEP_SHARE = 0.5  # of a lease between two looks: this process did not run meanwhile, and nor did the workers
_LEAST_SLEEP_SECONDS = 1.0  # a look may be late on a busy machine


class Workers(Protocol):
    """Who has the workers (`hvdrun.agent.watch.Watch`)."""

    def list_living(self) -> tuple[tuple[Worker, int], ...]:
        """Those that have not been seen to end, with their pids."""

    def put_down(self, worker: Worker, error: str) -> None:
        """End one, for this reason."""


class Standstill:
    """Looks at the workers of one host; belongs to one event loop."""

    def __init__(
        self,
        workers: Workers,
        lease_seconds: float,
        *,
        look: Callable[[int], Process | None] = processes.look,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._workers = workers
        self._lease_seconds = lease_seconds
        self._look_at = look
        self._clock = clock
        self._since: dict[Worker, float] = {}
        self._looked = clock()

    async def run(self) -> NoReturn:
        """Look until cancelled."""
        while True:
            await asyncio.sleep(min(LOOK_SECONDS, self._lease_seconds / 4))
            self.look()

    def look(self) -> None:
        """Look once, and end whoever has stood still for the lease."""
        now = self._clock()
        if now - self._looked > max(_SLEEP_SHARE * self._lease_seconds, _LEAST_SLEEP_SECONDS):
            self._since.clear()
        self._looked = now
        still: dict[Worker, float] = {}
        for worker, pid in self._workers.list_living():
            process = self._look_at(pid)
            if process is None or process.state not in (_STOPPED, _ZOMBIE):
                continue
            still[worker] = self._since.get(worker, now)
            if now - still[worker] > self._lease_seconds:
                self._workers.put_down(worker, self._explain(worker, process.state))
        self._since = still

    def _explain(self, worker: Worker, state: str) -> str:
        lease = f"for longer than the lease of {self._lease_seconds:g} s (--lease)"
        if state == _STOPPED:
            return f"the worker {worker} was stopped {lease}"
        return f"the main thread of the worker {worker} had ended, and others had not, {lease}"
