"""The engine: it submits collectives to the sequencer, runs them in the released order, and waits for their results.

A rank submits operations in any order, and runs them in the order of the sequencer's releases. Nothing else uses the
torch group. A rank that is alone in a set runs its operations immediately.

`generation.py` has the state of one generation. After the loss of a rank the loss policy decides: the engine fails, or
waits until `Succession` has moved it to the next generation.
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

from worker_runtime.account import ACCOUNT, Part
from worker_runtime.collectives.agreements import CommitRound, Failed, Join
from worker_runtime.collectives.allreduce import Allreduce
from worker_runtime.collectives.combination import Combination
from worker_runtime.coordination.group import Group, connect
from worker_runtime.coordination.link import Link
from worker_runtime.coordination.messages import (
    Answered,
    Arrived,
    Ended,
    Neutral,
    ReceivedResponse,
    Refused,
    StopNoticed,
    Waited,
)
from worker_runtime.coordination.operation import Handle, Members, Operation, OperationState, are_running
from worker_runtime.coordination.ordering.requests import GLOBAL_SET, Kind, Reduction, Release
from worker_runtime.coordination.wire import Farewell, Frame
from worker_runtime.engine.generation import Generation
from worker_runtime.engine.handle_table import HandleTable
from worker_runtime.engine.in_flight import InFlight, Steps
from worker_runtime.engine.losses import Fail, LossPolicy, Retry
from worker_runtime.engine.operation_recorder import OperationRecorder, WaitSender
from worker_runtime.engine.process_sets import Names, ProcessSets
from worker_runtime.engine.recording import OpenRecorder, Recording
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
from worker_runtime.rendezvous import DEFAULT_LEASE_SECONDS, limit_silence

ResultT = TypeVar("ResultT")

# Creates the error of an operation that will run in no generation, from its title.
MakeError = Callable[[str], Exception]

_CAUSE_SECONDS = 0.3  # how long a rank waits after a failure for the sequencer to name a lost rank
_AFTER_LEASE_SECONDS = 1.0  # longer than the lease: the rendezvous should be the first to report a silent host
_LOOK_SECONDS = 0.5  # between two checks of a waiting thread: of the hosts, or for the next generation
_INTERRUPT_SECONDS = 0.3  # how long to wait for interrupted works: gloo occasionally never completes one
_ENDING_SECONDS = 20.0  # how long to wait for the recovery to suspend, which may wait for a GPU
_WAITING, _COMMUNICATION = int(Part.WAITING), int(Part.COMMUNICATION)


class Calls(threading.local):
    """The submissions of each thread.

    Args:
        askers: the set to which each thread adds its identifier.

    asked: the number of submitted operations.
    unnamed: the set and the name of the last operation to which the engine gave a name.
    """

    def __init__(self, askers: set[int]) -> None:
        askers.add(threading.get_ident())
        self.asked = 0
        self.unnamed: tuple[int, str] | None = None


class Engine:
    """Runs the operations of a job. All methods may be called from any thread.

    Args:
        group: the group of the generation; None in a world of one.
        link: the connection to the sequencer; None in a world of one.
        loss: the loss policy.
        lease_seconds: how long a host may be silent before it counts as lost.
        number: the number of the generation.

    rank, size: this worker's rank, and the size of the job.
    generation: the number of the present generation.
    key: the key of the first generation, which signs Python objects; empty in a world of one.
    handle_table: the program's asynchronous handles.
    askers: the identifiers of the program's threads that have submitted operations.
    calls: the submissions of the present thread.
    steps: the steps that the ranks have completed.
    recording: records a timeline.
    is_elastic: operations run again after a loss, and gradients are kept until their step is complete.

    For `Succession`, which changes them under the lock of `in_flight`:

    current: the generation, which may not be connected yet.
    in_flight: the operations in flight.
    ending: held while a generation is closed: the program may close the engine while the recovery suspends it.
    is_suspended: submitted operations wait for the next generation.
    is_closed: `close` was called.
    moved: the new rank of each surviving rank by its former rank, in the last change of the generation.
    retry: the loss policy of an elastic job; None in a static one.
    """

    def __init__(
        self,
        group: Group | None = None,
        link: Link | None = None,
        loss: LossPolicy = Fail(),  # noqa: B008 - it never changes
        lease_seconds: float = DEFAULT_LEASE_SECONDS,
        number: int = 0,
    ) -> None:
        self._silence_seconds = limit_silence(lease_seconds) + _AFTER_LEASE_SECONDS
        if group:
            self.key = group.key
        else:
            self.key = b""

        self.handle_table = HandleTable(self.wait, self.poll)
        self._loss = loss
        self.retry = loss if isinstance(loss, Retry) else None
        self.is_elastic = self.retry is not None
        self.ending = threading.RLock()
        self._names = Names()
        self.askers: set[int] = set()
        self.calls = Calls(self.askers)
        self.moved: Mapping[int, int] = {}
        self.is_suspended = self.is_closed = self._is_forked = False
        self._make_error: MakeError | None = None  # set when operations can no longer run
        self._next_look = 0.0  # the time of the next check whether all hosts are reachable

        if group:
            self.current = Generation(group.generation, group.rank, group.size)
        else:
            self.current = Generation(number)
        self.rank, self.size, self.generation = self.current.rank, self.current.size, self.current.number
        self.steps = Steps(self.rank, self.size)
        self.in_flight = InFlight(self.steps, self.retry)
        self.recording = Recording(self.in_flight, lambda: None if self.is_closed else self.current.driver)
        if group is not None and link is not None:
            self.connect_current(group, link)

    @classmethod
    def connect(
        cls,
        group: Group | None,
        limit: timedelta,
        loss: LossPolicy = Fail(),  # noqa: B008 - it never changes
        lease_seconds: float = DEFAULT_LEASE_SECONDS,
    ) -> Self:
        """Create the engine of a formed group, which it then owns.

        Args:
            group: the group of the generation; None in a world of one.
            limit: how long to try to reach the sequencer.
            loss: see the class.
            lease_seconds: see the class.

        Raises:
            SequencerError: the sequencer is unreachable. The group is closed.
        """
        link = None
        if group:
            link = connect(group, limit)
        return cls(group, link, loss, lease_seconds)

    def connect_current(self, group: Group, link: Link) -> None:
        """Give the present generation its connections, so that operations can run."""
        generation = self.current
        generation.connect(group, link, partial(self._carry_out, generation), self.askers, self._silence_seconds)
        self.recording.continue_in(generation)

    def record(self, open_recorder: OpenRecorder | None) -> None:
        """Record a timeline from now on, in each generation in which this worker is rank 0; None: no longer."""
        self.recording.record(open_recorder, self.current)

    @property
    def process_sets(self) -> ProcessSets:
        """The registered process sets."""
        return self.current.sets

    @property
    def has_failed(self) -> bool:
        """Whether the present generation has failed: a member or the sequencer is lost."""
        return self.current.failure is not None

    def supersede_sets(self) -> None:
        """Allow the process sets to be added again, because the elastic function restarts in this generation."""
        with self.in_flight.lock:
            self.current.sets.supersede()

    def find_members(self, process_set: int, title: str) -> Members:
        """The members of a set as this rank sees it; see `ProcessSets.find`.

        Raises:
            ValueError: the set does not exist, or this rank is not in it.
            HorovodInternalError: `shutdown()` was called, or the set has lost a member.
        """
        if self.is_closed:
            raise self._make_closed_error()
        sets = self.current.sets
        if process_set == GLOBAL_SET:
            return sets.everyone
        return sets.find(process_set, title)

    def make_name(self, kind: str, name: str | None, process_set: int = GLOBAL_SET) -> str:
        """The full name of an operation: "allreduce.loss"; see `Names`."""
        made = self._names.make(kind, name, process_set)
        if name is None:
            self.calls.unnamed = process_set, made
        return made

    def fail_others(self, process_set: int, name: str, error: BaseException, *, is_of_step: bool = False) -> None:
        """Make the other ranks' operation of this name fail, because this rank's call failed before it was submitted.

        This counts as this rank's operation of the name. The next operation of the name waits for it.
        """
        reason = f"{type(error).__name__}: {error}"
        with suppress(HorovodInternalError, ValueError):  # in these cases no rank waits for the operation
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
        """A context for the preparation of an operation: its error is also reported to the other ranks."""
        try:
            yield
        except BaseException as error:
            self.fail_others(process_set, name, error)
            raise

    def submit(
        self, operation: Operation[ResultT], *, at_once: bool = False, is_awaited: bool = False
    ) -> Handle[ResultT]:
        """Submit an operation; it runs when all members of its set have submitted it.

        Args:
            operation: the operation. Its tensors must not be changed before the handle was awaited.
            at_once: send the request immediately, and not together with the next operations.
            is_awaited: the caller waits for it next, so that the background thread need not wake.

        Raises:
            ValueError: an operation of this name is in flight in its set, its set was removed, or it cannot be encoded.
            HorovodInternalError: the engine is closed or has failed.
        """
        request = operation.request
        key = request.process_set, request.name  # also of a renewed operation
        in_flight = self.in_flight

        while (earlier := in_flight.handles.get(key)) is not None and earlier.is_abandoned:
            with suppress(HorovodInternalError):  # nobody wants its result
                self.wait(earlier)

        with in_flight.lock:
            operation = self._admit(operation)
            generation = self.current
            driver = generation.driver
            handle = Handle(operation)
            handles = in_flight.handles
            earlier = handles.get(key)
            if earlier is not None and not self._make_way(earlier):
                raise DuplicateNameError(operation.title)
            if self.is_suspended or generation.failure is not None:
                handles[key] = handle  # until the next generation
                driver = None
            elif driver is None or len(operation.among.ranks) == 1:
                self.run_alone(handle)
                driver = None
            else:
                handles[key] = handle

        if driver is not None:
            try:
                driver.ask(handle, at_once=at_once, is_awaited=is_awaited)
            except UnsendableError:
                self.in_flight.forget(handle)
                raise
        self.calls.asked += 1
        return handle

    def run(self, operation: Operation[ResultT]) -> ResultT:
        """Submit an operation and wait for its result; raises the errors of `submit` and `wait`."""
        return self.wait(self.submit(operation, is_awaited=True))

    def wait(self, handle: Handle[ResultT], *, is_noted: bool = False) -> ResultT:  # noqa: C901 - one loop, one story
        """Wait for an operation and return its result. Several calls are allowed, but not at the same time.

        Args:
            handle: the operation's handle.
            is_noted: a timeline, if there is one, has this wait.

        Raises:
            HorovodInternalError: the ranks submitted different operations; it failed; or `shutdown()` interrupted it.
        """
        waits = self.recording.waits
        if waits is not None and not is_noted:
            return self._note_wait(handle, waits)
        try:
            while True:
                # The handle may be finished by an earlier wait, or by the response to this operation or another.
                if handle.is_finished:
                    return handle.result
                if not handle.is_answered:
                    self.await_response(handle)
                    continue
                release, works = handle.release, handle.works
                if works and release is not None and not handle.is_failed:
                    ACCOUNT.enter(_COMMUNICATION)
                    try:
                        error = await_works(works, partial(self._listen_for, handle, release))
                        if error is not None:
                            self._report_failure(handle, release, error)
                    finally:
                        ACCOUNT.leave()
                if handle.failure is not None:
                    self.in_flight.drop_works(handle)
                    self.in_flight.forget(handle)
                    raise handle.failure
                if release is not None and self.in_flight.finish(handle, release, self.current):
                    return handle.result
                # else a rank was lost, and the operation runs again with the other ranks
        except IllegalTransitionError as error:
            driver = self.current.driver
            if driver is not None:
                driver.halt(f"rank {self.rank} has failed: {error}", 0.0)
            raise

    def _note_wait(self, handle: Handle[ResultT], waits: OperationRecorder | WaitSender) -> ResultT:
        began = time.monotonic()
        try:
            return self.wait(handle, is_noted=True)
        finally:
            waits.note_wait(handle.operation.request.name, began)

    def poll(self, handle: Handle[Any]) -> bool:
        """Whether `wait` returns or raises without waiting.

        Where a static job has failed, `wait` raises, though gloo may never complete a work that was interrupted.
        """
        generation = self.current
        has_ended = generation.failure is not None and time.monotonic() > generation.failed_at + _INTERRUPT_SECONDS
        return handle.is_done() or (has_ended and not self.is_elastic)

    def await_response(self, handle: Handle[Any]) -> None:
        """Wait until an operation is released or refused."""
        ACCOUNT.enter(_WAITING)
        try:
            while not handle.is_answered:
                generation = self.current
                if generation.driver is None or not generation.driver.await_response(handle):
                    self._await_generation(generation, handle)
        finally:
            release = handle.release
            ACCOUNT.leave_wait(-1 if release is None else release.last, self.rank)

    def _await_generation(self, generation: Generation, handle: Handle[Any]) -> None:
        """Wait for the next generation after one has failed; in a static job fail the operation."""
        with self.in_flight.lock:
            if handle.is_answered:
                return
            if self.is_closed or not self.is_elastic:
                self.in_flight.fail(handle, self._explain_end(handle.title))
            elif self.is_suspended or self.current is generation:
                self.in_flight.changed.wait(_LOOK_SECONDS)

    def note_step(self, process_set: int, index: int, ranks: Sequence[int] = ()) -> None:
        """Note that this rank has completed a step of a set.

        Args:
            process_set: the number of the set.
            index: the index of the step's last release, the same on all ranks. A stop notice before it counts.
            ranks: all ranks of the set in a static job, in which none waits until the others have completed the step.
        """
        self.steps.note_step(process_set, is_stopping=index >= self.current.stops_from)
        if ranks:
            self.steps.note_completed_step(process_set, ranks)

    def agree_on_stopping(self) -> bool:
        """Agree on whether the job stops, a collective: whether any rank has received a stop notice for the job.

        Raises:
            HorovodInternalError: a rank was lost.
        """
        return bool(self.find_greatest(self.steps.is_stopping or self.current.stops_from < math.inf, "stopping"))

    def find_greatest(self, number: int, kind: str) -> int:
        """The greatest number of all ranks, by a collective of this kind.

        Raises:
            HorovodInternalError: a rank was lost.
        """
        everyone = self.find_members(GLOBAL_SET, kind)
        own = torch.tensor([number], dtype=torch.int64, device="cpu")
        (found,) = self.run(Allreduce([own], Combination(Reduction.MAX), everyone, self.make_name(kind, None)))
        return int(found.item())

    def complete_step(self, among: Members) -> None:
        """Wait until all members of a set have completed their step. A single member does not wait.

        Raises:
            HorovodInternalError: a rank was lost.
        """
        if among.size > 1:
            self.run(CommitRound(among, self.steps.rounds[among.number] + 1))
        else:
            with self.in_flight.lock:
                self.steps.note_completed_step(among.number, among.ranks)

    def agree_on_members(self) -> None:
        """Wait until all ranks that are left are here. Afterwards `steps.members` has these ranks, on all alike.

        Two commit rounds are needed. A round that only a lost rank has not submitted counts as done, also by that rank:
        see `rendezvous/core/decision.py`. The second round is without the lost rank. Neither round counts as a step. A
        loss meanwhile is no error.

        Raises:
            HorovodInternalError: the job does not continue.
        """
        steps = self.steps
        before = steps.completed, steps.has_stepped
        try:
            for _ in range(2):
                is_done = False
                while not is_done:
                    with suppress(StepRevokedError):  # the next attempt is among those who are left
                        self.complete_step(self.find_members(GLOBAL_SET, "commit"))
                        is_done = True
        finally:
            steps.completed, steps.has_stepped = before

    def progress(self) -> None:
        """Run operations that have been released, without waiting."""
        driver = self.current.driver
        if driver is not None:
            driver.progress()

    def listen(self) -> None:
        """Process the sequencer's responses without waiting; called while a thread waits for gloo.

        Raises:
            RuntimeError: the generation has failed, and gloo has not completed its interrupted work in time.
        """
        generation = self.current
        if generation.driver is not None:
            generation.driver.listen()
        now = time.monotonic()
        if generation.failure is None and now > self._next_look:
            self._next_look = now + _LOOK_SECONDS
            self._look_for_silence(generation)
        if generation.failure is not None and (self.is_suspended or now > generation.failed_at + _INTERRUPT_SECONDS):
            raise RuntimeError(generation.failure)

    def _listen_for(self, handle: Handle[Any], release: Release) -> None:
        """Process responses while a thread waits for the works of a release; see `listen`.

        Raises:
            RuntimeError: the generation has failed, or the recovery has taken the operation to the next one.
        """
        self.listen()
        if handle.release is not release:
            raise RuntimeError("it was interrupted")

    def _look_for_silence(self, generation: Generation) -> None:
        address = generation.find_silent(self._silence_seconds)
        if address:
            self._give_up(
                generation,
                f"rank {self.rank} cannot reach {address}, which has acknowledged nothing for "
                f"{self._silence_seconds:.3g} s",
            )

    def renew(self, operation: Operation[ResultT]) -> Operation[ResultT]:
        """The operation for the present generation.

        Raises:
            HorovodInternalError: it cannot run in the present generation.
        """
        if operation.is_of_step:
            raise StepRevokedError
        if self.current.sets.look_up(operation.among.number) is None:
            raise OperationFailedError(operation.title, self.rank, "its process set was removed")
        among = self.current.sets.find(operation.among.number, operation.title)
        try:
            with operation.follow_caller():
                return operation.renew(among, self.moved)
        except (NotImplementedError, KeyError, ValueError):
            cause = "some of its ranks are lost"
            raise OperationFailedError(operation.title, self.rank, cause) from None

    def fail_all(self, make_error: MakeError) -> None:
        """Fail all pending operations, and all that are submitted later."""
        with self.in_flight.lock:
            self._make_error = make_error
            self.in_flight.fail_pending(make_error)
            self.in_flight.changed.notify_all()

    def run_alone(self, handle: Handle[Any]) -> None:
        """Run an operation of a set that has only this rank. The caller holds the lock."""
        operation = handle.operation
        request = operation.request
        sets = self.current.sets
        ranks = sets.list_ranks(request.process_set)
        number = 0
        if request.signature.kind is Kind.ADD_SET:
            number = sets.find_free()
        release = Release(-1, request, ranks, sizes=(tuple(operation.sizes),), value=number)
        self.current.change_sets(release)
        if request.signature.kind is Kind.JOIN:
            self._names.count_join()
        payload = memoryview(operation.payload if request.signature.payload_dtype else b"")
        if self.in_flight.recorder is not None:
            self.in_flight.recorder.note_alone(release, self.rank)
        self.in_flight.release(handle, release, (), payload, self.current)

    def close(self, *, end: str = "") -> None:
        """Close the engine and its group. Pending operations fail on all ranks.

        Args:
            end: how the process ends, for the other ranks: "ended (exit code 3)"; "" where it does not end.
        """
        # A signal's handler may run this in a thread for whose lock the recovery waits: then both close the generation.
        is_alone = self.ending.acquire(timeout=_ENDING_SECONDS)
        try:
            self._close(end)
        finally:
            if is_alone:
                self.ending.release()
        with self.in_flight.lock:
            self.in_flight.changed.notify_all()

    def _close(self, end: str) -> None:
        self.recording.close(awaits_last=not end)
        with self.in_flight.lock:
            self.is_closed = True

        generation = self.current
        aborted = f"it {end or 'called shutdown()'} while operations were running"
        # In an elastic job a worker that exits with an error counts as lost, like one that is killed: see `Frame`.
        if self.is_elastic:
            last_goodbye = Frame.EXIT
        else:
            last_goodbye = Frame.END
        generation.leave(
            lambda: Farewell(aborted if are_running(self.in_flight) else "", end),
            last_goodbye if end else Frame.LEAVE,
        )

        handles = self.in_flight.take_all()
        if are_running(handles):
            generation.interrupt()
        for handle in handles:
            if not handle.is_done():
                self.in_flight.fail(handle, ShutDownError(handle.title, self.rank))
        if generation.close([handle.works for handle in handles]):
            for handle in handles:
                self._drop_works(handle)

    def _drop_works(self, handle: Handle[Any]) -> None:
        """Drop the works of a completed operation; keep their error."""
        error = await_works(handle.works)
        if error is not None:
            self.in_flight.fail(handle, OperationFailedError(handle.title, self.rank, describe_cause(error)))
        self.in_flight.drop_works(handle)

    def abandon(self) -> None:
        """Forget the group in a forked child: its threads and connections belong to the parent."""
        self.is_closed = self._is_forked = True
        self.recording.abandon()
        self.in_flight.renew_lock()
        for handle in self.in_flight:
            self.current.keep(handle.works)
            self.in_flight.fail(handle, ForkedError(self.rank))
        self.current.abandon()

    # The sequencer's responses, in the thread that drives the connection.

    def _carry_out(self, generation: Generation, response: ReceivedResponse) -> None:
        match response:
            case Answered():
                generation.seen = response.releases[-1].index
                if response.unpack is None or not self.in_flight.finish_together(response, response.unpack, generation):
                    for handle, release, payload in zip(
                        response.handles, response.releases, response.payloads, strict=True
                    ):
                        self._start(generation, handle, release, payload)
            case Neutral(release):
                self._take_part(generation, release)
            case Refused():
                with self.in_flight.lock:
                    if not generation.is_over:
                        self._refuse(generation, response)
            case StopNoticed():
                generation.stops_from = response.index
            case Arrived() | Waited():
                self.recording.take(response)
            case Ended(reason, fault):
                self._give_up(generation, reason, fault)

    def _start(self, generation: Generation, handle: Handle[Any], release: Release, payload: memoryview) -> None:
        """Run a released operation."""
        signature = release.request.signature
        works: Sequence[Work] = ()
        self._note_release(release)
        try:
            has_travelled = signature.payload_dtype and (payload or signature.kind is not Kind.ALLGATHER)
            if not has_travelled and signature.kind is not Kind.COMMIT:
                begun = generation.start(handle.operation, release)
                if isinstance(begun, RuntimeError):
                    generation.interrupt()
                    begun = (FailedWork(begun),)
                works = begun
            self.in_flight.release(handle, release, works, payload, generation)
        except BaseException:  # from a signal's handler, before the handle has the started works
            generation.is_unsure = True
            raise

    def _take_part(self, generation: Generation, release: Release) -> None:
        """Take part in an operation that this rank, after `join()`, has not submitted."""
        generation.seen = release.index
        self._note_release(release)
        joining = [handle.operation for handle in self.in_flight if isinstance(handle.operation, Join)]
        device = None
        if joining:
            device = joining[0].device
        error = generation.take_part(release, device)
        if error is not None:
            name, cause = release.request.name, describe_cause(error)
            self._give_up(generation, f"a joined rank could not take part in {name}: {cause}")
        elif release.request.signature.kind is Kind.COMMIT:
            number = self.steps.rounds[release.request.process_set]
            with self.in_flight.lock:
                self.in_flight.note_joined_round(release, number, generation)

    def _note_release(self, release: Release) -> None:
        """Update the counts of names, steps and commit rounds for a released operation."""
        kind = release.request.signature.kind
        if kind is Kind.JOIN:
            self._names.count_join()
            self.note_step(release.request.process_set, release.index)  # joined ranks have missed the last steps
        elif kind is Kind.REMOVE_SET:
            self._names.forget(release.sizes[0][0])
        elif kind is Kind.COMMIT:
            self.steps.rounds[release.request.process_set] += 1

    def _refuse(self, generation: Generation, response: Refused) -> None:
        """Fail a refused operation, and free its name. The caller holds the lock."""
        driver, operation = generation.driver, response.handle.operation
        error: HorovodInternalError
        if response.is_deadlock:
            error = DeadlockError(response.reason)
        else:
            error = OperationRefusedError(response.reason)
        if isinstance(operation, Failed) and operation.followers and not response.is_deadlock and driver is not None:
            follower, *followers = operation.followers
            follower.followers = followers
            following: Handle[Any] = Handle(follower)
            self.in_flight.refuse(response.handle, error, following)
            driver.ask(following, at_once=True, is_awaited=False)
        else:
            self.in_flight.refuse(response.handle, error)

    def _give_up(self, generation: Generation, reason: str, fault: Exception | None = None) -> None:
        """Note that a generation has failed, and interrupt its running operations."""
        with self.in_flight.lock:
            generation.note_failure(reason)
        if self.retry is None:
            self.in_flight.fail_pending(lambda title: OperationFailedError(title, self.rank, reason))
        elif fault is None:
            self.retry.report_failure(generation.number, reason)
        else:
            self.fail_all(lambda _: fault)
        generation.interrupt()

    # Failures and admission of operations.

    def _report_failure(self, handle: Handle[Any], release: Release, error: RuntimeError) -> None:
        """Handle a failed communication: fail the operation, or in an elastic job wait for the recovery."""
        if self.retry is None:
            spread = self._spread_failure(self.current, handle, error)
            self.in_flight.fail(handle, OperationFailedError(handle.title, self.rank, spread))
            return
        cause = describe_cause(error)
        with self.in_flight.lock:
            if handle.release is release:  # else the present generation is the next one, which has not failed
                number = self.current.number
                self.retry.report_failure(number, f"{handle.title} failed on rank {self.rank}: {cause}")
            while handle.state is OperationState.RELEASED and handle.release is release and not self.is_closed:
                self.in_flight.changed.wait(_LOOK_SECONDS)
            if self.is_closed:
                self.in_flight.fail(handle, self._explain_end(handle.title))

    def _spread_failure(self, generation: Generation, handle: Handle[Any], error: RuntimeError) -> str:
        """Close the connections, since a failure does not spread to the peers by itself; return the cause."""
        generation.interrupt()
        generation.keep(handle.works)
        driver = generation.driver
        if driver is not None:
            driver.await_end(_CAUSE_SECONDS)  # if a rank was lost, the sequencer names it
        find_cause = self._loss.find_cause if isinstance(self._loss, Fail) else lambda: None
        cause = generation.failure or find_cause() or describe_cause(error)
        if generation.failure is None:
            if driver is not None:
                # for peers that have no connection to this rank, or one that gloo does not close
                driver.quit(lambda: Farewell(f"{handle.title} failed there: {cause}"))
            self._give_up(generation, cause)
        return cause

    def _admit(self, operation: Operation[ResultT]) -> Operation[ResultT]:
        """The operation for the present generation; raises an error if it cannot run. The caller holds the lock."""
        if self.is_closed:
            raise self._make_closed_error()
        if self._make_error is not None:
            raise self._make_error(operation.title)
        if not self.is_elastic and self.current.failure is not None:
            raise OperationFailedError(operation.title, self.rank, self.current.failure)

        former = operation.among
        if self.current.sets.look_up(former.number) is former:
            return operation
        among = self.current.sets.find_again(former, operation.title)
        # An operation of an earlier generation is renewed. A step's is, even if its set has lost no rank.
        if operation.is_of_step:
            is_present = former.generation == among.generation
        else:
            is_present = former.ranks == among.ranks
        if not is_present:
            return self.renew(operation)
        return operation

    def _make_way(self, earlier: Handle[Any]) -> bool:
        """Whether another operation of this name may be submitted: the earlier one is done.

        In an elastic job an interrupted operation runs again, and so is not done.
        """
        if self.is_elastic and earlier.release is not None and earlier.is_done() and not earlier.is_failed:
            return self.in_flight.try_succeed(earlier, earlier.release, self.current)
        return earlier.is_done()

    def _make_closed_error(self) -> HorovodInternalError:
        if self._is_forked:
            return ForkedError(self.rank)
        return NotInitializedError()

    def _explain_end(self, title: str) -> HorovodInternalError:
        if self.current.failure is not None:
            return OperationFailedError(title, self.rank, self.current.failure)
        return ShutDownError(title, self.rank)
