"""The workers of this host: starts each once, ends them on order, and tells of every end, once nothing of it is left.

The agent is a child subreaper: it reaps its workers itself, and what they leave behind becomes its own child. When a
worker ends, in whatever way, its whole session is ended first and the end told then: a forked child of a dead worker
would hold its sockets open, and its peers would wait for it.
"""

import asyncio
import ctypes
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from hvdrun.agent import processes
from hvdrun.agent.guard import Guard
from hvdrun.agent.input import InputFeed
from hvdrun.agent.output import OutputForwarder
from hvdrun.agent.processes import Process
from hvdrun.agent.spawn import Spawned, Spawner
from hvdrun.errors import CANNOT_LAUNCH, HvdrunError
from rendezvous.core.effects import Launch, Terminate
from rendezvous.core.events import Exited
from rendezvous.core.model import Worker
from rendezvous.orders import OutputStream

SWEEP_SECONDS = 2.0  # how long a killed process may take to be gone (an uninterruptible one may take for ever)
_PAUSE_SECONDS = 0.002
_CLEAN_LOOKS = 2  # a process that is just being executed shows no environment
_PR_SET_CHILD_SUBREAPER = 36


@dataclass(slots=True)
class _Live:
    """A worker that has not ended."""

    worker: Worker
    pid: int
    kill_at: float | None = None
    timer: asyncio.TimerHandle | None = field(default=None)


