"""Kills all processes that are left of workers; one look at /proc serves all workers.

A look reads one or two files for each process of the machine. With one look for each worker the end of n workers would
cost n * n reads: a minute for a thousand. So one loop looks for all workers that have ended or must be killed. Its
looks take at most half of the agent's time.
"""

import asyncio
import os
import time
from collections import defaultdict
from collections.abc import Callable, Container
from dataclasses import dataclass

from hvdrun.processes import processes
from hvdrun.processes.background import start_task
from hvdrun.processes.processes import KillLoop, Process
from rendezvous.core.model import Worker

REAP_SECONDS = 2.0  # how long a killed process may take to be gone
CLEAN_LOOKS = 2
_PAUSE_SECONDS = 0.002  # at least; no event reports the end of a process that is not a child


@dataclass(slots=True)
class _Ended:
    """A worker that was reaped, of which processes may be left."""

    pid: int
    done: Callable[[], None]
    loop: KillLoop


class Reaper:
    """Kills the processes of workers on one host; belongs to one event loop.

    Args:
        job, host: their names, which the workers' environments have.
        lives: the pids of the workers that were not reaped yet; the owner keeps it up to date.
    """

    def __init__(self, job: str, host: str, lives: Container[int]) -> None:
        self._origin = processes.name_agent_origin(job, host)
        self._began = processes.find_own_start()
        self._job = job
        self._lives = lives
        self._to_kill: dict[int, str] = {}  # the pids of live workers, and their origins
        self._ended: dict[str, _Ended] = {}  # by origin
        self._work: asyncio.Task[None] | None = None

    def kill(self, worker: Worker, pid: int) -> None:
        """SIGKILL a live worker, and all processes that belong to it, at the next look."""
        self._to_kill[pid] = processes.name_worker_origin(self._job, worker)
        self._begin()

    def clear(self, worker: Worker, pid: int, done: Callable[[], None]) -> None:
        """SIGKILL what is left of a worker that was reaped, and call `done` when nothing is left."""
        self._to_kill.pop(pid, None)
        ended = _Ended(pid, done, KillLoop(REAP_SECONDS, CLEAN_LOOKS))
        self._ended[processes.name_worker_origin(self._job, worker)] = ended
        self._begin()

    async def clear_all(self, keeps: Callable[[int], bool]) -> None:
        """SIGKILL all that this process has started, and the orphans that it has adopted, until nothing is left.

        Args:
            keeps: whether the process with this pid is spared.
        """
        loop = KillLoop(REAP_SECONDS, CLEAN_LOOKS)
        while not loop.is_done:
            loop.kill([process for process in processes.running() if self._is_ours(process, keeps)])
            await asyncio.sleep(_PAUSE_SECONDS)

    def _is_ours(self, process: Process, keeps: Callable[[int], bool]) -> bool:
        own = os.getpid()
        is_orphan = process.parent == own and not keeps(process.pid)
        return process.pid != own and (is_orphan or processes.comes_from(process, self._origin, self._began))

    async def finish(self) -> None:
        """Wait until nothing is left to kill."""
        while self._work is not None and not self._work.done():
            await asyncio.wait({self._work})

    def _begin(self) -> None:
        if self._work is None or self._work.done():
            self._work = start_task(self._run(), "kill what workers leave")

    async def _run(self) -> None:
        while self._to_kill or self._ended:
            began = time.monotonic()
            self._look()
            await asyncio.sleep(max(_PAUSE_SECONDS, time.monotonic() - began))

    def _look(self) -> None:
        """Look once: kill what is left of the workers, and report those of which nothing is left."""
        to_kill, self._to_kill = self._to_kill, {}
        # The pid of a reaped worker without processes may be a new worker's.
        reaped = {ended.pid: origin for origin, ended in self._ended.items() if ended.pid not in self._lives}
        found: dict[str, list[Process]] | None
        try:
            found = self._find(reaped | to_kill, to_kill)
        except OSError:  # no descriptor is left for a look; workers that end free some
            self._to_kill |= to_kill
            found = None

        if found is not None:
            for origin in set(to_kill.values()) - self._ended.keys():
                KillLoop(REAP_SECONDS, CLEAN_LOOKS).kill(found[origin])

        for origin, ended in tuple(self._ended.items()):
            ended.loop.kill(None if found is None else found[origin])
            if ended.loop.is_done:
                del self._ended[origin]
                ended.done()

    def _find(self, sessions: dict[int, str], to_kill: dict[int, str]) -> dict[str, list[Process]]:
        """The processes of each worker, by its origin."""
        found = defaultdict(list)
        for process in processes.running():
            found[self._find_origin(process, sessions, to_kill)].append(process)
        return found

    def _find_origin(self, process: Process, sessions: dict[int, str], to_kill: dict[int, str]) -> str:
        """The origin of the worker to which a process belongs, by its pid, its session or its environment."""
        # A worker leads no session yet right after its fork.
        if process.pid in to_kill:
            return to_kill[process.pid]
        if process.session in sessions:
            return sessions[process.session]
        # No process can enter the session of another worker.
        if process.session in self._lives:
            return ""
        # Before this agent: its environment need not be read.
        if process.started < self._began:
            return ""
        return processes.cut_worker_origin(processes.read_origin(process), self._origin)
