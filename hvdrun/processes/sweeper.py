"""Ends all that is left of workers; one look at /proc serves every worker that waits for it.

A look costs a read or two for each process of the machine. One look for each worker would make the end of n workers
cost n * n: a minute for a thousand. So whoever ends, or is to be killed, is put down, and the looks go on for as long
as somebody is; they take at most half of the agent's time.
"""

import asyncio
import signal
import time
from collections.abc import Callable, Container
from dataclasses import dataclass

from hvdrun.processes import processes
from hvdrun.processes.processes import Process
from hvdrun.processes.supervision import supervise
from rendezvous.core.model import Worker

SWEEP_SECONDS = 2.0  # how long a killed process may take to be gone (an uninterruptible one may take for ever)
CLEAN_LOOKS = 2  # a process that is just being executed shows no environment
_PAUSE_SECONDS = 0.002  # at least; no event tells of the end of a process that is not our child


@dataclass(slots=True)
class _Ended:
    """A worker that was reaped, and whose remains are looked for."""

    worker: Worker
    pid: int
    deadline: float
    tell: Callable[[], None]
    looks: int = 0
    clean_looks: int = 0

    def spares_cleaners(self, now: float) -> bool:
        """What removes the worker's files from /dev/shm may still go by itself."""
        return now < self.deadline - SWEEP_SECONDS + processes.CLEANER_SECONDS

    def is_done(self, now: float) -> bool:
        """Nothing is left of it, or what is left cannot be ended."""
        return self.clean_looks >= CLEAN_LOOKS or (self.looks >= CLEAN_LOOKS and now >= self.deadline)


class Sweeper:
    """Kills what belongs to workers of one host; belongs to one event loop.

    lives: the pids of the workers that have not been reaped, as they are at each look.
    fail: takes an error of the agent's own, after which nobody is looked for.
    """

    def __init__(self, job: str, host: str, lives: Container[int], fail: Callable[[BaseException], None]) -> None:
        self._origin = processes.name_agent_origin(job, host)
        self._job = job
        self._lives = lives
        self._fail = fail
        self._doomed: dict[int, str] = {}  # the pids of living workers, and their origins
        self._ended: dict[str, _Ended] = {}  # by origin
        self._work: asyncio.Task[None] | None = None

    def kill(self, worker: Worker, pid: int) -> None:
        """SIGKILL the worker, which lives, and whatever belongs to it, at the next look."""
        self._doomed[pid] = processes.name_worker_origin(self._job, worker)
        self._begin()

    def clear(self, worker: Worker, pid: int, tell: Callable[[], None]) -> None:
        """SIGKILL what is left of a worker that was reaped, and `tell` when nothing is any more."""
        self._doomed.pop(pid, None)
        deadline = time.monotonic() + SWEEP_SECONDS
        self._ended[processes.name_worker_origin(self._job, worker)] = _Ended(worker, pid, deadline, tell)
        self._begin()

    async def finish(self) -> None:
        """Return when everybody has been looked for."""
        while self._work is not None:
            await asyncio.wait({self._work})

    def _begin(self) -> None:
        if self._work is None:
            self._work = supervise(asyncio.create_task(self._run()), self._fail)

    async def _run(self) -> None:
        try:
            while self._doomed or self._ended:
                began = time.monotonic()
                self._look()
                await asyncio.sleep(max(_PAUSE_SECONDS, time.monotonic() - began))
        finally:
            self._work = None

    def _look(self) -> None:
        """Kill whatever belongs to those who are put down, and tell of those of whom nothing is left."""
        doomed, self._doomed = self._doomed, {}
        # The number of a reaped worker without processes may be a new worker's.
        sessions = {ended.pid: origin for origin, ended in self._ended.items() if ended.pid not in self._lives} | doomed
        wanted = {*doomed.values(), *self._ended}
        try:
            found = self._kill_all(wanted, sessions, doomed)
        except OSError:  # no file is to be had for a look: the ends that are under way give some back
            found = wanted
            self._doomed |= doomed
        now = time.monotonic()
        for origin, ended in tuple(self._ended.items()):
            ended.looks += 1
            ended.clean_looks = 0 if origin in found else ended.clean_looks + 1
            if ended.is_done(now):
                del self._ended[origin]
                ended.tell()

    def _kill_all(self, wanted: set[str], sessions: dict[int, str], doomed: dict[int, str]) -> set[str]:
        """Kill every process of these origins, cleaners last; the origins that had one."""
        found: set[str] = set()
        now = time.monotonic()
        for process in processes.running():
            origin = self._find_origin(process, sessions, doomed)
            if origin in wanted:
                found.add(origin)
                ended = self._ended.get(origin)
                if (ended is not None and not ended.spares_cleaners(now)) or not processes.is_cleaner(process):
                    processes.kill(process, signal.SIGKILL)
        return found

    def _find_origin(self, process: Process, sessions: dict[int, str], doomed: dict[int, str]) -> str:
        """The origin of the worker that a process belongs to: is itself, has the session of, or was started from."""
        if process.pid in doomed:  # a worker that was just forked leads no session yet
            return doomed[process.pid]
        if process.session in sessions:
            return sessions[process.session]
        if process.session in self._lives:  # nobody can enter the session of another worker
            return ""
        return processes.cut_worker_origin(processes.read_origin(process), self._origin)
