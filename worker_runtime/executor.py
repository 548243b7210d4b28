"""Where every collective passes: submitted here, run in one order, awaited through a handle.

Today the order is the one in which the program submits, so all ranks must submit the same operations in the same
order; ranks that do not will hang or mix up their data. This is the place where an agreed order will enter: an
operation is started only in `_start`, one at a time, and nothing else touches the group.
"""

import contextlib
import re
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Generic, TypeVar

from worker_runtime.errors import HorovodInternalError, NotInitializedError, OperationFailedError, ShutDownError
from worker_runtime.group import Group, TorchGroup, Work

# Waiting in slices lets Python run signal handlers; measured, it costs nothing.
_SLICE = timedelta(milliseconds=20)
# An interrupted operation raises within milliseconds; now and then gloo forgets one, and then waiting on is useless.
_INTERRUPT_LIMIT_SECONDS = 0.2

ResultT = TypeVar("ResultT")


class Operation(ABC, Generic[ResultT]):
    """One collective with its tensors.

    title: how messages call it, for example "allreduce 'loss'".
    """

    title: str

    @abstractmethod
    def start(self, group: TorchGroup, size: int) -> Sequence[Work]:
        """Begin to communicate; not called in a world of one."""

    @abstractmethod
    def finish(self, size: int) -> ResultT:
        """Make the result, after all works of `start` are done."""


class Handle(Generic[ResultT]):
    """A submitted operation; `wait()` gives its result. The operation's tensors live at least as long."""

    def __init__(self, executor: "Executor", operation: Operation[ResultT], works: Sequence[Work]) -> None:
        self._executor = executor
        self._operation = operation
        self._works = works
        self._failure: HorovodInternalError | None = None
        self._result: tuple[ResultT] | None = None

    @property
    def title(self) -> str:
        """How messages call the operation."""
        return self._operation.title

    def is_done(self) -> bool:
        """Whether `wait()` would return or raise at once."""
        return self._failure is not None or all(work.is_completed() for work in self._works)

    def wait(self) -> ResultT:
        """Wait for the operation, at most the group's time limit, and return its result; may be repeated.

        Raises:
            HorovodInternalError: the operation failed, or `shutdown()` came first.
        """
        if self._result is None:
            if self._failure is None and (error := await_works(self._works)) is not None:
                self._failure = self._executor.report_failure(self._operation, error)
            self._works = ()
            if self._failure is not None:
                raise self._failure
            self._result = (self._operation.finish(self._executor.size),)
        return self._result[0]

    def fail(self, failure: HorovodInternalError) -> None:
        """Let every later `wait()` raise `failure`."""
        self._failure = failure

    def let_go(self) -> None:
        """Drop the works of an operation that has ended, with its failure kept: they hold the group's connections."""
        if self._failure is None and (error := await_works(self._works)) is not None:
            self._failure = OperationFailedError(self.title, self._executor.rank, _describe_cause(error))
        self._works = ()

    def ends_before(self, deadline_seconds: float) -> bool:
        """Whether the communication itself has ended by then (`time.monotonic()`), well or not."""
        for work in self._works:
            while not work.is_completed():
                if time.monotonic() > deadline_seconds:
                    return False
                with contextlib.suppress(RuntimeError):  # failed or not yet: is_completed() tells
                    work.wait(_SLICE)  # never less: gloo counts milliseconds, and takes 0 for no limit at all
        self._works = ()  # they hold the group's connections
        return True


class Executor:
    """Runs the operations of one generation. `submit` may be called from several threads, if their order is agreed.

    Args:
        group: of the generation; None in a world of one.
        find_cause: asked after a failure whether a better reason is known than gloo's.
    """

    def __init__(self, group: Group | None, find_cause: Callable[[], str | None] = lambda: None) -> None:
        self._group = group
        self._find_cause = find_cause
        self._lock = threading.Lock()
        self._pending: deque[Handle[object]] = deque()
        self._closed = False
        self.rank = group.rank if group else 0
        self.size = group.size if group else 1

    def submit(self, operation: Operation[ResultT]) -> Handle[ResultT]:
        """Start `operation` after all that were submitted before; all ranks must submit in the same order.

        Raises:
            HorovodInternalError: the operation could not be started, or `shutdown()` was called.
        """
        with self._lock:
            if self._closed:
                raise NotInitializedError
            works = self._start(operation)
            if isinstance(works, RuntimeError):
                raise self.report_failure(operation, works)
            handle = Handle(self, operation, works)
            while self._pending and self._pending[0].is_done():
                self._pending.popleft().let_go()
            self._pending.append(handle)  # type: ignore[arg-type]  # only waited for and failed, never asked its result
        return handle

    def close(self) -> None:
        """End the group; what is still pending fails here and, since its peers lose the connection, there."""
        with self._lock:
            self._closed = True
            pending = [handle for handle in self._pending if not handle.is_done()]
            for handle in self._pending:
                if handle in pending:
                    handle.fail(ShutDownError(handle.title, self.rank))
                else:
                    handle.let_go()
            self._pending.clear()
            group, self._group = self._group, None
        if group is None:
            return
        if pending:
            group.interrupt()
        if _await_end(pending):
            group.close()
        else:
            group.abandon()

    def abandon(self) -> None:
        """In a forked child: forget the group, whose threads and connections belong to the parent."""
        self._closed = True
        group, self._group = self._group, None
        if group is not None:
            group.abandon()

    def report_failure(self, operation: Operation[ResultT], error: RuntimeError) -> HorovodInternalError:
        """Turn gloo's error into ours, and tell the peers by closing the connections: a failure does not spread."""
        if self._group is not None:
            self._group.interrupt()
        return OperationFailedError(operation.title, self.rank, self._find_cause() or _describe_cause(error))

    def _start(self, operation: Operation[ResultT]) -> Sequence[Work] | RuntimeError:
        """Begin to communicate; gloo's error when that cannot be begun, without the frames that hold the group."""
        group = self._group
        if group is None or group.torch_group is None:
            return ()
        try:
            return operation.start(group.torch_group, group.size)
        except RuntimeError as error:
            return error.with_traceback(None)


def await_works(works: Sequence[Work]) -> RuntimeError | None:
    """Wait for all of them; the first one's failure, without its traceback.

    The frames of a traceback would hold a work, and that its group's device, for as long as anybody keeps the error:
    its destructor then joins a thread, which in a forked child does not exist (torch crashes there).
    """
    try:
        for work in works:
            await_work(work)
    except RuntimeError as error:
        return error.with_traceback(None)
    return None


def await_work(work: Work) -> None:
    """Wait for a piece of communication to its own time limit, open to signals.

    Raises:
        RuntimeError: it failed.
    """
    while True:
        try:
            work.wait(_SLICE)
        except RuntimeError:
            if not work.is_completed():
                continue  # the slice is over, not the operation
        else:
            return
        work.wait()  # raises the true failure; or nothing, if it completed just after the slice
        return


def _await_end(handles: Sequence[Handle[object]]) -> bool:
    """Whether no thread of the group works on `handles` any more, after a short wait."""
    deadline_seconds = time.monotonic() + _INTERRUPT_LIMIT_SECONDS
    return all(handle.ends_before(deadline_seconds) for handle in handles)


def _describe_cause(error: RuntimeError) -> str:
    """The message of gloo without its source position and its general advice."""
    text = re.sub(r"^\[[^\]]*\.cc:\d+\]\s*", "", str(error))
    text = text.partition(" This is typically caused")[0].strip().rstrip(".!")
    return text or type(error).__name__
