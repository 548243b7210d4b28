"""Where every collective passes: asked for here, run in the one order of the generation, awaited through a handle.

A rank asks the sequencer for what it has ready, in whatever order, and runs what is released in the order of the
releases; nothing else touches the group. Alone in its set, a rank runs its operations at once and asks nobody.

What belongs to one generation stands in `attempt.py`. This executor has one attempt, and fails with it; in a job that
outlives its workers `ElasticEngine` goes on in another.

Long because all that an operation goes through is to be read in one place.
"""

import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any, Self, TypeVar

import torch

from worker_runtime.collectives import Allreduce, Combination, Reduction
from worker_runtime.collectives.agreements import Commit, Failed, Join
from worker_runtime.coordination.handle import Handle, are_running
from worker_runtime.coordination.link import Link, connect
from worker_runtime.coordination.operation import Members, Operation
from worker_runtime.coordination.ordering.questions import GLOBAL_SET, Kind, Release
from worker_runtime.coordination.wire import Farewell, Frame
from worker_runtime.engine.generation import Generation
from worker_runtime.engine.handle_table import HandleTable
from worker_runtime.engine.names import Names
from worker_runtime.engine.process_sets import ProcessSets
from worker_runtime.errors import (
    DeadlockError,
    DuplicateNameError,
    ForkedError,
    HorovodInternalError,
    NotInitializedError,
    OperationFailedError,
    OperationRefusedError,
    ShutDownError,
    UnsendableError,
)
from worker_runtime.groups.group import Group
from worker_runtime.groups.works import await_works, describe_cause
from worker_runtime.rendezvous import limit_silence

ResultT = TypeVar("ResultT")

_CAUSE_SECONDS = 0.3  # how long who has failed waits to hear from the sequencer that a rank was lost
_LEASE_SECONDS = 30.0  # of a host, where no launcher of ours has said another
_AFTER_LEASE_SECONDS = 1.0  # a host that nobody reaches is for the rendezvous to find, which knows more of it
_LOOK_SECONDS = 0.5  # between two looks whether all hosts are reached; each costs less than a millisecond
_INTERRUPT_SECONDS = 0.3  # how long what was interrupted is waited for: now and then gloo forgets one


class Calls(threading.local):
    """Of each thread, what it has asked for.

    Args:
        askers: where each thread that has any enters its identifier.

    asked: how many operations.
    unnamed: the set and name of the operation without a name that was counted last.
    """

    def __init__(self, askers: set[int]) -> None:
        askers.add(threading.get_ident())
        self.asked = 0
        self.unnamed: tuple[int, str] | None = None


