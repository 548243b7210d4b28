"""Recovery: the way of an elastic worker from the loss of a member to the next generation.

The recovery thread receives the notice that the generation was interrupted, or a failure that this worker has noticed
itself. It suspends the engine, reports the pending operations to the rendezvous, and waits for the next generation and
its recovery decision, which is the same for all survivors:

- RETRY: pending operations run again with the surviving ranks. The program notices nothing.
- RESTORE, RESIZE: pending operations raise. Under `elastic.run` the function restarts: the program calls `enter`, and
  takes the generation, whose members connect meanwhile.

Each attempt is a `Formation`. A loss during an attempt ends it, and another one starts. Pending operations and kept
gradients belong to the process, and survive any number of attempts.
"""

import ctypes
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from queue import SimpleQueue
from typing import TYPE_CHECKING

from worker_runtime.account import ACCOUNT
from worker_runtime.engine.engine import Engine
from worker_runtime.engine.losses import Retry
from worker_runtime.engine.succession import Succession
from worker_runtime.errors import HorovodInternalError, HostsUpdatedInterrupt, InitializationError, StuckError
from worker_runtime.groups.backends.choice import Choice
from worker_runtime.membership.formation import (
    CONNECT_LIMIT,
    Closed,
    Connected,
    Event,
    Failed,
    Formation,
    FormationEvent,
    GenerationFailed,
    Joined,
)
from worker_runtime.rendezvous import (
    Action,
    Assignment,
    Bootstrap,
    Depart,
    Interrupt,
    JoinReason,
    Membership,
    OfferResize,
    RecoveryDecision,
    RendezvousError,
    Report,
)

if TYPE_CHECKING:
    from worker_runtime.rendezvous import WorkerClient

# The times of its messages at the level DEBUG show how long each part of a recovery takes (benchmarks/recovery.py).
_LOG = logging.getLogger("hvd.recovery")

_JOIN_SECONDS = 5.0  # for a thread of this module to end
_LOOK_SECONDS = 0.5  # between two checks while a generation is awaited; usually the thread is woken before


Entered = tuple[Assignment, Engine, RecoveryDecision]  # the generation that the program enters


