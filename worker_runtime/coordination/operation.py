"""Operations, their process sets, and their handles.

A handle has one state; its class lists the transitions. It does nothing by itself: `InFlight` changes its state, and
`Engine.wait` waits for it.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from enum import Enum
from typing import Any, Generic, Self, TypeVar

from worker_runtime.coordination.ordering.requests import Kind, Release, Request, make_title
from worker_runtime.errors import IllegalTransitionError
from worker_runtime.groups.torch_groups import TorchGroup, Work

ResultT_co = TypeVar("ResultT_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Members:
    """A process set as its member `rank` sees it.

    number: the number of the set; set 0 has all ranks.
    ranks: the members' ranks in the job, in order.
    rank: this worker's rank in the job, one of the members.
    generation: the generation of these ranks.
    """

    number: int
    ranks: tuple[int, ...]
    rank: int
    generation: int = 0

    @property
    def size(self) -> int:
        """The number of members."""
        return len(self.ranks)

    @property
    def position(self) -> int:
        """This worker's rank within the set, which is also its rank in the set's torch group."""
        return self.ranks.index(self.rank)


class Batcher(ABC):
    """Packs and unpacks the values of several operations together: see `messages.py`.

    Operations that can be packed together have the same batcher, or equal ones.
    """

    @abstractmethod
    def pack(self, operations: Sequence[Any]) -> Sequence[bytes | memoryview]:
        """The payload of each operation."""

    @abstractmethod
    def unpack(self, operations: Sequence[Any], payload: memoryview) -> Sequence[object]:
        """Finish all operations: return their results, given the concatenated payloads of their responses."""


class Operation(ABC, Generic[ResultT_co]):
    """One collective with its tensors.

    It is submitted with `request`, `sizes` and `payload`. After its release any thread calls `start`, unless its data
    are a payload or the set has one member. After its works are done, the thread that waits calls `finish`, once.

    among: its set, when the operation was created.
    request: its set, its full name ("allreduce.loss") and its signature.
    sizes: the numbers that may differ between ranks; see `Release`.
    batcher: packs and unpacks it together with others; None if that is not faster.
    is_of_step: it belongs to an optimizer's step, which runs again as a whole.
    """

    among: Members
    request: Request
    sizes: tuple[int, ...] = ()
    batcher: Batcher | None = None
    is_of_step: bool = False

    @property
    def title(self) -> str:
        """The operation's name in messages, for example "allreduce 'loss'"."""
        return make_title(self.request.name)

    @property
    def payload(self) -> bytes | memoryview:
        """The contiguous bytes that are sent inside the request; empty if the signature has no payload."""
        return b""

    def find_obstacle(self, *, is_begun: bool) -> str:
        """The reason why it cannot run again after the loss of a rank, as the end of a sentence; "" if it can.

        Args:
            is_begun: `start` was called.
        """
        del is_begun
        return "its result would depend on which ranks survive"

    @property
    def needed_rank(self) -> int | None:
        """The rank of the job that it cannot run without; None if any ranks suffice."""
        return None

    def renew(self, among: Members, ranks: Mapping[int, int]) -> Self:
        """The operation for the next generation, with the same tensors. Call it only if `find_obstacle` returns "".

        Args:
            among: its set in the next generation.
            ranks: the new rank of each surviving rank.
        """
        raise NotImplementedError

    def follow_caller(self) -> AbstractContextManager[object]:
        """A context whose current CUDA stream waits for what the caller had enqueued; `renew` runs in it."""
        return nullcontext()

    @abstractmethod
    def start(self, group: TorchGroup, release: Release) -> Sequence[Work]:
        """Start to communicate with the set's members. It may wait for them: all run their releases in one order."""

    @abstractmethod
    def finish(self, release: Release, payload: memoryview) -> ResultT_co:
        """Compute the result, after all works of `start` are done.

        Args:
            release: the release; in a set of one member it is created from this rank's request.
            payload: the payload of the response; empty if the signature has none.
        """


_NO_PAYLOAD = memoryview(b"")


class OperationState(Enum):
    """The state of an operation on this rank."""

    ASKED = "asked"  # submitted, or to be submitted again in the next generation
    RELEASED = "released"  # communicates, or its response has arrived
    SUCCEEDED = "succeeded"  # its works are done
    FINISHED = "finished"  # its result is computed
    FAILED = "failed"