class Engine:
    """Runs the operations of a job; its methods may be called from any thread.

    Args:
        group: of the generation; None in a world of one.
        link: to the sequencer; None in a world of one.
        find_cause: asked after a failure whether a better reason is known than gloo's.
        lease_seconds: how long a host may be silent before it is lost.

    rank, size: of this worker, and of the job.
    generation: in which it runs them.
    key: of its first generation, with which members prove to each other what they send; empty in a world of one.
    handle_table: the numbers under which programs know their asynchronous operations.
    askers: the program's threads that have ever asked, by their identifiers.
    calls: what the present thread has asked for.
    origin: this worker's rank when this executor was made.
    lineage: the present members, in the order of their ranks, by the ranks that they had when this executor was made.
    committed: how many steps all ranks have committed, and the lineage of those who took part in the last one; also of
        the last rank that is left, which waits for nobody.
    has_stepped: so they have at least one.
    is_stopping: a stop notice for the job had come when the last of these steps was released; the same on all ranks.
    is_elastic: gradients are kept until their step is committed.
    last_goodbye: what is said when the process ends.
    silence_seconds: how long a member's host may acknowledge nothing of what was sent to it, which no member that only
        is busy does, until it counts as cut off from this one.
    """

    is_elastic = False
    last_goodbye = Frame.END

    def __init__(
        self,
        group: Group | None = None,
        link: Link | None = None,
        find_cause: Callable[[], str | None] = lambda: None,
        lease_seconds: float = _LEASE_SECONDS,
    ) -> None:
        self.silence_seconds = limit_silence(lease_seconds) + _AFTER_LEASE_SECONDS
        self.key = group.key if group else b""
        self.handle_table = HandleTable(self.wait)
        self._find_cause = find_cause
        self._lock = threading.RLock()  # a signal's handler may call shutdown(), and nothing else
        self._in_flight: dict[tuple[int, str], Handle[Any]] = {}  # by set and name, until they are waited for
        self._names = Names()
        self.askers: set[int] = set()
        self.calls = Calls(self.askers)
        self._commits: Counter[int] = Counter()  # rounds that were completed, by set
        self._closed = False
        self._is_forked = False
        self._look_at = 0.0  # when whoever waits for gloo looks again whether all hosts are reached
        self._attempt = Generation(self, self._lock)
        if group is not None and link is not None:
            self._attempt = Generation(self, self._lock, group.generation, group.rank, group.size)
            self._attempt.connect(group, link)
        self.rank, self.size, self.generation = self._attempt.rank, self._attempt.size, self._attempt.number
        self.origin, self.lineage = self.rank, tuple(range(self.size))
        self.committed = 0, self.lineage
        self.has_stepped = self.is_stopping = False

    @classmethod
    def connect(
        cls,
        group: Group | None,
        limit: timedelta,
        find_cause: Callable[[], str | None] = lambda: None,
        lease_seconds: float = _LEASE_SECONDS,
    ) -> Self:
        """The executor of a group that has been formed; it owns the group.

        Args:
            group: of the generation; None in a world of one.
            limit: how long to try to reach the sequencer.
            find_cause: see the class.
            lease_seconds: see the class.

        Raises:
            SequencerError: the sequencer was not reached; the group is closed.
        """
        return cls(group, connect(group, limit) if group else None, find_cause, lease_seconds)

    @property
    def process_sets(self) -> ProcessSets:
        """The process sets that all ranks know."""
        return self._attempt.sets

    @property
    def has_failed(self) -> bool:
        """Nothing is answered any more: a member has ended, or its connection."""
        return self._attempt.failure is not None

    def begin_again(self) -> None:
        """The elastic function begins again in this generation, on all ranks, and may add its process sets anew."""
        with self._lock:
            self._attempt.sets.supersede()

    def find_members(self, process_set: int, title: str) -> Members:
        """The set as this rank sees it; see `ProcessSets.find`.

        Raises:
            ValueError: there is no such set, or this rank is not in it.
            HorovodInternalError: `shutdown()` was called, or the set has lost a member.
        """
        self._check_open()
        return self._attempt.sets.find(process_set, title)

    def make_name(self, kind: str, name: str | None, process_set: int = GLOBAL_SET) -> str:
        """The name under which an operation travels: "allreduce.loss"; see `Names`."""
        made = self._names.make(kind, name, process_set)
        if name is None:
            self.calls.unnamed = process_set, made
        return made

    def fail(self, process_set: int, name: str, error: BaseException, *, is_of_step: bool = False) -> None:
        """This rank's call of a name has failed before it could ask: the others are refused theirs, and told why.

        It counts as the rank's use of the name. It is not waited for; the rank's next use of the name waits for it.
        """
        reason = f"{type(error).__name__}: {error}"
        with suppress(HorovodInternalError, ValueError):  # else nobody waits: no such set, no member, or all is over
            failed = Failed(self._attempt.sets.find(process_set, name), name, reason, is_of_step=is_of_step)
            with self._lock:
                earlier = self._in_flight.get((process_set, name))
                if earlier is not None and isinstance(earlier.operation, Failed):
                    earlier.operation.followers.append(failed)
                    self.calls.asked += 1
                    return
            self.submit(failed, at_once=True)

    @contextmanager
    def preparing(self, process_set: int, name: str) -> Iterator[None]:
        """While what is to be asked for is made: where that fails, the other ranks are told so."""
        try:
            yield
        except BaseException as error:
            self.fail(process_set, name, error)
            raise

    def submit(
        self, operation: Operation[ResultT], *, at_once: bool = False, is_awaited: bool = False
    ) -> Handle[ResultT]:
        """Ask for an operation; it runs when all members of its set have asked for it.

        Args:
            operation: with its tensors, which must be left alone until its handle was waited for.
            at_once: ask now, and not with the operations that follow.
            is_awaited: the caller waits for it right away, so that no other thread need be woken for it.

        Raises:
            ValueError: an operation of this name is in flight in its set, or it cannot be sent.
            HorovodInternalError: it cannot run any more.
        """
        question = operation.question
        key = question.process_set, question.name
        while (earlier := self._in_flight.get(key)) is not None and earlier.is_abandoned:
            with suppress(HorovodInternalError):
                self.wait(earlier)
        with self._lock:
            self._check_open()
            operation = self._admit(operation)
            attempt, driver = self._attempt, self._attempt.driver
            handle = Handle(operation)
            earlier = self._in_flight.get(key)
            if earlier is not None and not self._make_way(earlier):
                raise DuplicateNameError(operation.title)
            is_alone = driver is None or attempt.sets.count(question.process_set) == 1
            if not self._may_ask(handle, key):
                driver = None
            elif is_alone:
                self._run_alone(handle)
            else:
                self._in_flight[key] = handle
        if driver is not None and not is_alone:
            try:
                driver.ask(handle, at_once=at_once, is_awaited=is_awaited)
            except UnsendableError:
                self._forget(handle)
                raise
        self.calls.asked += 1
        return handle

    def run(self, operation: Operation[ResultT]) -> ResultT:
        """Ask for an operation and wait for its result; raises what `submit` and `wait` raise."""
        return self.wait(self.submit(operation, is_awaited=True))

    def wait(self, handle: Handle[ResultT]) -> ResultT:
        """Wait for an operation and return its result; may be repeated, by one thread at a time.

        Raises:
            HorovodInternalError: the ranks did not agree on it, it failed, or `shutdown()` came first.
        """
        while not handle.is_finished:
            self.await_answer(handle)  # which may come with the result
            terms, works = handle.terms, handle.works
            if not handle.is_failed and terms is not None:
                error = await_works(works, self.listen)
                if error is not None:
                    self._report_failure(handle, terms, error)
            if handle.failure is not None:
                handle.works = ()
                self._forget(handle)
                raise handle.failure
            if terms is not None and not handle.is_finished and self._settle(handle, terms):
                handle.finish(handle.operation.finish(terms, handle.payload))
            # else a rank was lost, and it is run again with the others
        return handle.result

    def note_step(self, process_set: int, index: int) -> None:
        """A step of a set is complete on this rank.

        Args:
            process_set: its number.
            index: of the step's last release, the same on all ranks; what came before it was told before.
        """
        if process_set == GLOBAL_SET:
            self.has_stepped = True
            self.is_stopping |= index >= self._attempt.stops_from

    def ask_for_notice(self) -> bool:
        """Whether a rank has heard of a stop notice for the job; all ranks ask at the same places.

        Raises:
            HorovodInternalError: a rank has gone.
        """
        everyone = self.find_members(GLOBAL_SET, "stopping")
        knows = self.is_stopping or self._attempt.stops_from < math.inf
        known = torch.tensor([knows], dtype=torch.int32, device="cpu")
        (found,) = self.run(Allreduce([known], Combination(Reduction.MAX), everyone, self.make_name("stopping", None)))
        return bool(found.item())

    def commit(self, among: Members) -> None:
        """Wait until all members have come to the end of their step.

        Raises:
            HorovodInternalError: a rank was lost.
        """
        self.run(Commit(among, self._commits[among.number] + 1))

    def progress(self) -> None:
        """Run what has been released meanwhile, without waiting."""
        driver = self._attempt.driver
        if driver is not None:
            driver.progress()

    def listen(self) -> None:
        """Hear what the sequencer has to say, without waiting. For those who wait for gloo.

        Raises:
            RuntimeError: the group has failed, and gloo still has not ended what it was interrupted in.
        """
        attempt = self._attempt
        if attempt.driver is not None:
            attempt.driver.listen()
        now = time.monotonic()
        if attempt.failure is None and now > self._look_at:
            self._look_at = now + _LOOK_SECONDS
            self._look_for_silence(attempt)
        if attempt.failure is not None and now > attempt.failed_at + _INTERRUPT_SECONDS:
            raise RuntimeError(attempt.failure)

    def _look_for_silence(self, attempt: Generation) -> None:
        address = attempt.runner.find_silent(self.silence_seconds)
        if address:
            attempt.give_up(
                f"rank {self.rank} does not reach {address} any more, which has acknowledged nothing for "
                f"{self.silence_seconds:.3g} s"
            )

    def await_answer(self, handle: Handle[Any]) -> None:
        """Wait until an operation is released or refused: then it is under way, or has failed."""
        driver = self._attempt.driver
        if driver is not None and not handle.is_answered:
            driver.await_answer(handle)
        if not handle.is_answered:
            handle.fail(self._explain_end(handle.title))

    def conclude(self, handles: Sequence[Handle[Any]], terms: Sequence[Release], results: Sequence[object]) -> None:
        """Operations were released and finished together; the caller holds the lock. For the generation."""
        for handle, term, result in zip(handles, terms, results, strict=True):
            handle.complete(term, result)
            self._note_end(handle, term)

    def _settle(self, handle: Handle[Any], terms: Release) -> bool:
        """Its works have ended well; whether its result will be used: False where it was interrupted before."""
        with self._lock:
            if handle.terms is not terms:
                return False
            handle.succeed()
            self._note_end(handle, terms)
        return True

    def _note_end(self, handle: Handle[Any], terms: Release) -> None:
        """It has ended well. The caller holds the lock."""
        del terms
        self._forget(handle)

    def is_in_flight(self, handle: Handle[Any]) -> bool:
        """Whether nobody has had its result yet."""
        question = handle.operation.question
        return self._in_flight.get((question.process_set, question.name)) is handle

    def _forget(self, handle: Handle[Any]) -> None:
        """The operation has ended: its name is free."""
        if self.is_in_flight(handle):
            question = handle.operation.question
            del self._in_flight[question.process_set, question.name]

    def _report_failure(self, handle: Handle[Any], terms: Release, error: RuntimeError) -> None:
        """Turn gloo's error into ours, and tell the peers by closing the connections: a failure does not spread."""
        del terms
        attempt = self._attempt
        attempt.runner.interrupt()
        attempt.runner.keep(handle.works)
        if attempt.driver is not None:
            attempt.driver.await_end(_CAUSE_SECONDS)  # who lost the rank that gloo has missed names it
        cause = attempt.failure or self._find_cause() or describe_cause(error)
        if attempt.failure is None:
            if attempt.driver is not None:
                # who has no connection to this rank, or one that gloo forgets, hears of it too
                attempt.driver.quit(lambda: Farewell(f"{handle.title} failed there: {cause}"))
            attempt.give_up(cause)
        handle.fail(OperationFailedError(handle.title, self.rank, cause))

    def close(self, *, end: str = "") -> None:
        """End the group; what is still pending fails here and there.

        end: how the process ends, of which the others hear then: "ended (exit code 3)"; "" where it does not.
        """
        with self._lock:
            self._closed = True
        attempt = self._attempt
        if attempt.driver is not None and not attempt.is_closed:
            aborted = f"it {end or 'called shutdown()'} while operations were under way"
            attempt.is_closed = True
            attempt.driver.leave(
                lambda: Farewell(aborted if are_running([*self._in_flight.values()]) else "", end),
                self.last_goodbye if end else Frame.LEAVE,
            )
        handles, self._in_flight = list(self._in_flight.values()), {}
        if are_running(handles):
            attempt.runner.interrupt()
        for handle in handles:
            if not handle.is_done():
                handle.fail(ShutDownError(handle.title, self.rank))
        if attempt.runner.close([handle.works for handle in handles]):
            for handle in handles:
                self._let_go(handle)

    def _let_go(self, handle: Handle[Any]) -> None:
        """Drop the works of an operation that has ended, with its failure kept: they hold the group's connections."""
        error = await_works(handle.works)
        if error is not None:
            handle.fail(OperationFailedError(handle.title, self.rank, describe_cause(error)))
        handle.works = ()

    def abandon(self) -> None:
        """In a forked child: forget the group, whose threads and connections belong to the parent."""
        self._closed = self._is_forked = True
        self._lock = threading.RLock()  # another thread of the parent may have held it
        attempt = self._attempt
        for handle in self._in_flight.values():
            attempt.runner.keep(handle.works)
            handle.fail(ForkedError(self.rank))
        if attempt.driver is not None:
            attempt.driver.abandon()
        attempt.runner.abandon()

    def note_release(self, terms: Release) -> None:
        """Something is run. For the attempt."""
        kind = terms.question.signature.kind
        if kind is Kind.JOIN:
            self._names.count_join()
            self.note_step(terms.question.process_set, terms.index)  # those that had joined have missed the last ones
        elif kind is Kind.REMOVE_SET:
            self._names.forget(terms.extents[0][0])
        elif kind is Kind.COMMIT:
            self._commits[terms.question.process_set] += 1

    def find_join_device(self) -> torch.device | None:
        """Where a rank that has joined makes neutral elements for operations on CUDA. For the attempt."""
        joining = [handle.operation for handle in self._in_flight.values() if isinstance(handle.operation, Join)]
        return joining[0].device if joining else None

    def refuse(self, handle: Handle[Any], reason: str, *, is_deadlock: bool) -> None:
        """The operation will not run, and its name is free. For the attempt."""
        self._forget(handle)
        operation = handle.operation
        driver = self._attempt.driver
        if isinstance(operation, Failed) and operation.followers and not is_deadlock and driver is not None:
            follower, *followers = operation.followers
            follower.followers = followers
            following = self._in_flight[follower.question.process_set, follower.question.name] = Handle(follower)
            driver.ask(following, at_once=True, is_awaited=False)
        handle.fail(DeadlockError(reason) if is_deadlock else OperationRefusedError(reason))

    def end_attempt(self, attempt: Generation, reason: str) -> None:
        """Nothing will be answered any more: what is pending fails. For the attempt."""
        del attempt
        with self._lock:
            handles = list(self._in_flight.values())
        for handle in handles:
            if not handle.is_answered:
                handle.fail(OperationFailedError(handle.title, self.rank, reason))

    def _admit(self, operation: Operation[ResultT]) -> Operation[ResultT]:
        """The operation as it can run now; raises where it cannot. The caller holds the lock."""
        if self._attempt.failure is not None:
            raise OperationFailedError(operation.title, self.rank, self._attempt.failure)
        return operation

    def _make_way(self, earlier: Handle[Any]) -> bool:
        """Whether an operation of the same name may be asked for; who waits for this one may do so later."""
        return earlier.is_done()

    def _may_ask(self, handle: Handle[Any], key: tuple[int, str]) -> bool:
        """Whether somebody listens; if not, the operation waits. The caller holds the lock."""
        del handle, key
        return True

    def _run_alone(self, handle: Handle[Any]) -> None:
        operation = handle.operation
        question = operation.question
        sets = self._attempt.sets
        ranks = sets.list_ranks(question.process_set)
        number = sets.find_free() if question.signature.kind is Kind.ADD_SET else 0
        terms = Release(-1, question, ranks, extents=(tuple(operation.extents),), value=number)
        self._attempt.runner.change_sets(terms)
        if question.signature.kind is Kind.JOIN:
            self._names.count_join()
        handle.begin(terms, (), memoryview(operation.payload if question.signature.payload_dtype else b""))

    def _check_open(self) -> None:
        if self._closed:
            raise ForkedError(self.rank) if self._is_forked else NotInitializedError

    def _explain_end(self, title: str) -> HorovodInternalError:
        if self._attempt.failure is not None:
            return OperationFailedError(title, self.rank, self._attempt.failure)
        return ShutDownError(title, self.rank)
