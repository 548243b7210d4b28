"""The workers of this host: starts each once, ends them on order, and tells of every end.

The agent is a child subreaper: it reaps its workers itself, and what they leave behind becomes its own child. When a
worker ends, in whatever way, its whole session is ended: a forked child of a dead worker would hold its sockets, its
files and the memory of its GPU. In a job that goes on without it the end is told at once, since its peers wait for no
more than that, and nobody is started in its slot before nothing of it is left. In others its peers will be ended
because of it: there its end is told when nothing of it is left, so that they have heard of it by their connections.
A worker that says itself that it fails has its end told then in every job: Python may take seconds to end after that,
for which it has the grace.

Of thousands of workers only a few are started at a time, so that orders are obeyed and ends seen meanwhile, and none
while the imports that all shall share are still made; whoever waits for its turn when its end is ordered is never
started.

Long because each order and each end may come in every state of a worker.
"""

import asyncio
import ctypes
import os
import signal
from collections import OrderedDict
from collections.abc import Callable
from typing import NoReturn

from hvdrun.agent.live_worker import LiveWorker
from hvdrun.agent.resource_limits import ResourceLimits
from hvdrun.agent.spawn import Spawned, Spawner
from hvdrun.agent.streams import InputFeed, OutputForwarder
from hvdrun.errors import CANNOT_LAUNCH, HvdrunError
from hvdrun.processes import processes
from hvdrun.processes.background import supervise
from hvdrun.processes.processes import KillLoop, Process
from hvdrun.processes.reaper import CLEAN_LOOKS, REAP_SECONDS, Reaper
from hvdrun.processes.watchdog import Watchdog
from rendezvous.core.messages import Exited, Launch, Terminate
from rendezvous.core.model import Slot, Worker
from rendezvous.wire.orders import Alert, OutputStream

STARTS_AT_ONCE = 16
NOT_STARTED = "it was not started any more"
_PAUSE_SECONDS = 0.002
_PR_SET_CHILD_SUBREAPER = 36