class Watch:
    """Starts, watches and ends the workers of one host; belongs to one event loop."""

    def __init__(
        self, job: str, host: str, spawner: Spawner, output: OutputForwarder, *, feed: InputFeed, guard: Guard
    ) -> None:
        self._job = job
        self._host = host
        self._spawner = spawner
        self._output = output
        self._feed = feed
        self._guard = guard
        self._live: dict[int, _Live] = {}
        self._ending: set[Worker] = set()
        self._started: set[Worker] = set()
        self._starting: dict[Worker, asyncio.Task[None]] = {}
        self._early_orders: dict[Worker, Terminate] = {}  # for workers that are being started
        self._unclaimed: dict[int, int] = {}  # ends of children that may be such workers
        self._ended: dict[Worker, Exited] = {}
        self._sweeps: set[asyncio.Task[None]] = set()
        self._closing = False
        self.changed = asyncio.Event()

    def open(self) -> None:
        """Begin to reap; to be called before the first launch."""
        _adopt_orphans()
        asyncio.get_running_loop().add_signal_handler(signal.SIGCHLD, self._reap)

    def running(self) -> tuple[Worker, ...]:
        """The workers that have been started and whose end is not known yet."""
        return (*self._starting, *(live.worker for live in self._live.values()), *self._ending)

    def ended(self) -> tuple[Exited, ...]:
        """The ends that have not been acknowledged."""
        return tuple(self._ended.values())

    def acknowledge(self, ends: tuple[Exited, ...]) -> None:
        """The server knows of these ends."""
        for end in ends:
            self._ended.pop(end.worker, None)

    def launch(self, launch: Launch) -> None:
        """Start this worker, unless this incarnation has been started before."""
        worker = launch.worker
        if worker in self._started or self._closing:
            return
        self._started.add(worker)
        start = asyncio.create_task(self._start(launch))
        self._starting[worker] = start
        self.changed.set()

    def terminate(self, order: Terminate) -> None:
        """SIGTERM for the worker's process group, SIGKILL for all of it after the grace; the earliest order counts."""
        if order.worker in self._starting:
            self._early_orders[order.worker] = order
        for live in self._live.values():
            if live.worker == order.worker:
                self._terminate(live, order.grace_seconds)

    async def close(self) -> None:
        """Kill every worker that is left, and return when all are gone, orphans included."""
        self._closing = True
        for start in self._starting.values():
            start.cancel()
        await asyncio.gather(*self._starting.values(), return_exceptions=True)
        for live in tuple(self._live.values()):
            self._terminate(live, 0.0)
        await self._spawner.close()
        await self._sweep(self._is_anything_of_ours)
        while self._sweeps:
            await asyncio.wait(self._sweeps)
        asyncio.get_running_loop().remove_signal_handler(signal.SIGCHLD)

    async def _start(self, launch: Launch) -> None:
        worker = launch.worker
        try:
            spawned = await self._spawner.spawn(launch)
        except HvdrunError as error:
            self._ended[worker] = Exited(worker, error.exit_code, str(error))
        except OSError as error:  # no more files or processes are to be had
            reason = f"hvdrun cannot start a worker on {self._host}: {error.strerror}"
            self._ended[worker] = Exited(worker, CANNOT_LAUNCH, reason)
        else:
            self._take(worker, spawned)
            if spawned.stdin is not None:
                await self._feed.open(spawned.stdin)
        finally:
            del self._starting[worker]
            if not self._starting:
                self._unclaimed.clear()
        self.changed.set()

    def _take(self, worker: Worker, spawned: Spawned) -> None:
        """A worker lives, or has lived: its end may have come before the news of its birth."""
        live = self._live[spawned.pid] = _Live(worker, spawned.pid)
        self._guard.add(spawned.pid)
        self._output.add(worker, OutputStream.STDOUT, spawned.stdout)
        self._output.add(worker, OutputStream.STDERR, spawned.stderr)
        if spawned.pid in self._unclaimed:
            self._note_end(spawned.pid, self._unclaimed.pop(spawned.pid))
        elif worker in self._early_orders:
            self._terminate(live, self._early_orders.pop(worker).grace_seconds)

    def _terminate(self, live: _Live, grace_seconds: float) -> None:
        kill_at = time.monotonic() + grace_seconds
        if live.kill_at is None and grace_seconds > 0:
            try:
                os.killpg(live.pid, signal.SIGTERM)
            except ProcessLookupError:  # just forked, it does not lead a group yet
                os.kill(live.pid, signal.SIGTERM)
        if live.kill_at is not None and live.kill_at <= kill_at:
            return
        live.kill_at = kill_at
        if live.timer is not None:
            live.timer.cancel()
        live.timer = asyncio.get_running_loop().call_later(grace_seconds, processes.kill_all, self._owner(live))

    def _reap(self) -> None:
        """Take in every child that has ended: workers, the guardian, orphans that came to us."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid in self._live:
                self._note_end(pid, status)
            elif self._guard.owns(pid):
                if not self._closing:
                    self._guard.replace()
            elif self._starting:
                self._unclaimed[pid] = status

    def _note_end(self, pid: int, status: int) -> None:
        live = self._live.pop(pid)
        self._ending.add(live.worker)
        sweep = asyncio.create_task(self._end(live, os.waitstatus_to_exitcode(status)))
        self._sweeps.add(sweep)
        sweep.add_done_callback(self._sweeps.discard)

    async def _end(self, live: _Live, returncode: int) -> None:
        """What a worker's end takes: nothing of it may be left when it is told."""
        if live.timer is not None:
            live.timer.cancel()
        await self._sweep(self._owner(live))
        self._guard.remove(live.pid)
        self._ending.discard(live.worker)
        self._ended[live.worker] = Exited(live.worker, returncode)
        self.changed.set()

    async def _sweep(self, belongs: Callable[[Process], bool]) -> None:
        deadline = time.monotonic() + SWEEP_SECONDS
        clean_looks = 0
        while clean_looks < _CLEAN_LOOKS and time.monotonic() < deadline:
            clean_looks = 0 if processes.kill_all(belongs) else clean_looks + 1
            await asyncio.sleep(_PAUSE_SECONDS)  # no event tells of the end of a process that is not our child

    def _owner(self, live: _Live) -> Callable[[Process], bool]:
        """Whether a process is this worker itself, of its session, or started from it."""
        origin = processes.name_worker_origin(self._job, live.worker)

        def belongs(process: Process) -> bool:
            is_itself = process.pid == live.pid and live.pid in self._live  # once reaped, the number may be another's
            return is_itself or process.session == live.pid or processes.comes_from(process, origin)

        return belongs

    def _is_anything_of_ours(self, process: Process) -> bool:
        """Whether a process was started from here at all, or is an orphan that came to this process."""
        is_orphan = process.parent == os.getpid() and not self._guard.owns(process.pid)
        return is_orphan or processes.comes_from(process, processes.name_agent_origin(self._job, self._host))


def _adopt_orphans() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER) failed")
