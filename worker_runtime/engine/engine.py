"""Where every collective passes: submitted here, run in the one order of the generation, awaited through a handle.

A rank asks the sequencer for what it has ready, in whatever order, and runs what is released in the order of the
releases; nothing else touches the group. Alone in its set, a rank runs its operations immediately and asks nobody.

What belongs to one generation stands in `generation.py`. What happens at the loss of a rank is the loss policy's: the
engine fails, or waits until `Succession` has brought it into the next generation.

Long because all that an operation goes through is to be read in one place.
"""

import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import partial
from typing import Any, Self, TypeVar

import torch

from worker_runtime.collectives.agreements import Commit, Failed, Join
from worker_runtime.collectives.allreduce import Allreduce
from worker_runtime.collectives.combination import Combination
from worker_runtime.coordination.group import Group, connect
from worker_runtime.coordination.link import Link
from worker_runtime.coordination.messages import Answer, Answered, Ended, Neutral, Refused, StopNoticed
from worker_runtime.coordination.operation import Handle, Members, Operation, State, are_running
from worker_runtime.coordination.ordering.questions import GLOBAL_SET, Kind, Reduction, Release
from worker_runtime.coordination.wire import Farewell, Frame
from worker_runtime.engine.generation import Generation
from worker_runtime.engine.handle_table import HandleTable
from worker_runtime.engine.in_flight import InFlight, Steps
from worker_runtime.engine.losses import Fail, LossPolicy, Retry
from worker_runtime.engine.process_sets import Names, ProcessSets
from worker_runtime.errors import (
    DeadlockError,
    DuplicateNameError,
    ForkedError,
    HorovodInternalError,
    IllegalTransitionError,
    NotInitializedError,
    OperationFailedError,
    OperationRefusedError,
    ShutDownError,
    StepRevokedError,
    UnsendableError,
)
from worker_runtime.groups.torch_groups import FailedWork, Work, await_works, describe_cause
from worker_runtime.rendezvous import limit_silence

ResultT = TypeVar("ResultT")

# Makes the error of an operation, by its title, that will not run in any generation.
MakeError = Callable[[str], Exception]

