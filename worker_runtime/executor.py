"""Where every collective passes: asked for here, run in the one order of the generation, awaited through a handle.

A rank asks the sequencer for what it has ready, in whatever order, and runs what is released in the order of the
releases; nothing else touches the group. Alone in its set, a rank runs its operations at once and asks nobody.

Long because all that an operation goes through is to be read in one place.
"""

import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Self, TypeVar

from worker_runtime.accord import Accord
from worker_runtime.collectives.agreements import Join
from worker_runtime.core.questions import GLOBAL_SET, Kind, Release
from worker_runtime.driver import Driver
from worker_runtime.errors import (
    DuplicateNameError,
    ForkedError,
    HorovodInternalError,
    NotInitializedError,
    OperationFailedError,
    OperationRefusedError,
    ShutDownError,
    UnsendableError,
)
from worker_runtime.group import Group
from worker_runtime.handle_table import HandleTable
from worker_runtime.handles import Handle, are_running
from worker_runtime.link import Link
from worker_runtime.mentions import Mention
from worker_runtime.names import Names
from worker_runtime.operation import Members, Operation
from worker_runtime.process_sets import ProcessSets
from worker_runtime.runner import Runner
from worker_runtime.wire import Frame
from worker_runtime.works import FailedWork, describe_cause

ResultT = TypeVar("ResultT")

_CAUSE_SECONDS = 0.3  # how long who has failed waits to hear from the sequencer that a rank was lost
_ABORTED = "it has ended, or called shutdown(), while operations were under way"
_INTERRUPT_SECONDS = 0.3  # how long what was interrupted is waited for: now and then gloo forgets one


