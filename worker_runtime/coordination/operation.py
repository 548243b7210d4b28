"""A collective of this rank, in which set of ranks it runs, and what becomes of it.

A handle has one state, and the transitions between states that its class names. It calls nothing: the engine moves it
and waits for it, see `Engine.wait`.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Generic, Self, TypeVar

from worker_runtime.coordination.ordering.questions import Kind, Question, Release, make_title
from worker_runtime.errors import IllegalTransitionError
from worker_runtime.groups.torch_groups import TorchGroup, Work

ResultT_co = TypeVar("ResultT_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Members:
    """A process set as its member `rank` sees it.

    number: of the set; 0 is that of all ranks.
    ranks: its members' ranks in the job, in order.
    rank: this worker's rank in the job; it is one of them.
    generation: in which they are those.
    """

    number: int
    ranks: tuple[int, ...]
    rank: int
    generation: int = 0

    @property
    def size(self) -> int:
        """How many there are."""
        return len(self.ranks)

    @property
    def position(self) -> int:
        """This worker's rank within the set, which is also its rank in the set's torch group."""
        return self.ranks.index(self.rank)


class Batcher(ABC):
    """What operations have in common whose values can be packed together, and unpacked: see `messages.py`.

    Operations that are alike in this have one and the same batcher, or equal ones.
    """

    @abstractmethod
    def pack(self, operations: Sequence[Any]) -> Sequence[bytes | memoryview]:
        """The payload of each."""

    @abstractmethod
    def unpack(self, operations: Sequence[Any], payload: memoryview) -> Sequence[object]:
        """Finish all of them: the result of each, from the payloads of their answers, one after the other."""


class Operation(ABC, Generic[ResultT_co]):
    """One collective with its tensors.

    It is asked for with `question`, `sizes` and `payload`; when it is released, `start` is called (unless its data
    have travelled as payload, or the set has one member), in whatever thread; when its works are done, `finish`, once,
    by the thread that waits for it.

    among: its set, as it was when the operation was made.
    question: its set, its name as it travels ("allreduce.loss"), its signature.
    sizes: what may differ between ranks; see `Release`.
    batcher: packs and unpacks it together with others; None where that would not be faster.
    is_of_step: it belongs to an optimizer's step, which is run again as a whole.
    """

    among: Members
    question: Question
    sizes: tuple[int, ...] = ()
    batcher: Batcher | None = None
    is_of_step: bool = False

    @property
    def title(self) -> str:
        """How messages call it, for example "allreduce 'loss'"."""
        return make_title(self.question.name)

    @property
    def payload(self) -> bytes | memoryview:
        """The bytes that travel inside the question, contiguous; empty when the signature says that none do."""
        return b""

    def find_obstacle(self, *, is_begun: bool) -> str:
        """Why it cannot be run again after the loss of a rank, as the end of a sentence; "" when it can.

        Args:
            is_begun: `start` was called.
        """
        del is_begun
        return "its result would depend on which ranks are left"

    @property
    def needed_rank(self) -> int | None:
        """The rank of the job without which it makes no sense; None where any ranks will do."""
        return None

    def renew(self, among: Members, ranks: Mapping[int, int]) -> Self:
        """The same operation in the next generation, with the same tensors. Only where `find_obstacle` finds none.

        Args:
            among: its set as it is then.
            ranks: of each rank that is left, its new one.
        """
        raise NotImplementedError

    @abstractmethod
    def start(self, group: TorchGroup, terms: Release) -> Sequence[Work]:
        """Begin to communicate with the set's members. It may wait for them: all run their releases in one order."""

    @abstractmethod
    def finish(self, terms: Release, payload: memoryview) -> ResultT_co:
        """Make the result, after all works of `start` are done.

        Args:
            terms: of the release; in a set of one member, made up from this rank's own question.
            payload: the answer's, where the data have travelled so; else empty.
        """


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
        """Whether no thread waits for it: its call has failed, or its step was interrupted; its name is used again."""
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
        if self.state is not _ASKED and self.state is not _FAILED:
            raise self._refuse(_RELEASED)
        self.terms = terms
        self.works = works
        if self.state is _ASKED:
            self.payload = payload
            self.state = _RELEASED

    def complete(self, terms: Release, result: ResultT_co) -> None:  # type: ignore[misc]  # nothing else gives results
        """It was released and finished together with others."""
        if self.state is _ASKED:
            self.terms = terms
            self._result = result
            self.state = _FINISHED
        elif self.state is not _FAILED:
            raise self._refuse(_FINISHED)

    def succeed(self) -> None:
        """Its works have ended well; where that was noted before, nothing changes."""
        if self.state is _RELEASED:
            self.works = ()
            self.state = _SUCCEEDED
        elif self.state is not _SUCCEEDED:
            raise self._refuse(_SUCCEEDED)

    def finish(self, result: ResultT_co) -> None:  # type: ignore[misc]  # as above
        """Its result was made."""
        if self.state is not _SUCCEEDED:
            raise self._refuse(_FINISHED)
        self._result = result
        self.payload = _NO_PAYLOAD
        self.state = _FINISHED

    def reset(self) -> None:
        """It was interrupted: what was begun does not count."""
        if self.state is not _RELEASED:
            raise self._refuse(_ASKED)
        self.terms = None
        self.works = ()
        self.payload = _NO_PAYLOAD
        self.state = _ASKED

    def fail(self, failure: Exception) -> None:
        """Let waiting for it raise `failure`, unless it has ended: the first end counts."""
        if self.state is _ASKED or self.state is _RELEASED:
            self.failure = failure
            self.state = _FAILED

    def _refuse(self, following: State) -> IllegalTransitionError:
        return IllegalTransitionError(self.title, self.state.value, following.value)


def are_running(handles: Iterable[Handle[object]]) -> bool:
    """Whether others still need this rank for one of these."""
    return any(handle.is_answered and not handle.is_done() for handle in handles)
