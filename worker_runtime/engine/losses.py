"""What an engine does about the loss of a rank: its operations fail, or they are run again in the next generation."""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

from worker_runtime.collectives.agreements import Commit
from worker_runtime.coordination import wire
from worker_runtime.coordination.operation import Operation
from worker_runtime.coordination.ordering.questions import Question, Release
from worker_runtime.rendezvous import CompletedOperation

# Of so many operations that were done last a report tells. Survivors are never further apart than the sequencer's loss
# lets them be: the releases that one has read from its socket, and another has not.
_REMEMBERED = 256
_TOLD = 32  # so many of them are told with the sequencer's answer, so that others, who have not got it, can continue
_TOLD_BYTES = 1024  # if the answer is no longer than that, as that of a loss or an accuracy
STOPPING = b"s"  # what is told as the answer to a commit round before which a stop notice had come


@dataclass(frozen=True, slots=True)
class Fail:
    """The job ends with its first loss, and what is pending fails.

    find_cause: is asked after a failure whether a better reason is known than gloo's.
    """

    find_cause: Callable[[], str | None] = lambda: None


class Retry:
    """What is pending waits for the next generation, and runs again there: see `Succession`.

    Args:
        tell_trouble: is told, in a sentence, of a generation that cannot go on; any thread may call it, repeatedly.

    floor: the index of a release; all operations below it may have been forgotten.
    """

    def __init__(self, tell_trouble: Callable[[int, str], None]) -> None:
        self.tell_trouble = tell_trouble
        self.floor = 0
        self._completed: deque[tuple[Release, int, bytes]] = deque()  # of a commit round its number; what is told

    def remember(self, operation: Operation[Any], terms: Release, payload: memoryview, *, is_stopping: bool) -> None:
        """An operation is done on this rank; others may not know that yet.

        Args:
            operation: which.
            terms: of its release.
            payload: what came with it.
            is_stopping: a stop notice for the job had come before the release.
        """
        number = operation.number if isinstance(operation, Commit) else 0
        told = bytes(payload) if payload.nbytes <= _TOLD_BYTES else b""
        self._completed.append((terms, number, STOPPING if number and is_stopping else told))
        if len(self._completed) > _REMEMBERED:
            forgotten, _, _ = self._completed.popleft()
            self.floor = max(self.floor, forgotten.index + 1)

    def list_completed(self) -> Iterator[CompletedOperation]:
        """For the report."""
        untold = len(self._completed) - _TOLD
        for place, (terms, number, told) in enumerate(self._completed):
            answer = told if number else encode_answer(terms, told) if place >= untold else b""
            yield CompletedOperation(terms.members, terms.question.name, terms.index, number, answer)

    def forget(self) -> None:
        """Another generation begins."""
        self._completed.clear()
        self.floor = 0


LossPolicy: TypeAlias = Fail | Retry


def encode_answer(terms: Release, payload: bytes) -> bytes:
    """What makes the result of an operation whose data have travelled as payload; b"" where none have."""
    return wire.encode_releases(0, terms, (payload,)) if payload else b""


def decode_answer(answer: bytes, question: Question, members: tuple[int, ...]) -> tuple[Release, memoryview]:
    """What to finish an operation with that others have done, and its payload; b"" is the answer to a barrier."""
    if not answer:
        return Release(-1, question, members), memoryview(b"")
    released = next(wire.decode_releases(memoryview(answer), lambda _: len(members)))
    return Release(-1, question, members, released.joined, released.sizes, released.value), released.payload


def is_made_anew(operation: Operation[Any]) -> bool:
    """Whether whoever waits for it runs more than it again: then nobody else need know of it."""
    return operation.is_of_step and not isinstance(operation, Commit)