class Recovery:
    """Keeps this worker a member of an elastic job; `close` ends its threads.

    Args:
        bootstrap: tells how to reach the rendezvous.
        connect: creates a client of the rendezvous.
        choice: the backends.
        after: the last generation of which this process was a member.
        note_assignment: called with this worker's new ranks, before its operations continue.
        note_offer: called with each notice of added or removed hosts.
    """

    def __init__(  # noqa: PLR0917 - one call gives all of them
        self,
        bootstrap: Bootstrap,
        connect: Callable[[Bootstrap], "WorkerClient"],
        choice: Choice,
        after: int,
        note_assignment: Callable[[Assignment], None],
        note_offer: Callable[[OfferResize], None],
    ) -> None:
        self._address = bootstrap.address
        self._lease_seconds = bootstrap.lease_seconds
        self._choice = choice
        self._note_assignment = note_assignment
        self._note_offer = note_offer
        self._generation = after  # the newest generation of which this worker is a member
        self._left = after  # the newest generation that it has left
        self._interrupted = Interrupt(0, "")  # the newest interrupt
        self._succession: Succession | None = None  # while its operations may be resumed
        self._formation: Formation | None = None  # the present attempt, until the program or the engine takes it
        self._formations: list[Formation] = []  # the attempts whose threads may still run
        self._departed: list[Depart] = []  # members that have exited with 0
        self._is_ready = False  # the program can take the formation: all its events were handled
        self._end: Exception | None = None
        self._needs_state = bootstrap.is_late  # True until the worker has the others' state
        self._commits = 0  # the number of commits of the program's state
        self._states = 0  # the number of running functions that can restart after an exception
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)  # entered by its lock: see `InFlight.renew_lock`
        self._events: SimpleQueue[Event] = SimpleQueue()

        self._client = connect(bootstrap)
        self._threads = [
            threading.Thread(target=target, name=name, daemon=True)
            for target, name in ((self._control, "hvd-recovery"), (self._follow, "hvd-notices"))
        ]
        for thread in self._threads:
            thread.start()

    @property
    def generation(self) -> int:
        """The newest generation of which this worker was a member."""
        return self._generation

    @property
    def interruption(self) -> str | None:
        """Why the generation before the present one was interrupted; None if it was not."""
        if self._interrupted.generation != self._generation - 1 or not self._interrupted.reason:
            return None
        return self._interrupted.reason

    def enter(self, reason: JoinReason, error: str = "") -> Entered:
        """Wait for the next generation and enter it; called by the program.

        Args:
            reason: BEGIN, RESIZE or RESTORE.
            error: the error text of a RESTORE. The rendezvous ends a job whose error repeats.

        Raises:
            RendezvousError, InitializationError: there is no further generation for this worker.
        """
        while True:
            with self._lock:
                while self._end is None and self._formation is not None and not self._is_ready:
                    self._changed.wait(_LOOK_SECONDS)
                if self._end is not None:
                    raise self._end
                if self._formation is not None:
                    return self._enter()
                # No attempt is running, or the program leaves a generation in which its operations have continued.
                succession, self._succession = self._succession, None
                self._left = self._generation  # so that the recovery thread starts no formation

            report = Report()
            if succession is not None:
                rank = succession.engine.rank
                try:
                    succession.suspend(error or f"rank {rank} restarts its function, since the job changes")
                except StuckError as stuck:
                    _end_process(str(stuck))
                report = succession.report()
                succession.engine.close()
            with self._lock:
                self._begin(replace(report, reason=reason, error=error, pending=()))

    @contextmanager
    def declare(self) -> Iterator[None]:
        """A context in which this worker can restart its function, so that the job replaces lost workers."""
        with self._lock:
            self._states += 1
        try:
            if self._states == 1:
                self._client.declare(needs_state=self._needs_state)
            yield
        finally:
            with self._lock:
                self._states -= 1

    def note_commit(self) -> None:
        """Count a commit of the program's state."""
        self._commits += 1

    def note_synced(self) -> None:
        """Report that this worker has the others' state, so that new workers can get it from this one."""
        if self._needs_state:
            self._needs_state = False
            self._client.declare()

    def close(self) -> None:
        """End the threads. The engine stays open; its owner closes it."""
        self._events.put(Closed())
        self._client.close()
        with self._lock:
            formation, self._formation = self._formation, None
            self._succession = None
        if formation is not None:
            formation.abandon()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(_JOIN_SECONDS)
        # A thread that returns from gloo after Python's finalization would end this process with SIGABRT.
        deadline = time.monotonic() + CONNECT_LIMIT.total_seconds() + _JOIN_SECONDS
        for formation in self._formations:
            formation.thread.join(max(0.0, deadline - time.monotonic()))

    def abandon(self) -> None:
        """Keep this object forever in a forked child, which has neither its threads nor its connections."""
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self))

    # Called by the engine, in any thread.

    def note_failure(self, generation: int, reason: str) -> None:
        """Note that a generation has failed."""
        self._events.put(GenerationFailed(generation, reason))

    def _follow(self) -> None:
        """Receive the notices of the rendezvous, until the client is closed.

        This thread passes exits and interrupts to the succession itself: the recovery thread may be waiting in it.
        """
        try:
            for notice in self._client.follow():
                match notice:
                    case Depart():
                        self._note_departed(notice)
                    case Interrupt(generation, reason) if (succession := self._succession) is not None:
                        self._events.put(notice)
                        succession.note_interrupted(generation, reason)
                    case Interrupt() | OfferResize():
                        self._events.put(notice)
        except RendezvousError as error:
            _LOG.warning("this worker receives no more notices of the job: %s", error)  # operations will notice losses
        except BaseException as error:  # a bug: no thread may wait for this one's notices
            self._give_up(InitializationError(f"this worker receives no more notices of the job ({error!r})"))
            raise

    def _note_departed(self, notice: Depart) -> None:
        with self._lock:
            self._departed = [each for each in self._departed if each.generation >= self._generation] + [notice]
            succession = self._succession
        if succession is not None:
            succession.note_departed(notice.generation, notice.rank)

    def _control(self) -> None:
        try:
            while not isinstance(event := self._events.get(), Closed):
                self._handle(event)
        except StuckError as error:
            _end_process(str(error))
        except BaseException as error:  # a bug: no thread may wait for this one
            self._give_up(InitializationError(f"this worker can no longer recover ({error!r})"))
            raise

    def _handle(self, event: Event) -> None:
        match event:
            case Joined(formation) | Connected(formation) | Failed(formation):
                # Another one was abandoned.
                if formation is self._formation:
                    self._handle_formation(event)
            case OfferResize(generation):
                # An earlier one is of a generation that this worker has left.
                if generation > self._left:
                    self._note_offer(event)
            case Interrupt(generation, reason):
                self._interrupted = max(self._interrupted, event, key=lambda each: each.generation)
                self._leave(generation, reason)
            case GenerationFailed(generation, reason):
                self._leave(generation, reason, error=reason)

    def _handle_formation(self, event: FormationEvent) -> None:
        match event:
            case Joined(_, membership):
                self._join(membership)
            case Connected(formation):
                self._continue_in(formation)
            case Failed(_, error, is_final=True):
                self._give_up(error)
            case Failed(_, error):
                self._leave(self._generation, str(error), error=str(error))

    def _leave(self, generation: int, reason: str, error: str = "") -> None:
        """Leave a failed generation, if it is the present one and was not left before.

        Suspend the engine, and start the formation of the next generation.
        """
        with self._lock:  # the program may be about to take the generation, or to leave it by itself
            if not generation == self._generation > self._left:
                return
            self._left, succession = self._generation, self._succession
            if succession is None:
                former = self._join_again(Report(JoinReason.FORM, error=error))
        _LOG.debug("interrupted: %s", reason)
        if succession is not None:
            ACCOUNT.note_interrupted()
            succession.engine.recording.note(f"interrupted: {reason}")
            succession.suspend(reason)
            with self._lock:
                if self._succession is not succession:
                    return  # the program has just called `enter`
                former = self._join_again(replace(succession.report(), error=error))

        if former is not None:
            former.abandon()
        if succession is not None:
            succession.disconnect()

    def _join_again(self, report: Report) -> Formation | None:
        """Start another formation; return the present one, which must be abandoned. The caller holds the lock."""
        former, self._formation = self._formation, None
        self._begin(report)
        return former

    def _begin(self, report: Report) -> None:
        """Start another formation, with the state of this worker added to the report. The caller holds the lock."""
        report = replace(report, has_state=bool(self._states), needs_state=self._needs_state, commits=self._commits)
        self._is_ready = False
        self._formation = Formation(
            self._client, self._address, self._choice, self._generation, report, self._events.put
        )
        self._formations = [each for each in self._formations if each.thread.is_alive()] + [self._formation]
        self._formation.start()

    def _join(self, membership: Membership) -> None:
        """Follow the decision of a published generation."""
        self._generation = membership.generation
        _LOG.debug("published: generation %d, %s", membership.generation, membership.decision.action)
        succession, decision, numbers = self._succession, membership.decision, membership.assignment
        if succession is not None:
            if decision.action is Action.RETRY:
                succession.adopt(membership.generation, numbers.rank, numbers.size, decision)
            else:
                succession.engine.fail_all(_explain(decision))
                with self._lock:
                    self._succession = None  # the program will enter the generation
        self._leave(self._interrupted.generation, self._interrupted.reason)

    def _continue_in(self, formation: Formation) -> None:
        """Continue in the connected generation, or let the program enter it."""
        _LOG.debug("connected: generation %d", self._generation)
        succession = self._succession
        if succession is None:
            with self._lock:
                self._is_ready = formation is self._formation
                self._changed.notify_all()
            return

        # The program can read its new rank before one of its operations completes.
        if formation.membership is not None:
            self._note_assignment(formation.membership.assignment)
        try:
            succession.resume(*formation.release())
        except HorovodInternalError as error:
            self._leave(self._generation, str(error), error=str(error))
            return
        with self._lock:
            self._formation = None
            self._changed.notify_all()
        ACCOUNT.note_resumed(self._generation)
        _LOG.debug("resumed: generation %d", self._generation)

    def _enter(self) -> Entered:
        """Hand the formed generation to the program. The caller holds the lock."""
        formation, self._formation = self._formation, None
        if formation is None or formation.membership is None:
            raise AssertionError("there is a formation with a membership")
        numbers = formation.membership.assignment
        retry = Retry(self.note_failure)
        engine = Engine(*formation.release(), retry, self._lease_seconds, self._generation)
        self._succession = succession = Succession(engine, retry)
        for notice in self._departed:
            succession.note_departed(notice.generation, notice.rank)
        return numbers, engine, formation.membership.decision

    def _give_up(self, error: Exception) -> None:
        """Fail all operations: there is no further generation for this worker."""
        with self._lock:
            self._end = error
            self._formation = None
            self._changed.notify_all()
        if self._succession is not None:
            self._succession.engine.fail_all(lambda title: HorovodInternalError(f"{title} can no longer run: {error}"))


def _end_process(sentence: str) -> None:
    """End the process immediately: at a regular exit the program or a library could wait for its GPU forever."""
    os.write(sys.stderr.fileno(), f"hvdrun: {sentence}\n".encode())
    os._exit(1)


def _explain(decision: RecoveryDecision) -> Callable[[str], Exception]:
    """A function that creates the error of an operation that will not run, from its title."""
    if decision.action is Action.RESIZE:
        return lambda _: HostsUpdatedInterrupt(skip_sync=decision.removed_only)
    return lambda title: HorovodInternalError(f"{title} was interrupted: {decision.reason}")
