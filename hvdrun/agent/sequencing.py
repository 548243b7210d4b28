"""Owns the sequencer on the host of rank 0: one process at a time, which serves one generation after the other.

The agent starts it when the first worker joins. Where workers are forked and their script names a module that has
`init()`, it starts it with them. A job of programs without `init()` has no sequencer, and neither does a static job of
one worker. The agent sends it each generation whose rank 0 is on this host, with the generation's key. In a job that
outlives losses rank 0 may move, so each host has a sequencer ready. When it dies while it serves a generation, the
agent starts another immediately: that generation is over, and the next one needs it.

It is forked like a worker where that is possible, since a fork has imported NumPy already. Otherwise the Python of the
workers executes it, or, where that lacks NumPy, the agent's Python. It leads a session, and is killed with the workers.
"""

import asyncio
import contextlib
import os
import sys
from collections.abc import Awaitable, Callable, Mapping
from functools import partial

from hvdrun.agent.sequencer_process import SequencerEndedError, SequencerNotRespondingError, SequencerProcess
from hvdrun.agent.spawn import ModuleForker, make_service_environment
from hvdrun.processes.background import cancel_and_wait, raise_error, start_task
from hvdrun.processes.child import Children, StandardStreams, Start, start_child
from hvdrun.processes.watchdog import Watchdog
from rendezvous.core.messages import Announce
from rendezvous.core.model import Assignment, Endpoint
from rendezvous.errors import SequencerStartError
from rendezvous.wire.notifications import Notification, Published, SequencerFailed
from rendezvous.wire.orders import Begin
from rendezvous.wire.processes import SEQUENCER, Activation

LIMIT_SECONDS = 30.0  # for one start; a busy machine needs a second or two
_NO_NUMPY = "No module named 'numpy'"


class _NoForkserverError(Exception):
    """The sequencer cannot be forked here."""


