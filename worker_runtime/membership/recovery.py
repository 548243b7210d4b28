"""What a worker does between the loss of a member and the next generation, whatever its program is doing meanwhile.

A thread in the background hears that the generation was interrupted, or of trouble that this worker has noticed by
itself. It suspends the engine, reports what is pending to the rendezvous, and waits for the next generation and its
verdict, the same for all:

- RETRY: what is pending runs again with the ranks that are left, and the program notices nothing.
- RESTORE, RESIZE: what is pending raises. Under `elastic.run` the function begins again: the program comes back here
  (`enter`) and takes the generation, whose members are being connected in the meantime.

Each try is a `Formation`. What is lost while it is under way makes it worthless, and another begins: pending operations
and kept gradients belong to the process, and outlive any number of tries.

Long because the thread that recovers and the program that comes for a generation share one state under one lock.
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
    Assignment,
    Bootstrap,
    Decision,
    Depart,
    Interrupt,
    JoinReason,
    Membership,
    OfferResize,
    RendezvousError,
    Report,
    Verdict,
)

if TYPE_CHECKING:
    from worker_runtime.rendezvous import WorkerClient

# The times of its messages at the level DEBUG show how long each part of a recovery takes (benchmarks/recovery.py).
_LOG = logging.getLogger("hvd.recovery")

_JOIN_SECONDS = 5.0  # for a thread of ours to end
_LOOK_SECONDS = 0.5  # between two looks while a generation is awaited; the thread is woken, so this is a second chance


Entered = tuple[Assignment, Engine, Verdict]  # a generation as the program enters it


class Recovery:
    """Keeps this worker a member of an elastic job; `close` ends its threads.

    Args:
        bootstrap: how to reach the rendezvous.
        connect: makes a client of it.
        choice: through which backends tensors travel.
        after: the last generation that this process was a member of.
        note_assignment: gets this worker's new numbers before the program continues without having noticed.
        note_offer: is called when hosts have come or gone: with a growing number, whether some come, whether some go.
    """

    def __init__(  # noqa: PLR0917 - as Formation's
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
        self._generation = after  # the newest that this worker knows to be a member of
        self._left = after  # the newest that it does not continue with
        self._interrupted = Interrupt(0, "")  # the newest that was
        self._succession: Succession | None = None  # while its operations may be resumed
        self._formation: Formation | None = None  # that is under way, or waits to be taken
        self._formations: list[Formation] = []  # whose threads have not ended, as far as is known
        self._departed: list[Depart] = []  # members that have ended well
        self._is_ready = False  # the formation waits to be taken: all its events have been handled
        self._end: Exception | None = None
        self._needs_state = bootstrap.is_late  # until it has the others' state
        self._commits = 0  # of the program's state
        self._states = 0  # functions under way that begin again after an exception
        self._changed = threading.Condition()
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
        """The newest that this worker was a member of."""
        return self._generation

    def enter(self, reason: JoinReason, trouble: str = "") -> Entered:
        """Become a member of the next generation, in the program's own time; waits for it.

        Args:
            reason: BEGIN, RESIZE or RESTORE.
            trouble: why, of a RESTORE: an error that comes again and again is the program's own.

        Raises:
            RendezvousError, InitializationError: there will be none for this worker.
        """
        while True:
            with self._changed:
                while self._end is None and self._formation is not None and not self._is_ready:
                    self._changed.wait(_LOOK_SECONDS)
                if self._end is not None:
                    raise self._end
                if self._formation is not None:
                    return self._enter()
                # There is none under way, or one in which what was pending has continued: the program has left that.
                succession, self._succession = self._succession, None
                self._left = self._generation  # so that no other thread begins a formation
            report = Report()
            if succession is not None:
                try:
                    succession.suspend(trouble or f"rank {succession.engine.rank} begins its function again")
                except StuckError as error:
                    _end_process(str(error))
                report = succession.report()
                succession.engine.close()
            with self._changed:
                self._begin(replace(report, reason=reason, error=trouble, pending=()))

    @contextmanager
    def declare(self) -> Iterator[None]:
        """Within it, this worker can begin again after an exception, and lost ones are replaced."""
        with self._changed:
            self._states += 1
        try:
            if self._states == 1:
                self._client.declare(needs_state=self._needs_state)
            yield
        finally:
            with self._changed:
                self._states -= 1

    def note_commit(self) -> None:
        """The program has committed its state."""
        self._commits += 1

    def note_synced(self) -> None:
        """This worker has the others' state: if they are lost, others may have it from here."""
        if self._needs_state:
            self._needs_state = False
            self._client.declare()

    def close(self) -> None:
        """End the threads; the engine is its owner's."""
        self._events.put(Closed())
        self._client.close()
        with self._changed:
            formation, self._formation = self._formation, None
            self._succession = None
        if formation is not None:
            formation.abandon()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(_JOIN_SECONDS)
        # A thread that comes back from gloo when Python has gone would end this process with SIGABRT.
        deadline = time.monotonic() + CONNECT_LIMIT.total_seconds() + _JOIN_SECONDS
        for formation in self._formations:
            formation.thread.join(max(0.0, deadline - time.monotonic()))

    def abandon(self) -> None:
        """In a forked child, which has neither the threads nor the connections: touch nothing, for ever."""
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self))

    # For the engine, in its threads.

    def note_trouble(self, generation: int, reason: str) -> None:
        """A generation cannot continue."""
        self._events.put(GenerationFailed(generation, reason))

    def _follow(self) -> None:
        """Hear what the rendezvous has to say, until the client is closed.

        How others have ended is reported to the engine from here: the other thread may wait for them in it.
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
            _LOG.warning("this worker hears nothing more of the job: %s", error)  # what is lost shows in operations
        except BaseException as error:  # a fault of ours: nothing may wait for what this thread would have heard
            self._give_up(InitializationError(f"this worker hears nothing more of the job ({error!r})"))
            raise

    def _note_departed(self, notice: Depart) -> None:
        with self._changed:
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
        except BaseException as error:  # a fault of ours: nothing may wait for this thread
            self._give_up(InitializationError(f"this worker cannot recover any more ({error!r})"))
            raise

    def _handle(self, event: Event) -> None:
        match event:
            case Joined(formation) | Connected(formation) | Failed(formation):
                if formation is self._formation:  # else it was abandoned meanwhile
                    self._handle_formation(event)
            case OfferResize(generation):
                if generation > self._left:  # else it was made to members that have gone
                    self._note_offer(event)
            case Interrupt(generation, reason):
                self._interrupted = max(self._interrupted, event, key=lambda each: each.generation)
                self._leave(generation, reason)
            case GenerationFailed(generation, reason):
                self._leave(generation, reason, trouble=reason)

    def _handle_formation(self, event: FormationEvent) -> None:
        match event:
            case Joined(_, membership):
                self._join(membership)
            case Connected(formation):
                self._go_on(formation)
            case Failed(_, error, is_final=True):
                self._give_up(error)
            case Failed(_, error):
                self._leave(self._generation, str(error), trouble=str(error))

    def _leave(self, generation: int, reason: str, trouble: str = "") -> None:
        """That generation cannot continue: ask for another, unless that was done."""
        if generation == self._generation > self._left:
            self._recover(reason, trouble)

    def _recover(self, reason: str, trouble: str) -> None:
        """The present generation cannot continue: ask for another."""
        succession = self._succession
        self._left = self._generation
        _LOG.debug("interrupted: %s", reason)
        if succession is not None:
            succession.suspend(reason)
        with self._changed:
            if self._succession is not succession:
                return  # the program has just come for another by itself
            former, self._formation = self._formation, None
            report = Report(JoinReason.FORM) if succession is None else succession.report()
            self._begin(replace(report, error=trouble))
        if former is not None:
            former.abandon()
        if succession is not None:
            succession.disconnect()

    def _begin(self, report: Report) -> None:
        """Begin another formation; the caller holds the lock. What is true of any report is added to this one."""
        report = replace(report, has_state=bool(self._states), needs_state=self._needs_state, commits=self._commits)
        self._is_ready = False
        self._formation = Formation(
            self._client, self._address, self._choice, self._generation, report, self._events.put
        )
        self._formations = [each for each in self._formations if each.thread.is_alive()] + [self._formation]
        self._formation.start()

    def _join(self, membership: Membership) -> None:
        """A generation was published: do what its verdict says."""
        self._generation = membership.generation
        _LOG.debug("published: generation %d, %s", membership.generation, membership.verdict.decision)
        succession, verdict, numbers = self._succession, membership.verdict, membership.assignment
        if succession is not None:
            if verdict.decision is Decision.RETRY:
                succession.adopt(membership.generation, numbers.rank, numbers.size, verdict)
            else:
                succession.engine.fail_all(_explain(verdict))
                with self._changed:
                    self._succession = None  # the program comes for the generation
        self._leave(self._interrupted.generation, self._interrupted.reason)

    def _go_on(self, formation: Formation) -> None:
        """The members of the newest generation are connected: continue, or let the program do so."""
        _LOG.debug("connected: generation %d", self._generation)
        succession = self._succession
        if succession is None:
            with self._changed:
                self._is_ready = formation is self._formation
                self._changed.notify_all()
            return
        if formation.membership is not None:  # before anything is done with them that the program waits for
            self._note_assignment(formation.membership.assignment)
        try:
            succession.resume(*formation.release())
        except HorovodInternalError as error:
            self._leave(self._generation, str(error), trouble=str(error))
            return
        with self._changed:
            self._formation = None
            self._changed.notify_all()
        _LOG.debug("resumed: generation %d", self._generation)

    def _enter(self) -> Entered:
        """Let the program have what was formed; the caller holds the lock."""
        formation, self._formation = self._formation, None
        if formation is None or formation.membership is None:
            raise AssertionError("there is a formation with a membership")
        numbers = formation.membership.assignment
        retry = Retry(self.note_trouble)
        engine = Engine(*formation.release(), retry, self._lease_seconds, self._generation)
        self._succession = succession = Succession(engine, retry)
        for notice in self._departed:
            succession.note_departed(notice.generation, notice.rank)
        return numbers, engine, formation.membership.verdict

    def _give_up(self, error: Exception) -> None:
        """There will be no further generation for this worker."""
        with self._changed:
            self._end = error
            self._formation = None
            self._changed.notify_all()
        if self._succession is not None:
            self._succession.engine.fail_all(
                lambda title: HorovodInternalError(f"{title} cannot run any more: {error}")
            )


def _end_process(sentence: str) -> None:
    """At once: the program may wait for its GPU for ever, and so may whatever would run at an orderly end."""
    os.write(sys.stderr.fileno(), f"hvdrun: {sentence}\n".encode())
    os._exit(1)


def _explain(verdict: Verdict) -> Callable[[str], Exception]:
    """What is raised by an operation that will not run, by its title."""
    if verdict.decision is Decision.RESIZE:
        return lambda _: HostsUpdatedInterrupt(skip_sync=verdict.removed_only)
    return lambda title: HorovodInternalError(f"{title} was interrupted: {verdict.reason}")
