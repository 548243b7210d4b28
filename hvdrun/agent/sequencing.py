"""Provides the workers of rank 0's host with a sequencer: one process at a time, which the agent owns.

It is started when the first of them joins, or, where they are forked and their script names what has `init()`, with
them. A job of plain programs has none, nor has a static job of one. It is told of each generation whose rank 0 is here,
with the generation's key. In an elastic job rank 0 may move: there each host has one ready. When it dies while it
serves a generation, another is started at once, for that generation is over, and the next one will need it. It is
forked like a worker where that is possible, since a fork has imported NumPy already; otherwise the Python that runs the
worker executes it, or, where that lacks what it needs, the agent's own. It leads a session of its own, is no worker's
child, and is killed with the workers.
"""

import asyncio
import contextlib
import os
import sys
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Protocol

from hvdrun.agent.sequencer_process import SequencerDeafError, SequencerEndedError, SequencerProcess
from hvdrun.agent.spawn import mark_service
from hvdrun.processes.child import start_child
from hvdrun.processes.watchdog import Watchdog
from hvdrun.spec.environment import is_elastic
from rendezvous.core.messages import Announce
from rendezvous.core.model import Assignment, Endpoint
from rendezvous.errors import SequencerStartError
from rendezvous.wire.notifications import Notification, Published, SequencerFailed
from rendezvous.wire.orders import Begin
from rendezvous.wire.processes import SEQUENCER, Activation

LIMIT_SECONDS = 30.0  # for one start; a busy machine needs a second or two
_ONE_THREAD = {b"OMP_NUM_THREADS": b"1"}
_NO_NUMPY = "No module named 'numpy'"

Streams = tuple[int, int, int]
Spawn = Callable[[Streams], Awaitable[int]]


class ModuleForker(Protocol):
    """What can start a module of ours faster than a new interpreter does."""

    @property
    def expects_init(self) -> bool:
        """The workers are forked by it too, and will probably call `init()`."""

    async def fork_module(
        self, module: str, arguments: tuple[str, ...], environment: Mapping[bytes, bytes], streams: Streams
    ) -> int | None:
        """Fork a process that runs it: its pid; None where there is nothing to fork from."""


class _NothingToForkError(Exception):
    """This way to start the process is none here."""


