"""What becomes of a submitted operation: one state, and the transitions between states.

A handle calls nobody. The engine moves it and waits for it: see `Engine.wait`.
"""

from collections.abc import Iterable, Sequence
from enum import Enum
from typing import Generic, TypeVar

from worker_runtime.coordination.operation import Operation
from worker_runtime.coordination.ordering.questions import Kind, Release
from worker_runtime.errors import IllegalTransitionError
from worker_runtime.groups.torch_groups import Work

ResultT_co = TypeVar("ResultT_co", covariant=True)
_NO_PAYLOAD = memoryview(b"")


class State(Enum):
    """Of an operation on this rank."""

    ASKED = "asked"  # or about to be asked, also again in the next generation
    RELEASED = "released"  # its communication is under way, or its answer is there
    SUCCEEDED = "succeeded"  # only its result is to be made
    FINISHED = "finished"  # its result is there
    FAILED = "failed"


_ASKED, _RELEASED, _SUCCEEDED, _FINISHED, _FAILED = State


class Handle(Generic[ResultT_co]):
    """A submitted operation. The operation's tensors live at least as long.

        ASKED -> RELEASED -> SUCCEEDED -> FINISHED
        ASKED -> FINISHED    released and finished together with others
        RELEASED -> ASKED    interrupted by the loss of a rank: another release comes
        ASKED, RELEASED -> FAILED

    Several threads look at a handle. So each transition sets `state` last.

    operation: what was submitted; after the loss of a rank, what replaces it.
    state: see above.
    terms: of its release.
    works: what it has under way.
    payload: what came with its release, until its result is made.
    failure: what waiting for it raises, once it has failed.
    """

    __slots__ = ("__weakref__", "_result", "failure", "operation", "payload", "state", "terms", "works")

    def __init__(self, operation: Operation[ResultT_co]) -> None:
        self.operation = operation
        self.state = _ASKED
        self.terms: Release | None = None
        self.works: Sequence[Work] = ()
        self.payload = _NO_PAYLOAD
        self.failure: Exception | None = None
        self._result: ResultT_co

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
        return self.state is not _ASKED

    @property
    def is_finished(self) -> bool:
        """Whether the result is there."""
        return self.state is _FINISHED

    @property
    def is_failed(self) -> bool:
        """Whether waiting for it raises `failure`."""
        return self.state is _FAILED

    def is_done(self) -> bool:
        """Whether waiting for it would return or raise immediately."""
        if self.state is _RELEASED:
            return all(work.is_completed() for work in self.works)
        return self.state is not _ASKED

    @property
    def result(self) -> ResultT_co:
        """What the operation has given; only when it is finished."""
        return self._result

    def begin(self, terms: Release, works: Sequence[Work], payload: memoryview) -> None:
        """It was released. Where it has failed before, as by `shutdown()`, its works still have to end."""
        self.terms = terms
        self.works = works
        if self.state is not _FAILED:
            self.payload = payload
            self._enter(State.RELEASED, _ASKED)

    def complete(self, terms: Release, result: ResultT_co) -> None:  # type: ignore[misc]  # nobody else gives results
        """It was released and finished together with others."""
        if self.state is not _FAILED:
            self.terms = terms
            self._result = result
            self._enter(State.FINISHED, _ASKED)

    def succeed(self) -> None:
        """Its works have ended well; where that was noted before, nothing changes."""
        if self.state is not _SUCCEEDED:
            self.works = ()
            self._enter(State.SUCCEEDED, _RELEASED)

    def finish(self, result: ResultT_co) -> None:  # type: ignore[misc]  # as above
        """Its result was made."""
        self._result = result
        self.payload = _NO_PAYLOAD
        self._enter(State.FINISHED, _SUCCEEDED)

    def reset(self) -> None:
        """It was interrupted: what was begun does not count."""
        self.terms = None
        self.works = ()
        self.payload = _NO_PAYLOAD
        self._enter(State.ASKED, _RELEASED)

    def fail(self, failure: Exception) -> None:
        """Let waiting for it raise `failure`, unless it has ended: the first end counts."""
        if self.state is _ASKED or self.state is _RELEASED:
            self.failure = failure
            self.state = _FAILED

    def _enter(self, state: State, before: State) -> None:
        if self.state is not before:
            raise IllegalTransitionError(self.title, self.state.value, state.value)
        self.state = state


def are_running(handles: Iterable[Handle[object]]) -> bool:
    """Whether others still need this rank for one of these."""
    return any(handle.is_answered and not handle.is_done() for handle in handles)
