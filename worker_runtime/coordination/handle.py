"""A submitted operation as whoever submitted it sees it: done or not, and its result."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Generic, TypeVar

from worker_runtime.coordination.operation import Operation
from worker_runtime.coordination.ordering.questions import Kind, Release
from worker_runtime.errors import OperationFailedError, ShutDownError
from worker_runtime.groups.torch_groups import Work
from worker_runtime.groups.works import await_works, describe_cause

if TYPE_CHECKING:
    from worker_runtime.engine.engine import Engine


ResultT_co = TypeVar("ResultT_co", covariant=True)


class Handle(Generic[ResultT_co]):
    """A submitted operation; `wait()` gives its result. The operation's tensors live at least as long.

    For one thread at a time.
    """

    __slots__ = (
        "__weakref__",
        "_executor",
        "_failure",
        "_payload",
        "_result",
        "_works",
        "operation",
        "terms",
    )

    def __init__(self, executor: "Engine", operation: Operation[ResultT_co]) -> None:
        self.operation = operation
        self.terms: Release | None = None
        self._executor = executor
        self._works: Sequence[Work] = ()
        self._payload = memoryview(b"")
        self._failure: Exception | None = None
        self._result: tuple[ResultT_co] | None = None

    @property
    def title(self) -> str:
        """How messages call the operation."""
        return self.operation.title

    @property
    def is_abandoned(self) -> bool:
        """Whether nobody waits for it: its call has failed, or its step was interrupted; its name is used again."""
        return self.operation.is_of_step or self.operation.question.signature.kind is Kind.FAIL

    @property
    def is_answered(self) -> bool:
        """Whether it was released or refused."""
        return self.terms is not None or self._failure is not None

    @property
    def works(self) -> Sequence[Work]:
        """What it has under way."""
        return self._works

    def is_done(self) -> bool:
        """Whether `wait()` would return or raise at once."""
        if self._failure is not None:
            return True
        return self.terms is not None and all(work.is_completed() for work in self._works)

    @property
    def payload(self) -> memoryview:
        """What came with its release, until its result is made."""
        return self._payload

    def await_answer(self) -> None:
        """Wait until it was released or refused: then it is under way, or has failed."""
        if not self.is_answered:
            self._executor.await_answer(self)

    def wait(self) -> ResultT_co:
        """Wait for the operation and return its result; may be repeated.

        Raises:
            HorovodInternalError: the ranks did not agree on it, it failed, or `shutdown()` came first.
        """
        self.await_answer()  # which may have come with the result: see `complete`
        executor = self._executor
        while self._result is None:
            terms, operation, works, payload = self.terms, self.operation, self._works, self._payload
            if self._failure is None:
                error = await_works(works, executor.listen)
                if error is not None:
                    reported = executor.report_failure(self, terms, error)
                    self._failure = self._failure or reported  # `shutdown()` may have come meanwhile
            if self._failure is not None or terms is None:
                self._works = ()
                executor.forget(self)
                raise self._failure or ShutDownError(self.title, executor.rank)
            if executor.settle(self, terms):
                self._works = ()
                self._result = (operation.finish(terms, payload),)
                self._payload = memoryview(b"")
            else:
                self.await_answer()  # a rank was lost, and it is run again with the others
        return self._result[0]

    def begin(self, terms: Release, works: Sequence[Work], payload: memoryview) -> None:
        """It was released; its communication is under way, or its answer there."""
        self._works = works
        self._payload = payload
        self.terms = terms  # last: another thread may look

    def complete(self, terms: Release, result: ResultT_co) -> None:  # type: ignore[misc]  # nobody else gives results
        """It was released and finished at once, together with others."""
        self._result = (result,)
        self.terms = terms  # last: another thread may look

    def conclude(self) -> None:
        """Its works have ended well: only the result is to be made."""
        self._works = ()

    def reset(self) -> None:
        """It was interrupted: what was begun counts for nothing, and another answer will come."""
        self.terms = None
        self._works = ()
        self._payload = memoryview(b"")

    def fail(self, failure: Exception) -> None:
        """Let every later `wait()` raise `failure`."""
        self._failure = failure

    @property
    def is_failed(self) -> bool:
        """Whether `wait()` would raise at once."""
        return self._failure is not None

    @property
    def is_finished(self) -> bool:
        """Whether the result is there."""
        return self._result is not None

    def let_go(self) -> None:
        """Drop the works of an operation that has ended, with its failure kept: they hold the group's connections."""
        error = await_works(self._works)
        if self._failure is None and error is not None:
            self._failure = OperationFailedError(self.title, self._executor.rank, describe_cause(error))
        self._works = ()


def are_running(handles: Iterable[Handle[object]]) -> bool:
    """Whether others still need this rank for one of these."""
    return any(handle.is_answered and not handle.is_done() for handle in handles)