class Sequencing:
    """Owns the sequencer of one host; belongs to one event loop.

    Args:
        begin: what the agent knows of the job.
        forker: forks the process where that is possible.
        watchdog: is told of its session.
        warn: takes a sentence when it ended though it should not have.
        limit_seconds: how long one start may take.
        module: the program.
    """

    def __init__(
        self,
        begin: Begin,
        forker: ModuleForker,
        watchdog: Watchdog,
        warn: Callable[[str], None],
        *,
        limit_seconds: float = LIMIT_SECONDS,
        module: str = SEQUENCER,
    ) -> None:
        self._begin = begin
        self._forker = forker
        self._watchdog = watchdog
        self._warn = warn
        self._limit_seconds = limit_seconds
        self._module = module
        self._is_elastic = is_elastic(begin.environment)
        self._is_expected = self._is_elastic  # rank 0 may be here sooner or later
        self._interpreter = ""
        self._generation = 0  # the last that was to be served
        self._process: SequencerProcess | None = None  # the one that lives, or is being started
        self._unclaimed: dict[int, int] = {}  # ends of children, of which one may be a process that is being started
        self._opening: asyncio.Task[SequencerProcess] | None = None
        self._activating: set[asyncio.Task[None]] = set()
        self._is_closing = False
        self._is_stopping = False  # a stop notice has come for the job
        self._still = 0  # the process of which it was said that it stands still

    def expect(self, assignment: Assignment) -> None:
        """A worker with these numbers is to be started on this host."""
        self._is_expected |= assignment.rank == 0 and assignment.size > 1
        if self._forker.expects_init:  # forked workers call it soon: the process starts meanwhile
            self.prepare("")

    def prepare(self, interpreter: str) -> None:
        """Start the process if rank 0 is to be here and none is there; see `SequencerProvider`."""
        self._interpreter = self._interpreter or interpreter
        if self._is_expected and not self._is_closing:
            if self._opening is not None and self._opening.done() and self._opening.exception() is not None:
                self._opening = None  # when it was tried, the workers' Python was not known yet
            self._ensure_opening()

    def activate(self, published: Published, post: Callable[[Notification], Awaitable[None]]) -> None:
        """Serve this generation if its rank 0 is here; see `SequencerProvider`."""
        sizes = [numbers.size for _, numbers in published.members if numbers.rank == 0 and numbers.size > 1]
        if not sizes or published.generation == self._generation or self._is_closing:
            return
        self._generation = published.generation
        activation = Activation(published.generation, sizes[0], published.key)
        task = asyncio.create_task(self._activate(activation, post))
        self._activating.add(task)
        task.add_done_callback(self._activating.discard)

    def stop(self) -> None:
        """A stop notice has come for the job: whoever serves a generation tells its members, now and later."""
        self._is_stopping = True
        if self._process is not None and self._process.has_served:
            with contextlib.suppress(SequencerDeafError):  # its end ends the generation, and the next one is told
                self._process.stop()

    def note_end(self, pid: int, status: int) -> bool:
        """A child of the agent was reaped: whether it was the sequencer, of whose end is told if it should live."""
        process = self._process
        if process is None or process.pid != pid:
            if self._opening is not None and not self._opening.done():
                self._unclaimed[pid] = status
            return False
        process.note_end(status)
        if process.port:  # else whoever starts it tells
            self._forget(process)
            if not self._is_closing:
                self._warn(f"{self._name} is gone: {process.describe_end()}")
            has_served = process.has_served
            process.close()
            if has_served and self._is_elastic and not self._is_closing:
                self._ensure_opening()
        return True

    def list_living(self) -> tuple[tuple[int, str], ...]:
        """The process, if there is one; see `hvdrun.agent.standstill.Owner`."""
        return () if self._process is None or not self._process.pid else ((self._process.pid, "its process"),)

    def put_down(self, pid: int, error: str) -> None:
        """The process stands still: another takes its place, or, in a static job, the user is told."""
        process = self._process
        if process is None or process.pid != pid:
            return
        if self._is_elastic:
            process.fault = error
            process.kill()
        elif self._still != pid:
            self._still = pid
            self._warn(f"{self._name} stands still: {error}; the workers wait until it goes on (kill -CONT {pid})")

    async def close(self) -> None:
        """Start none any more. The one that lives goes with the workers: whoever kills them kills it."""
        self._is_closing = True
        tasks = [*self._activating, *([] if self._opening is None else [self._opening])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def _name(self) -> str:
        return f"the sequencer on {self._begin.host}, which orders the workers' collectives,"

    def _ensure_opening(self) -> asyncio.Task[SequencerProcess]:
        if self._opening is None:
            self._opening = asyncio.create_task(self._open())
            self._opening.add_done_callback(_take_notice)
        return self._opening

    async def _activate(self, activation: Activation, post: Callable[[Notification], Awaitable[None]]) -> None:
        """Have the process serve this generation, or another one where that turns out to be dead."""
        try:
            try:
                process = await self._obtain()
                self._order(process, activation)
            except SequencerDeafError:
                self._discard(process)
                process = await self._obtain()
                self._order(process, activation)
        except SequencerStartError as error:
            await post(SequencerFailed(activation.generation, f"on {self._begin.host}, {error.reason}"))
        else:
            await post(Announce(activation.generation, Endpoint(self._begin.address, process.port)))

    def _order(self, process: SequencerProcess, activation: Activation) -> None:
        if self._is_stopping:
            process.stop()
        process.activate(activation)

    async def _obtain(self) -> SequencerProcess:
        """The process that is there, or is being started; where that fails, the next caller has another try."""
        opening = self._ensure_opening()
        try:
            return await asyncio.shield(opening)
        except SequencerStartError:
            if self._opening is opening:
                self._opening = None
            raise

    def _discard(self, process: SequencerProcess) -> None:
        """Have done with a process that does not listen to its agent any more."""
        if self._process is process:
            process.kill()
            self._forget(process)
            process.close()

    async def _open(self) -> SequencerProcess:
        """Start it in the first way that does.

        Raises:
            SequencerStartError: there is none.
        """
        failures: list[str] = []
        ways = [("forked", self._fork), *self._list_executions()]
        for name, spawn in ways:
            try:
                return await self._open_process(spawn)
            except _NothingToForkError:
                pass
            except SequencerEndedError as error:
                failures.append(f"{name}, {error.reason}")
            except OSError as error:
                failures.append(f"{name}, it could not be started: {error.strerror}")
        reason = "; ".join(failures)
        raise SequencerStartError(f"{reason}: install NumPy there" if _NO_NUMPY in reason else reason)

    async def _open_process(self, spawn: Spawn) -> SequencerProcess:
        """Start a process and wait until it listens; one that does not is ended."""
        process = await SequencerProcess.start(spawn)
        self._process = process
        self._watchdog.add(process.pid)
        if process.pid in self._unclaimed:
            process.note_end(self._unclaimed[process.pid])
        self._unclaimed.clear()
        try:
            await process.open(self._limit_seconds)
        except BaseException:
            process.kill()
            self._forget(process)
            process.close()
            raise
        return process

    def _forget(self, process: SequencerProcess) -> None:
        self._watchdog.remove(process.pid)
        self._process = None
        if process.port:
            self._opening = None

    def _list_executions(self) -> list[tuple[str, Spawn]]:
        """The interpreters that may have what it needs, the likeliest first.

        What the workers' environment says to Python is meant for theirs.
        """
        environment = self._make_environment()
        own = {name: value for name, value in os.environb.items() if name.startswith(b"PYTHON")}
        others = {name: value for name, value in environment.items() if not name.startswith(b"PYTHON")}
        ways = [(self._interpreter, environment)] if self._interpreter else []
        if (sys.executable, {**others, **own}) not in ways:
            ways.append((sys.executable, {**others, **own}))
        return [(f"with {python}", partial(self._execute, python, variables)) for python, variables in ways]

    async def _fork(self, streams: Streams) -> int:
        pid = await self._forker.fork_module(self._module, (self._begin.address,), self._make_environment(), streams)
        if pid is None:
            raise _NothingToForkError
        return pid

    async def _execute(self, python: str, environment: Mapping[bytes, bytes], streams: Streams) -> int:
        command = [python, "-P", "-m", self._module, self._begin.address]
        return start_child(command, streams, directory=self._begin.directory, environment=environment)

    def _make_environment(self) -> dict[bytes, bytes]:
        return {**self._begin.environment, **mark_service(self._begin), **_ONE_THREAD}


def _take_notice(opening: asyncio.Task[SequencerProcess]) -> None:
    """A failure is told when a generation needs the process; it may be that none ever does."""
    if not opening.cancelled():
        opening.exception()
