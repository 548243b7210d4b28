"""The workers of this host: starts each once, ends them on order, and reports every end.

The agent reaps its workers, and adopts the orphans that they leave. When a worker ends, the agent kills its whole
session: a forked child of a dead worker would hold its sockets, its files and the memory of its GPU. Three rules say
when the end of a worker is reported:

- A job that continues without the worker gets the report immediately, since the other workers wait for it. The slot is
  free once nothing of the worker is left.
- Any other job gets the report once nothing of the worker is left. The report ends the other workers. By then the
  connections to the dead worker are closed, and the others have had the error that says so.
- The end of a worker that reports its own failure is reported immediately in every job. Python may take seconds to end
  after that; the worker has the grace for it.

Only a few of thousands of workers start at the same time, so that the agent obeys orders and reaps meanwhile. None
starts before the imports that forked workers share are complete. A worker that is terminated while it waits for its
start is never started.
"""

import asyncio
import os
import signal
import time
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import NoReturn

from hvdrun.agent.accounts import Accounts
from hvdrun.agent.ends import Ends
from hvdrun.agent.live_worker import LiveWorker, terminate_group
from hvdrun.agent.memory_kills import MemoryKills
from hvdrun.agent.resource_limits import ResourceLimits
from hvdrun.agent.spawn import Spawned, Spawner
from hvdrun.agent.streams import InputFeed, OutputForwarder
from hvdrun.errors import CANNOT_LAUNCH, HvdrunError
from hvdrun.processes.background import cancel_and_wait, report_callback_errors, start_task
from hvdrun.processes.child import Children
from hvdrun.processes.reaper import Reaper
from hvdrun.processes.watchdog import Watchdog
from rendezvous.core.messages import Exited, Launch, Terminate
from rendezvous.core.model import Slot, Worker
from rendezvous.core.outcome import Blame, name_signal
from rendezvous.wire.orders import Alert, OutputStream, Started

STARTS_AT_ONCE = 16
_LEFTOVER_SECONDS = 1.0  # for what a worker leaves in a planned restart, such as a program that sends its logs