class Executor:
    """Runs the operations of one generation; its methods may be called from any thread.

    Args:
        group: of the generation; None in a world of one.
        link: to the sequencer; None in a world of one.
        find_cause: asked after a failure whether a better reason is known than gloo's.
        is_elastic: gradients are kept until their step is committed.

    rank, size: of this worker, and of the job.
    key: the generation's, with which members prove to each other what they send; empty in a world of one.
    handle_table: the numbers under which programs know their asynchronous operations.
    accord: keeps this rank in step with the others.
    """

    def __init__(
        self,
        group: Group | None = None,
        link: Link | None = None,
        find_cause: Callable[[], str | None] = lambda: None,
        *,
        is_elastic: bool = False,
    ) -> None:
        self.rank = group.rank if group else 0
        self.size = group.size if group else 1
        self.key = group.key if group else b""
        self.is_elastic = is_elastic
        self.handle_table = HandleTable()
        self._find_cause = find_cause
        self._sets = ProcessSets(self.rank, self.size)
        self._runner = Runner(self.rank, group.torch_groups if group else None, self._sets)
        self._names = Names()
        self.accord = Accord(self._names.restart)
        self._driver = None if link is None else Driver(link, self, self.accord)
        self._lock = threading.RLock()  # a signal's handler may call shutdown()
        self._in_flight: dict[tuple[int, str], Handle[object]] = {}  # by set and name, until they are waited for
        self._failure: str | None = None
        self._failed_at = 0.0
        self._closed = False
        self._is_forked = False

    @classmethod
    def connect(
        cls,
        group: Group | None,
        limit: timedelta,
        find_cause: Callable[[], str | None] = lambda: None,
        *,
        is_elastic: bool = False,
    ) -> Self:
        """The executor of a group that has been formed; it owns the group.

        Args:
            group: of the generation; None in a world of one.
            limit: how long to try to reach the sequencer.
            find_cause: see the class.
            is_elastic: see the class.

        Raises:
            SequencerError: the sequencer was not reached; the group is closed.
        """
        if group is None:
            return cls(is_elastic=is_elastic)
        try:
            link = Link.connect(group.sequencer, group.key, group.generation, group.rank, limit)
        except BaseException:
            group.torch_groups.close()
            raise
        return cls(group, link, find_cause, is_elastic=is_elastic)

    @property
    def process_sets(self) -> ProcessSets:
        """The process sets that all ranks know."""
        return self._sets

    def find_members(self, process_set: int, title: str) -> Members:
        """The set as this rank sees it; see `ProcessSets.find`.

        Raises:
            ValueError: there is no such set, or this rank is not in it.
            HorovodInternalError: `shutdown()` was called.
        """
        self._check_open()
        return self._sets.find(process_set, title)

    def make_name(self, kind: str, name: str | None, process_set: int = GLOBAL_SET) -> str:
        """The name under which an operation travels: "allreduce.loss"; see `Names`."""
        made = self._names.make(kind, name, process_set)
        unasked = self.accord.unasked
        unasked.names[process_set, made] = unasked.made = unasked.made + 1
        return made

    def give_up_call(self, process_set: int, name: str, reason: str) -> None:
        """An operation whose name was made will not be submitted: its call has failed, and the others are told why."""
        self.accord.unasked.names.pop((process_set, name), None)
        if self._driver is not None and process_set in self._sets.numbers and self._sets.count(process_set) > 1:
            self._driver.tell(Mention(process_set, name, reason))

    def withdraw(self, handle: Handle[ResultT], reason: str) -> None:
        """Have an operation refused on all ranks, unless it runs already; its handle is to be waited for still."""
        if self._driver is not None:
            self._driver.speak_of(handle, Frame.WITHDRAW, reason=reason)

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
        handle = Handle(self, operation, threading.get_ident())
        with self._lock:
            self._check_open()
            if self._failure is not None:
                raise OperationFailedError(operation.title, self.rank, self._failure)
            earlier = self._in_flight.get(key)
            if earlier is not None and not earlier.is_done():
                raise DuplicateNameError(operation.title)
            if self._driver is None or self._sets.count(question.process_set) == 1:
                self._run_alone(handle)
                self.accord.unasked.names.pop(key, None)
                return handle
            self._in_flight[key] = handle
        try:
            self._driver.ask(handle, at_once=at_once, is_awaited=is_awaited)
        except UnsendableError:
            self.forget(handle)
            raise
        self.accord.unasked.names.pop(key, None)
        return handle

    def run(self, operation: Operation[ResultT]) -> ResultT:
        """Ask for an operation and wait for its result; raises what `submit` and `Handle.wait` raise."""
        return self.submit(operation, is_awaited=True).wait()

    def progress(self) -> None:
        """Run what has been released meanwhile, without waiting."""
        if self._driver is not None:
            self._driver.progress()

    def listen(self) -> None:
        """Hear what the sequencer has to say, without waiting. For those who wait for gloo.

        Raises:
            RuntimeError: the group has failed, and gloo still has not ended what it was interrupted in.
        """
        if self._driver is not None:
            self._driver.listen()
        if self._failure is not None and time.monotonic() > self._failed_at + _INTERRUPT_SECONDS:
            raise RuntimeError(self._failure)

    def await_answer(self, handle: Handle[ResultT]) -> None:
        """Wait until the operation is released or refused. For its handle."""
        if self._driver is not None:
            self._driver.await_answer(handle)
        if not handle.is_answered:
            handle.fail(self._explain_end(handle.title))

    def forget(self, handle: Handle[ResultT]) -> None:
        """The operation has ended: its name is free. For its handle."""
        question = handle.operation.question
        key = question.process_set, question.name
        if self._in_flight.get(key) is handle:
            del self._in_flight[key]

    def report_failure(self, handle: Handle[ResultT], error: RuntimeError) -> HorovodInternalError:
        """Turn gloo's error into ours, and tell the peers by closing the connections: a failure does not spread."""
        self._runner.interrupt()
        self._runner.keep(handle.works)
        if self._driver is not None:
            self._driver.await_end(_CAUSE_SECONDS)  # who lost the rank that gloo has missed names it
        cause = self._failure or self._find_cause() or describe_cause(error)
        if self._failure is None:
            if self._driver is not None:  # who has no connection to this rank, or one gloo forgets, hears of it too
                self._driver.quit(lambda: f"{handle.title} failed there: {cause}")
            self.give_up(cause)
        return OperationFailedError(handle.title, self.rank, cause)

    def close(self, *, is_end: bool = False) -> None:
        """End the group; what is still pending fails here and there. See `Driver.leave` of `is_end`."""
        with self._lock:
            self._closed = True
        if self._driver is not None:
            self._driver.leave(lambda: _ABORTED if are_running([*self._in_flight.values()]) else "", is_end=is_end)
        handles, self._in_flight = list(self._in_flight.values()), {}
        if are_running(handles):
            self._runner.interrupt()
        for handle in handles:
            if not handle.is_done():
                handle.fail(ShutDownError(handle.title, self.rank))
        if self._runner.close([handle.works for handle in handles]):
            for handle in handles:
                handle.let_go()

    def abandon(self) -> None:
        """In a forked child: forget the group, whose threads and connections belong to the parent."""
        self._closed = self._is_forked = True
        self._lock = threading.RLock()  # another thread of the parent may have held it
        for handle in self._in_flight.values():
            self._runner.keep(handle.works)
            handle.fail(ForkedError(self.rank))
        if self._driver is not None:
            self._driver.abandon()
        self._runner.abandon()

    def count_members(self, process_set: int) -> int:
        """How many members a set has. For the driver."""
        return self._sets.count(process_set)

    def list_members(self, process_set: int) -> tuple[int, ...]:
        """A set's ranks. For the driver."""
        return self._sets.list_ranks(process_set)

    def perform(self, handle: Handle[object], terms: Release, payload: memoryview) -> None:
        """Run a released operation. For the driver."""
        signature = terms.question.signature
        if signature.payload_dtype or signature.kind is Kind.COMMIT:
            handle.begin(terms, (), payload)
            return
        if signature.kind is Kind.JOIN:
            self._names.count_join()
        if signature.kind is Kind.REMOVE_SET:
            self._names.forget(terms.extents[0][0])
        works = self._runner.start(handle.operation, terms)
        if isinstance(works, RuntimeError):
            self._runner.interrupt()
            works = (FailedWork(works),)
        handle.begin(terms, works, payload)

    def perform_neutral(self, terms: Release) -> None:
        """Take part in an operation for which this rank, having joined, did not ask. For the driver."""
        joining = [handle.operation for handle in self._in_flight.values() if isinstance(handle.operation, Join)]
        error = self._runner.take_part(terms, joining[0].device if joining else None)
        if error is not None:
            self.give_up(f"a joined rank could not take part in {terms.question.name}: {describe_cause(error)}")

    def refuse(self, handle: Handle[object], reason: str) -> None:
        """The operation will not run, and its name is free. For the driver."""
        handle.fail(OperationRefusedError(reason))
        self.forget(handle)

    def give_up(self, reason: str) -> None:
        """Nothing will be answered any more: what is pending fails, what runs is interrupted. For the driver."""
        with self._lock:  # whoever submits sees the failure, or is seen here
            if self._failure is None:
                self._failed_at = time.monotonic()
                self._failure = reason  # the cause of all that follow: the connections are closed
            handles = list(self._in_flight.values())
        for handle in handles:
            if not handle.is_answered:
                handle.fail(OperationFailedError(handle.title, self.rank, reason))
        self._runner.interrupt()

    def _run_alone(self, handle: Handle[ResultT]) -> None:
        operation = handle.operation
        question = operation.question
        ranks = self._sets.list_ranks(question.process_set)
        number = self._sets.find_free() if question.signature.kind is Kind.ADD_SET else 0
        terms = Release(-1, question, ranks, extents=(tuple(operation.extents),), value=number)
        self._runner.change_sets(terms)
        if question.signature.kind is Kind.JOIN:
            self._names.count_join()
        handle.begin(terms, (), memoryview(operation.payload if question.signature.payload_dtype else b""))

    def _check_open(self) -> None:
        if self._closed:
            raise ForkedError(self.rank) if self._is_forked else NotInitializedError

    def _explain_end(self, title: str) -> HorovodInternalError:
        if self._failure is not None:
            return OperationFailedError(title, self.rank, self._failure)
        return ShutDownError(title, self.rank)