_ASKED, _RELEASED, _SUCCEEDED, _FINISHED, _FAILED = OperationState


class Handle(Generic[ResultT_co]):
    """A submitted operation. It keeps the operation's tensors alive.

        ASKED -> RELEASED -> SUCCEEDED -> FINISHED
        ASKED -> FINISHED    released and finished together with others
        RELEASED -> ASKED    interrupted by the loss of a rank; it will be released again
        ASKED, RELEASED -> FAILED

    Several threads read a handle. So each transition sets `state` last.

    Args:
        operation: the submitted operation; after the loss of a rank, the attribute is its replacement.

    state: see above.
    release: its release.
    works: its running works.
    payload: the payload of its release, until its result is computed.
    failure: the error that a wait raises, after it has failed.
    result: the result, only after it is finished.
    """

    __slots__ = ("__weakref__", "failure", "operation", "payload", "release", "result", "state", "works")

    def __init__(self, operation: Operation[ResultT_co]) -> None:
        self.operation = operation
        self.state = _ASKED
        self.release: Release | None = None
        self.works: Sequence[Work] = ()
        self.payload = _NO_PAYLOAD
        self.failure: Exception | None = None
        self.result: ResultT_co

    @property
    def title(self) -> str:
        """The operation's name in messages."""
        return self.operation.title

    @property
    def is_abandoned(self) -> bool:
        """Whether no thread may wait for it, so that its name can be used again: a failed call, or a step's."""
        return self.operation.is_of_step or self.operation.request.signature.kind is Kind.FAIL

    @property
    def is_answered(self) -> bool:
        """Whether it was released or refused."""
        return self.state is not _ASKED

    @property
    def has_succeeded(self) -> bool:
        """Whether its works are done, and its result may be half computed: `finish` runs once."""
        return self.state is _SUCCEEDED

    @property
    def is_finished(self) -> bool:
        """Whether the result is computed."""
        return self.state is _FINISHED

    @property
    def is_failed(self) -> bool:
        """Whether a wait raises `failure`."""
        return self.state is _FAILED

    def is_done(self) -> bool:
        """Whether a wait returns or raises immediately."""
        if self.state is _RELEASED:
            return all(work.is_completed() for work in self.works)
        return self.state is not _ASKED

    def begin(self, release: Release, works: Sequence[Work], payload: memoryview) -> None:
        """Note the release, and the started works. If it has failed before (`shutdown()`), its works must still end."""
        if self.state is not _ASKED and self.state is not _FAILED:
            raise self._refuse(_RELEASED)
        self.release = release
        self.works = works
        if self.state is _ASKED:
            self.payload = payload
            self.state = _RELEASED

    def complete(self, release: Release, result: ResultT_co) -> None:  # type: ignore[misc]  # nothing else gives results
        """Note that it was released and finished together with others."""
        if self.state is _ASKED:
            self.release = release
            self.result = result
            self.state = _FINISHED
        elif self.state is not _FAILED:
            raise self._refuse(_FINISHED)

    def succeed(self) -> None:
        """Note that its works are done; does nothing if that is already noted."""
        if self.state is _RELEASED:
            self.works = ()
            self.state = _SUCCEEDED
        elif self.state is not _SUCCEEDED:
            raise self._refuse(_SUCCEEDED)

    def finish(self, result: ResultT_co) -> None:  # type: ignore[misc]  # nothing else gives results
        """Store the result."""
        if self.state is not _SUCCEEDED:
            raise self._refuse(_FINISHED)
        self.result = result
        self.payload = _NO_PAYLOAD
        self.state = _FINISHED

    def reset(self) -> None:
        """Return to ASKED after an interruption, and drop the works."""
        if self.state is not _RELEASED:
            raise self._refuse(_ASKED)
        self.release = None
        self.works = ()
        self.payload = _NO_PAYLOAD
        self.state = _ASKED

    def fail(self, failure: Exception) -> None:
        """Make a wait raise `failure`, unless the operation has already succeeded or failed."""
        if self.state is _ASKED or self.state is _RELEASED:
            self.failure = failure
            self.state = _FAILED

    def _refuse(self, following: OperationState) -> IllegalTransitionError:
        return IllegalTransitionError(self.title, self.state.value, following.value)


def are_running(handles: Iterable[Handle[object]]) -> bool:
    """Whether one of these communicates, so that other ranks still need this one."""
    return any(handle.is_answered and not handle.is_done() for handle in handles)