class Watch:
    """Starts, watches and ends the workers of one host; belongs to one event loop.

    Args:
        job, host: their names.
        spawner: starts workers.
        output: forwards what they write.
        feed: passes standard input on to one of them.
        children: reports their ends; opened and closed with this object.
        watchdog: kills them if the agent is killed.
        outlives_losses: the job continues without a worker that fails.
        grace_seconds: how long a worker that has reported its failure may take to end.
        take_message: what a worker's program has reported of its failure.
        finds_world: whether a process of rank 0 listens now at the port of its round; asked when a worker ends.
        accounts: of the workers' time.

    failure: raises an unexpected error, which ends the agent.
    pids: the main processes of live workers that have not reported their failure.
    is_noticed: a stop notice has come to this host.
    signal: that asks this host to end; 0: none.
    has_world: a process of rank 0, on this host, listens at the port of its round.
    sequencer_end: how the sequencer of this host ended unexpectedly; "" where it has not.
    """

    def __init__(
        self,
        job: str,
        host: str,
        spawner: Spawner,
        output: OutputForwarder,
        *,
        feed: InputFeed,
        children: Children,
        watchdog: Watchdog,
        outlives_losses: bool = False,
        grace_seconds: float = 0.0,
        take_message: Callable[[Worker], str] = lambda _: "",
        finds_world: Callable[[], bool] = lambda: False,
        accounts: Accounts,
    ) -> None:
        self._host = host
        self._spawner = spawner
        self._output = output
        self._feed = feed
        self._children = children
        self._watchdog = watchdog
        self._outlives_losses = outlives_losses
        self._grace_seconds = grace_seconds
        self._finds_world = finds_world
        self._accounts = accounts

        self._live: dict[int, LiveWorker] = {}
        self.pids: dict[Worker, int] = {}
        self._ending: dict[Slot, Worker] = {}  # that fail or were reaped, and of which something may be left
        self._reported: set[Worker] = set()  # of these, those whose ends were reported
        self._ordered: dict[Worker, float] = {}  # all whose start was ever ordered, and when
        self._resource_limits = ResourceLimits()
        self._queue: OrderedDict[Worker, Launch] = OrderedDict()  # that wait for their start
        self._starting: dict[Worker, asyncio.Task[None]] = {}
        self._early_orders: dict[Worker, Terminate] = {}  # for workers that are starting
        self._ends = Ends(take_message, MemoryKills())
        self._leftovers: dict[int, asyncio.TimerHandle] = {}  # by pid, of workers that were reaped

        self.failure: asyncio.Future[NoReturn] = asyncio.get_running_loop().create_future()
        self._reaper = Reaper(job, host, self._live)
        self._preparing: asyncio.Task[None] | None = None
        self._is_prepared = False
        self._is_short = False  # this host cannot hold so many workers

        self.is_noticed = False
        self.signal = 0
        self.has_world = False
        self.sequencer_end = ""
        self._closing = self._is_closed = False
        self._reaped = asyncio.Event()
        self.changed = asyncio.Event()

    def open(self) -> None:
        """Reap from now on; to be called before the first launch."""
        report_callback_errors(self.fail)
        self._children.open()
        self._preparing = start_task(self._prepare(), "prepare the workers")

    def running(self) -> tuple[Worker, ...]:
        """The workers whose start was ordered and whose end was not reported yet."""
        unreported = (worker for worker in self._ending.values() if worker not in self._reported)
        return (*self._queue, *self._starting, *self.pids, *unreported)

    def ended(self) -> tuple[Exited, ...]:
        """The ends that have not been acknowledged."""
        return self._ends.list()

    def acknowledge(self, ends: tuple[Exited, ...]) -> None:
        """Note that the server has recorded these ends."""
        self._ends.acknowledge(ends)

    def launch(self, launch: Launch) -> None:
        """Start this worker, unless this incarnation has been started before."""
        worker = launch.worker
        if worker in self._ordered or self._closing:
            return

        shortage = None
        if not self._ordered:
            shortage = self._resource_limits.find_shortage(launch.assignment.local_size)
        self._ordered[worker] = time.monotonic()

        if shortage is not None:
            self._is_short = True
            reason = f"the workers on {self._host} cannot be started: {shortage}"
            self._end(worker, CANNOT_LAUNCH, reason, cannot_start=True)
        elif self._is_short:
            self._end(worker, CANNOT_LAUNCH, cannot_start=True)  # the first report gives the reason
        else:
            self._queue[worker] = launch
            self._start_next()
            self.changed.set()

    def terminate(self, order: Terminate) -> None:
        """Signal the worker's process group, and kill the whole worker after the grace; the earliest order counts."""
        worker = order.worker
        if worker in self._queue:
            del self._queue[worker]
            self._ends.add(Exited.before_start(worker))
            self._note_report()
        elif worker in self._starting:
            self._early_orders[worker] = order
        elif worker in self.pids:
            live = self._live[self.pids[worker]]
            live.terminate(order.grace_seconds, order.signal, lets_save=order.lets_save)

    def note_failure(
        self, worker: Worker, returncode: int, blame: Blame | None = None, *, follows: bool = False
    ) -> None:
        """Report the end of a worker that is about to end with this code, and give the process the grace to do so.

        One that is about to end with 0 is only noted: its exit hooks may take as long as they like. So is one that has
        failed because of a failure that is reported first (`follows`).
        """
        if worker in self.pids:
            self._ends.note_blame(worker, blame)
        if follows:
            return
        if returncode == 0:
            if worker in self.pids and not self._live[self.pids[worker]].is_stopping:
                self._live[self.pids[worker]].has_left = True
            return
        pid = self.pids.pop(worker, None)
        if pid is None:
            # The end was reported already.
            return
        self._ending[worker.slot] = worker
        live = self._live[pid]
        self._ends.note_evidence(worker, returncode)
        self._report_end(worker, returncode, was_stopped=live.is_stopping)
        live.kill_after(self._grace_seconds)

    def note_notice(self) -> None:
        """Report a stop notice that has come to this host; the job decides what follows."""
        self.is_noticed = True
        self.changed.set()

    def note_signal(self, number: int) -> None:
        """Report that a signal asks this host to end, and ask the workers to: they have the grace."""
        self.signal = number
        self.changed.set()
        first = signal.SIGINT if number == signal.SIGINT else signal.SIGTERM
        for worker in self.running():
            self.terminate(Terminate(worker, self._grace_seconds, f"received {name_signal(number)}", signal=first))

    def note_world(self) -> None:
        """Report that the workers are a world of torch.distributed."""
        self.has_world = True
        self.changed.set()

    def note_sequencer_end(self, how: str) -> None:
        """Report that the sequencer of this host has ended unexpectedly."""
        self.sequencer_end = how
        self.changed.set()

    def pass_on(self, number: int) -> None:
        """Send the main process of each worker a signal that is the program's own."""
        for pid in self.pids.values():
            os.kill(pid, number)  # a child that was not reaped

    def note_outcome(self, worker: Worker, number: int) -> None:
        """Forward all output of a task that this worker has run."""
        self._output.note_outcome(worker, number)

    async def await_failed(self) -> None:
        """Return when no worker lives that has reported its failure."""
        await self._await_reaped(lambda: any(live.worker in self._reported for live in self._live.values()))

    async def await_ended(self) -> None:
        """Return when no worker lives."""
        await self._await_reaped(lambda: bool(self._live or self._starting))

    async def _await_reaped(self, is_left: Callable[[], bool]) -> None:
        while is_left():
            self._reaped.clear()
            await self._reaped.wait()

    def list_living(self) -> tuple[tuple[int, str], ...]:
        """The live workers; see `hvdrun.agent.stopped_detector.Owner`."""
        return tuple((pid, f"the worker {worker}") for worker, pid in self.pids.items())

    def note_stopped(self, pid: int, reason: str) -> None:
        """Kill a worker that is stopped; its end is reported with this reason."""
        live = self._live.get(pid)
        if live is not None:
            live.error = reason
            live.terminate(0.0)

    async def close(self) -> None:
        """Kill every worker that is left; return when all are gone, orphans included."""
        if self._is_closed:
            return
        self._closing = True
        self._queue.clear()
        await cancel_and_wait([*self._starting.values(), *filter(None, [self._preparing])])
        for live in tuple(self._live.values()):
            live.terminate(0.0)
        while self._leftovers:
            self._leftovers.popitem()[1].cancel()
        await self._spawner.close()
        await self._reaper.clear_all(keeps=self._watchdog.owns)
        await self._reaper.finish()
        self._children.close()
        self._is_closed = True

    def fail(self, error: BaseException) -> None:
        """End the agent with an unexpected error."""
        if not self.failure.done():
            self.failure.set_exception(error)
            self.failure.exception()  # retrieved: asyncio would log it if nobody awaits it

    def raise_failure(self) -> None:
        """Raise the unexpected error that ends the agent, if there is one."""
        if self.failure.done():
            self.failure.result()

    async def _prepare(self) -> None:
        await self._spawner.prepare()
        self._is_prepared = True
        self._start_next()

    def _start_next(self) -> None:
        """Start the next workers of the queue whose slots are free, up to the limit."""
        while self._is_prepared and len(self._starting) < STARTS_AT_ONCE:
            worker = next((worker for worker in self._queue if worker.slot not in self._ending), None)
            if worker is None:
                return
            self._starting[worker] = start_task(self._start(self._queue.pop(worker)), "start a worker")

    async def _start(self, launch: Launch) -> None:
        worker = launch.worker
        try:
            with self._children.starting():
                spawned = await self._spawner.spawn(launch)
                self._accounts.begin(worker, self._ordered[worker])
                self._add(worker, spawned)
            if launch.round is not None:
                self._output.tell(Started(worker))
        except HvdrunError as error:
            self._end(worker, error.exit_code, str(error), cannot_start=True)
        except OSError as error:  # a limit of files or processes is reached
            reason = f"hvdrun cannot start a worker on {self._host}: {error.strerror}"
            self._end(worker, CANNOT_LAUNCH, reason, cannot_start=True)
        else:
            if spawned.stdin is not None:
                await self._feed.open(spawned.stdin)
        finally:
            del self._starting[worker]
            self._reaped.set()  # a start that has failed leaves nothing to reap
            self._early_orders.pop(worker, None)
            self._start_next()

        self.changed.set()

    def _add(self, worker: Worker, spawned: Spawned) -> None:
        """Watch a worker that was started, and may have ended already."""
        live = self._live[spawned.pid] = LiveWorker(worker, spawned.pid, self._reaper.kill)
        self.pids[worker] = spawned.pid
        self._watchdog.add(spawned.pid)
        self._output.add(worker, OutputStream.STDOUT, spawned.stdout)
        self._output.add(worker, OutputStream.STDERR, spawned.stderr)
        self._children.watch(spawned.pid, partial(self._note_end, spawned.pid))
        if worker in self._early_orders and spawned.pid in self._live:
            early = self._early_orders.pop(worker)
            live.terminate(early.grace_seconds, early.signal, lets_save=early.lets_save)

    def _note_end(self, pid: int, returncode: int) -> None:
        """Kill what is left of a worker that was reaped, and report its end, before or after."""
        live = self._live.pop(pid)
        worker = live.worker
        self.pids.pop(worker, None)
        self._accounts.end(worker)
        self._ending[worker.slot] = worker
        self._reaped.set()
        live.forget()
        if worker not in self._reported:
            self._ends.note_evidence(worker, returncode, self._children.peak_bytes)
        if live.is_stopping:
            # The program had ended without a failure before; the order's signal may have ended the process.
            has_left = live.has_left and returncode <= 0
        else:
            has_left = returncode == 0
        if worker in self._reported and returncode == -signal.SIGKILL and not self._closing:
            cause = f"it did not exit within {self._grace_seconds:g} s (--grace)"
            self._output.tell(Alert(f"the worker {worker}, which has failed, was killed: {cause}."))
        report = partial(
            self._report_end, worker, returncode, live.error, has_left=has_left, was_stopped=live.is_stopping
        )
        if self._outlives_losses:
            report()

        def free() -> None:
            self._watchdog.remove(pid)
            report()
            self._reported.discard(worker)
            del self._ending[worker.slot]
            self._start_next()

        # Where the order lets the worker save, what it leaves gets a moment, too.
        if live.lets_save and not self._closing and terminate_group(pid):
            loop = asyncio.get_running_loop()
            self._leftovers[pid] = loop.call_later(_LEFTOVER_SECONDS, self._clear_leftovers, worker, pid, free)
        else:
            self._reaper.clear(worker, pid, free)

    def _clear_leftovers(self, worker: Worker, pid: int, free: Callable[[], None]) -> None:
        del self._leftovers[pid]
        self._reaper.clear(worker, pid, free)

    def _report_end(self, worker: Worker, returncode: int, error: str | None = None, **how: bool) -> None:
        """Report the end of a worker whose slot is not free yet; once."""
        if worker not in self._reported:
            self._reported.add(worker)
            self._end(worker, returncode, error, **how)

    def _end(self, worker: Worker, returncode: int, error: str | None = None, **how: bool) -> None:
        """Report the end of a worker; see `Ends.record`."""
        self._ends.record(worker, returncode, error, **how)
        self._note_report()

    def _note_report(self) -> None:
        """There is an end to report."""
        self.has_world = self.has_world or self._finds_world()
        self.changed.set()
