"""Ends all that is left of workers; one look at /proc serves every worker that waits for it.

A look costs a read or two for each process of the machine. One look for each worker would make the end of n workers
cost n * n: a minute for a thousand. So one loop looks for all workers that have ended or are to be killed, for as
long as there are any. Its looks take at most half of the agent's time.
"""

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Container
from dataclasses import dataclass

from hvdrun.processes import processes
from hvdrun.processes.background import supervise
from hvdrun.processes.processes import KillLoop, Process
from rendezvous.core.model import Worker

REAP_SECONDS = 2.0  # how long a killed process may take to be gone
CLEAN_LOOKS = 2
_PAUSE_SECONDS = 0.002  # at least; no event tells of the end of a process that is not our child


@dataclass(slots=True)
class _Ended:
    """A worker that was reaped, and whose remains are looked for."""

    pid: int
    tell: Callable[[], None]
    loop: KillLoop


class Reaper:
    """Kills what belongs to workers of one host; belongs to one event loop.

    lives: the pids of the workers that have not been reaped, as they are at each look.
    fail: takes an error of the agent's own, after which there are no more looks.
    """

    def __init__(self, job: str, host: str, lives: Container[int], fail: Callable[[BaseException], None]) -> None:
        self._origin = processes.name_agent_origin(job, host)
        self._began = processes.find_own_start()
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
        ended = _Ended(pid, tell, KillLoop(REAP_SECONDS, CLEAN_LOOKS))
        self._ended[processes.name_worker_origin(self._job, worker)] = ended
        self._begin()

    async def finish(self) -> None:
        """Wait until no worker is looked for any more."""
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
        """Look once: kill what is left of the workers in question, and report those of which nothing is left."""
        doomed, self._doomed = self._doomed, {}
        # The number of a reaped worker without processes may be a new worker's.
        sessions = {ended.pid: origin for origin, ended in self._ended.items() if ended.pid not in self._lives} | doomed
        found: dict[str, list[Process]] | None
        try:
            found = self._find(sessions, doomed)
        except OSError:  # no descriptor is left for a look: the ends that are under way free some
            self._doomed |= doomed
            found = None
        if found is not None:
            for origin in set(doomed.values()) - self._ended.keys():
                KillLoop(REAP_SECONDS, CLEAN_LOOKS).kill(found[origin])
        for origin, ended in tuple(self._ended.items()):
            ended.loop.kill(None if found is None else found[origin])
            if ended.loop.is_done:
                del self._ended[origin]
                ended.tell()

    def _find(self, sessions: dict[int, str], doomed: dict[int, str]) -> dict[str, list[Process]]:
        """The processes of each worker, by its origin."""
        found = defaultdict(list)
        for process in processes.running():
            found[self._find_origin(process, sessions, doomed)].append(process)
        return found

    def _find_origin(self, process: Process, sessions: dict[int, str], doomed: dict[int, str]) -> str:
        """The origin of the worker that a process belongs to: is itself, has the session of, or was started from."""
        if process.pid in doomed:  # a worker that was just forked leads no session yet
            return doomed[process.pid]
        if process.session in sessions:
            return sessions[process.session]
        if process.session in self._lives:  # nobody can enter the session of another worker
            return ""
        if process.started < self._began:  # before this agent: its environment need not be read
            return ""
        return processes.cut_worker_origin(processes.read_origin(process), self._origin)