class Sequencing:
    """Owns the sequencer of one host; belongs to one event loop.

    Args:
        begin: the job, as the launcher has sent it.
        forker: forks the process where that is possible.
        children: reports its end.
        watchdog: kills its session after the agent was killed.
        warn: takes a sentence for the user when it ended unexpectedly.
        note_end: takes how it ended unexpectedly, in half a sentence.
        note_waits: takes what it reports of ranks that wait.
        limit_seconds: how long one start may take.
        module: the program.
    """

    def __init__(
        self,
        begin: Begin,
        forker: ModuleForker,
        children: Children,
        watchdog: Watchdog,
        warn: Callable[[str], None],
        *,
        note_end: Callable[[str], None] = lambda _: None,
        note_waits: Callable[[str], None] = lambda _: None,
        limit_seconds: float = LIMIT_SECONDS,
        module: str = SEQUENCER,
    ) -> None:
        self._begin = begin
        self._forker = forker
        self._children = children
        self._watchdog = watchdog
        self._warn = warn
        self._tell_end = note_end
        self._note_waits = note_waits
        self._limit_seconds = limit_seconds
        self._module = module

        self._outlives_losses = begin.outlives_losses
        self._is_expected = self._outlives_losses  # rank 0 may come to this host
        self._interpreter = ""
        self._generation = 0  # the last whose rank 0 is here

        self._process: SequencerProcess | None = None  # the one that lives, or is starting
        self._opening: asyncio.Task[SequencerProcess] | None = None
        self._activating: set[asyncio.Task[None]] = set()
        self._following: set[asyncio.Task[None]] = set()
        self._is_closing = False
        self._is_stopping = False  # a stop notice has come for the job
        self._reported_stopped = 0  # the stopped process that the user was warned of

    def expect(self, assignment: Assignment) -> None:
        """Note that a worker with this assignment is about to start on this host."""
        self._is_expected |= assignment.rank == 0 and assignment.size > 1
        # Forked workers call `init()` soon: the process starts meanwhile.
        if self._forker.expects_init:
            self.prepare("")

    def prepare(self, interpreter: str) -> None:
        """Start the process if this host expects rank 0 and has none; see `SequencerProvider`."""
        self._interpreter = self._interpreter or interpreter
        if self._is_expected and not self._is_closing:
            self._ensure_opening()

    def activate(self, published: Published, post: Callable[[Notification], Awaitable[None]]) -> None:
        """Serve this generation if its rank 0 is here; see `SequencerProvider`."""
        sizes = [numbers.size for _, numbers in published.members if numbers.rank == 0 and numbers.size > 1]
        if not sizes or published.generation == self._generation or self._is_closing:
            return
        self._generation = published.generation
        activation = Activation(published.generation, sizes[0], published.key, reports=True)
        start_task(self._activate(activation, post), "activate the sequencer", self._activating)

    def stop(self) -> None:
        """Report a stop notice for the job to the members of this generation, and of later ones."""
        self._is_stopping = True
        if self._process is not None and self._process.has_served:
            with contextlib.suppress(SequencerNotRespondingError):  # the next generation gets the notice
                self._process.stop()

    def list_living(self) -> tuple[tuple[int, str], ...]:
        """The process, if there is one; see `hvdrun.agent.stopped_detector.Owner`."""
        if self._process is None or not self._process.pid:
            return ()
        return ((self._process.pid, "its process"),)

    def note_stopped(self, pid: int, reason: str) -> None:
        """Replace the process, which is stopped; in a static job, warn the user."""
        process = self._process
        if process is None or process.pid != pid:
            return
        if self._outlives_losses:
            process.fault = reason
            process.kill()
        elif self._reported_stopped != pid:
            self._reported_stopped = pid
            self._warn(f"{self._name} does not run: {reason}; the workers wait for it. Continue it: kill -CONT {pid}")

    async def close(self) -> None:
        """Start no more. A process that lives is killed with the workers."""
        self._is_closing = True
        await cancel_and_wait([*self._activating, *self._following, *filter(None, [self._opening])])

    @property
    def _name(self) -> str:
        return f"the sequencer on {self._begin.host}, which orders the workers' collectives,"

    def _ensure_opening(self) -> asyncio.Task[SequencerProcess]:
        """The start that is in progress or has succeeded, else a new one: by now the workers' Python may be known."""
        has_failed = self._opening is not None and self._opening.done() and self._opening.exception() is not None
        if self._opening is None or has_failed:
            self._opening = asyncio.create_task(self._open(), name="start the sequencer")
            self._opening.add_done_callback(_raise_bug)
        return self._opening

    async def _activate(self, activation: Activation, post: Callable[[Notification], Awaitable[None]]) -> None:
        """Have the process serve this generation; where it turns out to be dead, start another."""
        try:
            try:
                process = await asyncio.shield(self._ensure_opening())
                self._order(process, activation)
            except SequencerNotRespondingError:
                self._discard(process)
                process = await asyncio.shield(self._ensure_opening())
                self._order(process, activation)
        except SequencerStartError as error:
            await post(SequencerFailed(activation.generation, f"on {self._begin.host}, {error.reason}"))
        else:
            await post(Announce(activation.generation, Endpoint(self._begin.address, process.port)))

    def _order(self, process: SequencerProcess, activation: Activation) -> None:
        if self._is_stopping:
            process.stop()
        process.activate(activation)

    def _discard(self, process: SequencerProcess) -> None:
        """Kill a process that takes no orders, and close its descriptors."""
        if self._process is process:
            process.kill()
            self._forget(process)
            process.close()

    async def _open(self) -> SequencerProcess:
        """Start it in the first way that works.

        Raises:
            SequencerStartError: none works.
        """
        failures: list[str] = []
        for name, start in [("forked", self._fork), *self._list_executions()]:
            try:
                return await self._open_process(start)
            except _NoForkserverError:  # the next way follows
                pass
            except SequencerEndedError as error:
                failures.append(f"{name}, {error.reason}")
            except OSError as error:
                failures.append(f"{name}, it could not be started: {error.strerror}")
        reason = "; ".join(failures)
        if _NO_NUMPY in reason:
            reason = f"{reason}: install NumPy there"
        raise SequencerStartError(reason)

    async def _open_process(self, start: Start) -> SequencerProcess:
        """Start a process and wait until it listens; kill one that does not."""
        with self._children.starting():
            process = await SequencerProcess.start(start)
            self._process = process
            self._watchdog.add(process.pid)
            self._children.watch(process.pid, partial(self._note_end, process))
        try:
            await process.open(self._limit_seconds)
        except BaseException:
            self._discard(process)
            raise
        start_task(process.follow(self._note_waits), "read the sequencer's reports", self._following)
        return process

    def _note_end(self, process: SequencerProcess, code: int) -> None:
        """Report the end of a process that listened, and replace it where a generation has lost it."""
        process.note_end(code)
        if not process.port:
            # The task that starts it reports this.
            return
        self._forget(process)
        if not self._is_closing:
            self._warn(f"{self._name} is gone: {process.describe_end()}")
            self._tell_end(process.describe_end())
        process.close()
        if process.has_served and self._outlives_losses and not self._is_closing:
            self._ensure_opening()

    def _forget(self, process: SequencerProcess) -> None:
        self._children.forget(process.pid)
        self._watchdog.remove(process.pid)
        self._process = None
        if process.port:
            self._opening = None

    def _list_executions(self) -> list[tuple[str, Start]]:
        """The interpreters that may have NumPy, the workers' first; the agent's runs with its own PYTHON* variables."""
        environment = make_service_environment(self._begin)
        own = {name: value for name, value in os.environb.items() if name.startswith(b"PYTHON")}
        others = {name: value for name, value in environment.items() if not name.startswith(b"PYTHON")}
        ways = []
        if self._interpreter:
            ways = [(self._interpreter, environment)]
        if (sys.executable, {**others, **own}) not in ways:
            ways.append((sys.executable, {**others, **own}))
        return [(f"with {python}", partial(self._execute, python, variables)) for python, variables in ways]

    async def _fork(self, streams: StandardStreams) -> int:
        environment = make_service_environment(self._begin)
        pid = await self._forker.fork_module(self._module, (self._begin.address,), environment, streams)
        if pid is None:
            raise _NoForkserverError
        return pid

    async def _execute(self, python: str, environment: Mapping[bytes, bytes], streams: StandardStreams) -> int:
        command = [python, "-P", "-m", self._module, self._begin.address]
        return start_child(command, streams, directory=self._begin.directory, environment=environment)


def _raise_bug(opening: asyncio.Task[SequencerProcess]) -> None:
    """Raise an unexpected error of a start; where none works, a generation that needs the process reports it."""
    if opening.cancelled() or not isinstance(opening.exception(), SequencerStartError):
        raise_error(opening)