_CAUSE_SECONDS = 0.3  # how long a rank on which something failed waits to hear from the sequencer that a rank was lost
_LEASE_SECONDS = 30.0  # of a host, where no launcher of ours has said another
_AFTER_LEASE_SECONDS = 1.0  # a host that nobody reaches is for the rendezvous to find, which knows more of it
_LOOK_SECONDS = 0.5  # between two looks of a waiting thread: at the hosts, or for the next generation
_INTERRUPT_SECONDS = 0.3  # how long what was interrupted is waited for: now and then gloo forgets one
_ENDING_SECONDS = 10.0  # for the recovery to suspend, which may have to wait for a GPU


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
        loss: what is done about the loss of a rank.
        lease_seconds: how long a host may be silent before it is lost.
        number: of the generation, also in a world of one.

    rank, size: of this worker, and of the job.
    generation: in which it runs them.
    key: of its first generation, with which members prove to each other what they send; empty in a world of one.
    handle_table: the numbers under which programs know their asynchronous operations.
    askers: the program's threads that have ever asked, by their identifiers.
    calls: what the present thread has asked for.
    steps: how far the ranks have trained together.
    is_elastic: operations are run again after a loss, and gradients are kept until their step is committed.

    For `Succession`, which changes them under the lock of `in_flight`:

    current: the generation, which may not be connected yet.
    in_flight: the operations that somebody still waits for.
    ending: is held while a generation is ended: the program may close while the recovery suspends.
    is_suspended: what is submitted waits for the next generation.
    is_closed: `close` was called.
    moved: of the last change of the generation: the new rank of each rank that is left, by its former one.
    retry: the loss policy, where operations are run again.
    """

    def __init__(
        self,
        group: Group | None = None,
        link: Link | None = None,
        loss: LossPolicy = Fail(),  # noqa: B008 - it never changes
        lease_seconds: float = _LEASE_SECONDS,
        number: int = 0,
    ) -> None:
        self._silence_seconds = limit_silence(lease_seconds) + _AFTER_LEASE_SECONDS
        self.key = group.key if group else b""
        self.handle_table = HandleTable(self.wait)
        self._loss = loss
        self.retry = loss if isinstance(loss, Retry) else None
        self.is_elastic = self.retry is not None
        self.ending = threading.RLock()
        self._names = Names()
        self.askers: set[int] = set()
        self.calls = Calls(self.askers)
        self.moved: Mapping[int, int] = {}
        self.is_suspended = self.is_closed = self._is_forked = False
        self._make_error: MakeError | None = None  # set when nothing will run any more
        self._look_at = 0.0  # when the thread that waits for gloo looks again whether all hosts are reached
        self.current = Generation(group.generation, group.rank, group.size) if group else Generation(number)
        self.rank, self.size, self.generation = self.current.rank, self.current.size, self.current.number
        self.steps = Steps(self.rank, self.size)
        self.in_flight = InFlight(self.steps, self.retry)
        if group is not None and link is not None:
            self.connect_current(group, link)

    @classmethod
    def connect(
        cls,
        group: Group | None,
        limit: timedelta,
        loss: LossPolicy = Fail(),  # noqa: B008 - as above
        lease_seconds: float = _LEASE_SECONDS,
    ) -> Self:
        """The engine of a group that has been formed; it owns the group.

        Args:
            group: of the generation; None in a world of one.
            limit: how long to try to reach the sequencer.
            loss: see the class.
            lease_seconds: see the class.

        Raises:
            SequencerError: the sequencer was not reached; the group is closed.
        """
        return cls(group, connect(group, limit) if group else None, loss, lease_seconds)

    def connect_current(self, group: Group, link: Link) -> None:
        """The members of the present generation are connected: its operations can run."""
        generation = self.current
        generation.connect(group, link, partial(self._carry_out, generation), self.askers, self._silence_seconds)

    @property
    def process_sets(self) -> ProcessSets:
        """The process sets that all ranks know."""
        return self.current.sets

    @property
    def has_failed(self) -> bool:
        """Nothing is answered any more: a member has ended, or its connection."""
        return self.current.failure is not None

    def begin_again(self) -> None:
        """The elastic function begins again in this generation, on all ranks, and may add its process sets anew."""
        with self.in_flight.lock:
            self.current.sets.supersede()

    def find_members(self, process_set: int, title: str) -> Members:
        """The set as this rank sees it; see `ProcessSets.find`.

        Raises:
            ValueError: there is no such set, or this rank is not in it.
            HorovodInternalError: `shutdown()` was called, or the set has lost a member.
        """
        self._check_open()
        return self.current.sets.find(process_set, title)

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
            failed = Failed(self.current.sets.find(process_set, name), name, reason, is_of_step=is_of_step)
            with self.in_flight.lock:
                earlier = self.in_flight.handles.get((process_set, name))
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
        while (earlier := self.in_flight.handles.get(key)) is not None and earlier.is_abandoned:
            with suppress(HorovodInternalError):
                self.wait(earlier)
        with self.in_flight.lock:
            self._check_open()
            operation = self._admit(operation)
            generation, driver = self.current, self.current.driver
            handle = Handle(operation)
            earlier = self.in_flight.handles.get(key)
            if earlier is not None and not self._make_way(earlier):
                raise DuplicateNameError(operation.title)
            if self.is_suspended or generation.failure is not None:
                self.in_flight.put(handle)  # until the next generation
                driver = None
            elif driver is None or generation.sets.count(question.process_set) == 1:
                self.run_alone(handle)
                driver = None
            else:
                self.in_flight.put(handle)
        if driver is not None:
            try:
                driver.ask(handle, at_once=at_once, is_awaited=is_awaited)
            except UnsendableError:
                self.in_flight.forget(handle)
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
        try:
            while True:
                if not handle.is_answered:
                    self.await_answer(handle)
                if handle.is_finished:  # earlier, or by the answer itself
                    return handle.result
                terms, works = handle.terms, handle.works
                if works and terms is not None and not handle.is_failed:
                    error = await_works(works, self.listen)
                    if error is not None:
                        self._report_failure(handle, terms, error)
                if handle.failure is not None:
                    handle.works = ()
                    self.in_flight.forget(handle)
                    raise handle.failure
                if terms is not None and self.in_flight.settle(handle, terms, self.current):
                    result = handle.operation.finish(terms, handle.payload)
                    handle.finish(result)
                    return result
                # else a rank was lost, and the operation is run again with the others
        except IllegalTransitionError as error:
            driver = self.current.driver
            if driver is not None:
                driver.halt(f"rank {self.rank} has failed: {error}", 0.0)
            raise

    def await_answer(self, handle: Handle[Any]) -> None:
        """Wait until an operation is released or refused: then it is under way, or has failed."""
        while not handle.is_answered:
            generation = self.current
            if generation.driver is None or not generation.driver.await_answer(handle):
                self._await_generation(generation, handle)

    def _await_generation(self, generation: Generation, handle: Handle[Any]) -> None:
        """One generation answers nothing more: wait for the next one, or fail."""
        with self.in_flight.changed:
            if not handle.is_answered and (self.is_closed or not self.is_elastic):
                handle.fail(self._explain_end(handle.title))
            elif not handle.is_answered and (self.is_suspended or self.current is generation):
                self.in_flight.changed.wait(_LOOK_SECONDS)

    def note_step(self, process_set: int, index: int) -> None:
        """A step of a set is complete on this rank.

        Args:
            process_set: its number.
            index: of the step's last release, the same on all ranks; what came before it was told before.
        """
        self.steps.note_step(process_set, is_stopping=index >= self.current.stops_from)

    def ask_for_notice(self) -> bool:
        """Whether a rank has heard of a stop notice for the job; all ranks ask at the same places.

        Raises:
            HorovodInternalError: a rank has gone.
        """
        everyone = self.find_members(GLOBAL_SET, "stopping")
        knows = self.steps.is_stopping or self.current.stops_from < math.inf
        known = torch.tensor([knows], dtype=torch.int32, device="cpu")
        (found,) = self.run(Allreduce([known], Combination(Reduction.MAX), everyone, self.make_name("stopping", None)))
        return bool(found.item())

    def commit(self, among: Members) -> None:
        """Wait until all members have come to the end of their step. Alone in the set, there is nobody to wait for.

        Raises:
            HorovodInternalError: a rank was lost.
        """
        if among.size > 1:
            self.run(Commit(among, self.steps.rounds[among.number] + 1))
        else:
            with self.in_flight.lock:
                self.steps.note_commit(among.number, among.ranks)

    def progress(self) -> None:
        """Run what has been released meanwhile, without waiting."""
        driver = self.current.driver
        if driver is not None:
            driver.progress()

    def listen(self) -> None:
        """Hear what the sequencer has to say, without waiting. For those who wait for gloo.

        Raises:
            RuntimeError: the generation has failed, and gloo still has not ended what it was interrupted in. Where that
                will be run again, it is given up soon.
        """
        generation = self.current
        if generation.driver is not None:
            generation.driver.listen()
        now = time.monotonic()
        if generation.failure is None and now > self._look_at:
            self._look_at = now + _LOOK_SECONDS
            self._look_for_silence(generation)
        if generation.failure is not None and (self.is_suspended or now > generation.failed_at + _INTERRUPT_SECONDS):
            raise RuntimeError(generation.failure)

    def _look_for_silence(self, generation: Generation) -> None:
        address = generation.find_silent(self._silence_seconds)
        if address:
            self._give_up(
                generation,
                f"rank {self.rank} does not reach {address} any more, which has acknowledged nothing for "
                f"{self._silence_seconds:.3g} s",
            )

    def renew(self, operation: Operation[ResultT]) -> Operation[ResultT]:
        """The operation for the present generation; raises HorovodInternalError where it cannot be made."""
        if operation.is_of_step:
            raise StepRevokedError
        among = self.current.sets.find(operation.among.number, operation.title)
        try:
            return operation.renew(among, self.moved)
        except (NotImplementedError, KeyError, ValueError):
            cause = "it was made for ranks of which some are lost"
            raise OperationFailedError(operation.title, self.rank, cause) from None

    def fail_all(self, make_error: MakeError) -> None:
        """Nothing will run any more: what is pending fails, and so does whatever is submitted later."""
        with self.in_flight.changed:
            self._make_error = make_error
            self.in_flight.fail_pending(make_error)
            self.in_flight.changed.notify_all()

    def run_alone(self, handle: Handle[Any]) -> None:
        """Run an operation in whose set this rank is the only member. The caller holds the lock."""
        operation = handle.operation
        question = operation.question
        sets = self.current.sets
        ranks = sets.list_ranks(question.process_set)
        number = sets.find_free() if question.signature.kind is Kind.ADD_SET else 0
        terms = Release(-1, question, ranks, sizes=(tuple(operation.sizes),), value=number)
        self.current.change_sets(terms)
        if question.signature.kind is Kind.JOIN:
            self._names.count_join()
        handle.begin(terms, (), memoryview(operation.payload if question.signature.payload_dtype else b""))

    def close(self, *, end: str = "") -> None:
        """End the group; what is still pending fails here and there.

        end: how the process ends, of which the others hear then: "ended (exit code 3)"; "" where it does not.
        """
        # A signal's handler may come here in a thread for whose lock the recovery waits: then both end the generation.
        is_alone = self.ending.acquire(timeout=_ENDING_SECONDS)
        try:
            self._close(end)
        finally:
            if is_alone:
                self.ending.release()
        with self.in_flight.changed:
            self.in_flight.changed.notify_all()

    def _close(self, end: str) -> None:
        with self.in_flight.lock:
            self.is_closed = True
        generation = self.current
        aborted = f"it {end or 'called shutdown()'} while operations were under way"
        # In a job that outlives its workers one that ends with an error is lost, as one that is killed: see `Frame`.
        last_goodbye = Frame.EXIT if self.is_elastic else Frame.END
        generation.leave(
            lambda: Farewell(aborted if are_running(self.in_flight) else "", end),
            last_goodbye if end else Frame.LEAVE,
        )
        handles = self.in_flight.take_all()
        if are_running(handles):
            generation.interrupt()
        for handle in handles:
            if not handle.is_done():
                handle.fail(ShutDownError(handle.title, self.rank))
        if generation.close([handle.works for handle in handles]):
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
        self.is_closed = self._is_forked = True
        self.in_flight.renew_lock()
        for handle in self.in_flight:
            self.current.keep(handle.works)
            handle.fail(ForkedError(self.rank))
        self.current.abandon()

    # What the sequencer answers, in the thread that hears it.

    def _carry_out(self, generation: Generation, answer: Answer) -> None:
        match answer:
            case Answered():
                generation.seen = answer.terms[-1].index
                if answer.unpack is None or not self._finish_together(generation, answer, answer.unpack):
                    for handle, terms, payload in zip(answer.handles, answer.terms, answer.payloads, strict=True):
                        self._start(generation, handle, terms, payload)
            case Neutral(terms):
                self._take_part(generation, terms)
            case Refused():
                with self.in_flight.lock:
                    if not generation.is_over:
                        self._refuse(generation, answer)
            case StopNoticed():
                generation.stops_from = answer.index
            case Ended(reason, fault):
                self._give_up(generation, reason, fault)

    def _start(self, generation: Generation, handle: Handle[Any], terms: Release, payload: memoryview) -> None:
        """Run a released operation."""
        signature = terms.question.signature
        works: Sequence[Work] = ()
        self._note_release(terms)
        try:
            has_travelled = signature.payload_dtype and (payload or signature.kind is not Kind.ALLGATHER)
            if not has_travelled and signature.kind is not Kind.COMMIT:
                begun = generation.start(handle.operation, terms)
                if isinstance(begun, RuntimeError):
                    generation.interrupt()
                    begun = (FailedWork(begun),)
                works = begun
            with self.in_flight.lock:
                if not generation.is_over:
                    handle.begin(terms, works, payload)
        except BaseException:  # of a signal's handler, before the handle had what was begun
            generation.is_unsure = True
            raise

    def _finish_together(
        self, generation: Generation, answer: Answered, unpack: Callable[[], Sequence[object] | None]
    ) -> bool:
        """Finish operations that were released together; False where each is to be run by itself."""
        with self.in_flight.lock:  # in one: results that were written in place, and then do not count, would be lost
            if generation.is_over:
                return True
            results = unpack()
            if results is None:
                return False
            for handle, terms, result in zip(answer.handles, answer.terms, results, strict=True):
                handle.complete(terms, result)
                self.in_flight.note_end(handle, terms, generation)
        return True

    def _take_part(self, generation: Generation, terms: Release) -> None:
        """Take part in an operation for which this rank, having joined, did not ask."""
        generation.seen = terms.index
        self._note_release(terms)
        joining = [handle.operation for handle in self.in_flight if isinstance(handle.operation, Join)]
        error = generation.take_part(terms, joining[0].device if joining else None)
        if error is not None:
            name, cause = terms.question.name, describe_cause(error)
            self._give_up(generation, f"a joined rank could not take part in {name}: {cause}")

    def _note_release(self, terms: Release) -> None:
        """Something is run: what is counted may have to be counted on, or anew."""
        kind = terms.question.signature.kind
        if kind is Kind.JOIN:
            self._names.count_join()
            self.note_step(terms.question.process_set, terms.index)  # those that had joined have missed the last ones
        elif kind is Kind.REMOVE_SET:
            self._names.forget(terms.sizes[0][0])
        elif kind is Kind.COMMIT:
            self.steps.rounds[terms.question.process_set] += 1

    def _refuse(self, generation: Generation, answer: Refused) -> None:
        """The operation will not run, and its name is free. The caller holds the lock."""
        handle, driver = answer.handle, generation.driver
        operation = handle.operation
        if isinstance(operation, Failed) and operation.followers and not answer.is_deadlock and driver is not None:
            follower, *followers = operation.followers
            follower.followers = followers
            following: Handle[Any] = Handle(follower)
            self.in_flight.put(following)  # in its place: in between the name is not free for another thread
            driver.ask(following, at_once=True, is_awaited=False)
        else:
            self.in_flight.forget(handle)
        handle.fail(DeadlockError(answer.reason) if answer.is_deadlock else OperationRefusedError(answer.reason))

    def _give_up(self, generation: Generation, reason: str, fault: Exception | None = None) -> None:
        """Nothing will be answered any more in this generation: what runs is interrupted."""
        with self.in_flight.lock:
            generation.note_failure(reason)
        if self.retry is None:
            self.in_flight.fail_pending(lambda title: OperationFailedError(title, self.rank, reason))
        elif fault is None:
            self.retry.tell_trouble(generation.number, reason)
        else:
            self.fail_all(lambda _: fault)
        generation.interrupt()

    # What becomes of an operation.

    def _report_failure(self, handle: Handle[Any], terms: Release, error: RuntimeError) -> None:
        """The communication of an operation has failed: it fails, or waits for what becomes of the generation."""
        generation = self.current
        if self.retry is None:
            handle.fail(OperationFailedError(handle.title, self.rank, self._spread_failure(generation, handle, error)))
            return
        cause = describe_cause(error)
        self.retry.tell_trouble(generation.number, f"{handle.title} failed on rank {self.rank}: {cause}")
        with self.in_flight.changed:
            while handle.state is State.RELEASED and handle.terms is terms and not self.is_closed:
                self.in_flight.changed.wait(_LOOK_SECONDS)
            if self.is_closed:
                handle.fail(self._explain_end(handle.title))

    def _spread_failure(self, generation: Generation, handle: Handle[Any], error: RuntimeError) -> str:
        """Tell the peers by closing the connections, since a failure does not spread by itself; the cause."""
        generation.interrupt()
        generation.keep(handle.works)
        driver = generation.driver
        if driver is not None:
            driver.await_end(_CAUSE_SECONDS)  # the sequencer names the rank that was lost, if it is that
        find_cause = self._loss.find_cause if isinstance(self._loss, Fail) else lambda: None
        cause = generation.failure or find_cause() or describe_cause(error)
        if generation.failure is None:
            if driver is not None:
                # a peer without a connection to this rank, or with one that gloo forgets, hears of it too
                driver.quit(lambda: Farewell(f"{handle.title} failed there: {cause}"))
            self._give_up(generation, cause)
        return cause

    def _admit(self, operation: Operation[ResultT]) -> Operation[ResultT]:
        """The operation as it can run now; raises where it cannot. The caller holds the lock."""
        if self._make_error is not None:
            raise self._make_error(operation.title)
        if not self.is_elastic:
            if self.current.failure is not None:
                raise OperationFailedError(operation.title, self.rank, self.current.failure)
            return operation
        former, among = operation.among, self.current.sets.find(operation.among.number, operation.title)
        # What was made before the generation changed comes after; only a step must know even where nobody was lost.
        is_present = former.generation == among.generation if operation.is_of_step else former.ranks == among.ranks
        return operation if is_present else self.renew(operation)

    def _make_way(self, earlier: Handle[Any]) -> bool:
        """Whether an operation of the same name may be asked for; the one that waits for this one may do so later.

        What was interrupted is run again, and so is in the way still.
        """
        if not earlier.is_done() or earlier.terms is None or not self.is_elastic or earlier.is_failed:
            return earlier.is_done()
        return self.in_flight.succeed(earlier, earlier.terms, self.current)

    def _check_open(self) -> None:
        if self.is_closed:
            raise ForkedError(self.rank) if self._is_forked else NotInitializedError

    def _explain_end(self, title: str) -> HorovodInternalError:
        if self.current.failure is not None:
            return OperationFailedError(title, self.rank, self.current.failure)
        return ShutDownError(title, self.rank)