class Watch:
    """Starts, watches and ends the workers of one host; belongs to one event loop.

    outlives_losses: the job goes on without a worker that fails.
    grace_seconds: for a worker that fails to end.
    claim: is told of each child that was reaped and is neither a worker nor the watchdog, by its pid and status, and
        says whether it was somebody's.
    failure: takes an error of the agent's own, which ends it.
    is_noticed: a stop notice has come to this host.
    """

    def __init__(
        self,
        job: str,
        host: str,
        spawner: Spawner,
        output: OutputForwarder,
        *,
        feed: InputFeed,
        watchdog: Watchdog,
        outlives_losses: bool = False,
        grace_seconds: float = 0.0,
        claim: Callable[[int, int], bool] = lambda _pid, _status: False,
    ) -> None:
        self._job = job
        self._host = host
        self._spawner = spawner
        self._output = output
        self._feed = feed
        self._watchdog = watchdog
        self._outlives_losses = outlives_losses
        self._grace_seconds = grace_seconds
        self._claim = claim
        self._live: dict[int, LiveWorker] = {}
        self._pids: dict[Worker, int] = {}  # of the living that have not said that they fail
        self._ending: dict[Slot, Worker] = {}  # that fail or were reaped, and of which something may be left
        self._told: set[Worker] = set()  # of these, those whose ends were told
        self._ordered: set[Worker] = set()  # all whose start was ever ordered
        self._resource_limits = ResourceLimits()
        self._began = processes.find_own_start()
        self._queue: OrderedDict[Worker, Launch] = OrderedDict()  # that wait for their turn to be started
        self._starting: dict[Worker, asyncio.Task[None]] = {}
        self._early_orders: dict[Worker, Terminate] = {}  # for workers that are being started
        self._unclaimed: dict[int, int] = {}  # ends of children that may be such workers
        self._ended: dict[Worker, Exited] = {}
        self.failure: asyncio.Future[NoReturn] = asyncio.get_running_loop().create_future()
        self._reaper = Reaper(job, host, self._live, self.fail)
        self._preparing: asyncio.Task[None] | None = None
        self._is_prepared = False
        self._is_short = False  # of what so many workers need
        self.is_noticed = False
        self._closing = False
        self._reaped = asyncio.Event()
        self.changed = asyncio.Event()

    def open(self) -> None:
        """Begin to reap; to be called before the first launch."""
        _adopt_orphans()
        asyncio.get_running_loop().add_signal_handler(signal.SIGCHLD, self._reap)
        self._preparing = supervise(asyncio.create_task(self._prepare()), self.fail)

    def running(self) -> tuple[Worker, ...]:
        """The workers whose start was ordered and whose end is not known yet."""
        untold = (worker for worker in self._ending.values() if worker not in self._told)
        return (*self._queue, *self._starting, *self._pids, *untold)

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
        if worker in self._ordered or self._closing:
            return
        shortage = None if self._ordered else self._resource_limits.find_shortage(launch.assignment.local_size)
        self._ordered.add(worker)
        if shortage is not None:
            self._is_short = True
            reason = f"the workers on {self._host} cannot be started: {shortage}"
            self._end(worker, CANNOT_LAUNCH, reason, cannot_start=True)
        elif self._is_short:
            self._end(worker, CANNOT_LAUNCH, cannot_start=True)  # one sentence is enough
        else:
            self._queue[worker] = launch
            self._start_next()
            self.changed.set()

    def terminate(self, order: Terminate) -> None:
        """A signal for the worker's process group, SIGKILL for all of it after the grace; the earliest order counts."""
        worker = order.worker
        if worker in self._queue:
            del self._queue[worker]
            self._end(worker, -signal.SIGTERM, NOT_STARTED)
        elif worker in self._starting:
            self._early_orders[worker] = order
        elif worker in self._pids:
            self._live[self._pids[worker]].terminate(order.grace_seconds, order.signal)

    def note_failure(self, worker: Worker, returncode: int) -> None:
        """A worker says that it will end with this code: tell it now, and leave the process the grace to do so."""
        pid = self._pids.pop(worker, None)
        if pid is None:
            return  # its end is known already
        self._ending[worker.slot] = worker
        self._tell_end(worker, returncode)
        self._live[pid].kill_after(self._grace_seconds)

    def note_notice(self) -> None:
        """A stop notice has come to this host: the job decides what follows."""
        self.is_noticed = True
        self.changed.set()

    def note_outcome(self, worker: Worker, number: int) -> None:
        """A worker has run a task: its output comes before whatever follows from that."""
        self._output.note_outcome(worker, number)

    async def await_failed(self) -> None:
        """Return when no worker lives that has said that it fails."""
        while any(live.worker in self._told for live in self._live.values()):
            self._reaped.clear()
            await self._reaped.wait()

    def list_living(self) -> tuple[tuple[int, str], ...]:
        """The workers that have been started and not been seen to end; see `hvdrun.agent.standstill.Owner`."""
        return tuple((pid, f"the worker {worker}") for worker, pid in self._pids.items())

    def put_down(self, pid: int, error: str) -> None:
        """Kill a worker that cannot go on; its end is told with this sentence."""
        live = self._live.get(pid)
        if live is not None:
            live.error = error
            live.terminate(0.0)

    async def close(self) -> None:
        """Kill every worker that is left, and return when all are gone, orphans included."""
        self._closing = True
        self._queue.clear()
        starts = [*self._starting.values(), *filter(None, [self._preparing])]
        for start in starts:
            start.cancel()
        await asyncio.gather(*starts, return_exceptions=True)
        for live in tuple(self._live.values()):
            live.terminate(0.0)
        await self._spawner.close()
        await self._clear_away()
        await self._reaper.finish()
        asyncio.get_running_loop().remove_signal_handler(signal.SIGCHLD)

    def fail(self, error: BaseException) -> None:
        """End the agent with an error of its own."""
        if not self.failure.done():
            self.failure.set_exception(error)
            self.failure.exception()  # taken notice of, should nobody wait for it any more

    async def _prepare(self) -> None:
        await self._spawner.prepare()
        self._is_prepared = True
        self._start_next()

    def _start_next(self) -> None:
        """Let the next of the queue be started, as far as their turn has come and their slots are free."""
        while self._is_prepared and len(self._starting) < STARTS_AT_ONCE:
            worker = next((worker for worker in self._queue if worker.slot not in self._ending), None)
            if worker is None:
                return
            starting = asyncio.create_task(self._start(self._queue.pop(worker)))
            self._starting[worker] = supervise(starting, self.fail)

    async def _start(self, launch: Launch) -> None:
        worker = launch.worker
        try:
            spawned = await self._spawner.spawn(launch)
        except HvdrunError as error:
            self._end(worker, error.exit_code, str(error), cannot_start=True)
        except OSError as error:  # no more files or processes are to be had
            reason = f"hvdrun cannot start a worker on {self._host}: {error.strerror}"
            self._end(worker, CANNOT_LAUNCH, reason, cannot_start=True)
        else:
            self._take(worker, spawned)
            if spawned.stdin is not None:
                await self._feed.open(spawned.stdin)
        finally:
            del self._starting[worker]
            self._early_orders.pop(worker, None)
            self._start_next()
            if not self._starting:
                self._unclaimed.clear()
        self.changed.set()

    def _take(self, worker: Worker, spawned: Spawned) -> None:
        """A worker lives, or has lived: its end may have come before the news of its birth."""
        live = self._live[spawned.pid] = LiveWorker(worker, spawned.pid, self._reaper.kill)
        self._pids[worker] = spawned.pid
        self._watchdog.add(spawned.pid)
        self._output.add(worker, OutputStream.STDOUT, spawned.stdout)
        self._output.add(worker, OutputStream.STDERR, spawned.stderr)
        if spawned.pid in self._unclaimed:
            self._note_end(spawned.pid, self._unclaimed.pop(spawned.pid))
        elif worker in self._early_orders:
            early = self._early_orders.pop(worker)
            live.terminate(early.grace_seconds, early.signal)

    def _reap(self) -> None:
        """Take in every child that has ended: workers, the watchdog, orphans that came to us."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid in self._live:
                self._note_end(pid, status)
            elif self._watchdog.owns(pid):
                if not self._closing:
                    self._watchdog.replace()
            elif not self._claim(pid, status) and self._starting:
                self._unclaimed[pid] = status

    def _note_end(self, pid: int, status: int) -> None:
        """A worker was reaped: end what is left of it, and tell its end, before or after."""
        live = self._live.pop(pid)
        worker = live.worker
        self._pids.pop(worker, None)
        self._ending[worker.slot] = worker
        self._reaped.set()
        live.forget()
        returncode = os.waitstatus_to_exitcode(status)
        if worker in self._told and returncode == -signal.SIGKILL and not self._closing:
            grace = f"{self._grace_seconds:g} s (--grace)"
            self._output.tell(Alert(f"the worker {worker}, which has failed, was killed: it had not ended in {grace}."))
        if self._outlives_losses:
            self._tell_end(worker, returncode, live.error)

        def free() -> None:
            self._watchdog.remove(pid)
            self._tell_end(worker, returncode, live.error)
            self._told.discard(worker)
            del self._ending[worker.slot]
            self._start_next()

        self._reaper.clear(worker, pid, free)

    def _tell_end(self, worker: Worker, returncode: int, error: str | None = None) -> None:
        """Tell the end of a worker in whose slot nobody is started yet; once."""
        if worker not in self._told:
            self._told.add(worker)
            self._end(worker, returncode, error)

    def _end(self, worker: Worker, returncode: int, error: str | None = None, *, cannot_start: bool = False) -> None:
        self._ended[worker] = Exited(worker, returncode, error, cannot_start)
        self.changed.set()

    async def _clear_away(self) -> None:
        """Kill whatever this agent has started, until nothing is left."""
        loop = KillLoop(REAP_SECONDS, CLEAN_LOOKS)
        while not loop.is_done:
            others = (process for process in processes.running() if process.pid != os.getpid())
            loop.kill([process for process in others if self._is_anything_of_ours(process)])
            await asyncio.sleep(_PAUSE_SECONDS)  # no event tells of the end of a process that is not our child

    def _is_anything_of_ours(self, process: Process) -> bool:
        """Whether a process was started from here at all, or is an orphan that came to this process."""
        is_orphan = process.parent == os.getpid() and not self._watchdog.owns(process.pid)
        return is_orphan or processes.comes_from(
            process, processes.name_agent_origin(self._job, self._host), self._began
        )


def _adopt_orphans() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER) failed")
