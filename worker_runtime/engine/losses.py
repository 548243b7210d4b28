"""The loss policy of an engine: after the loss of a rank its operations fail, or run again in the next generation."""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

from worker_runtime.collectives.agreements import CommitRound
from worker_runtime.coordination import wire
from worker_runtime.coordination.operation import Operation
from worker_runtime.coordination.ordering.requests import Release, Request
from worker_runtime.rendezvous import CompletedOperation

# A report lists this many of the last completed operations. Survivors differ at most by the releases that one has read
# from its socket and another has not.
_REMEMBERED = 256
_ANSWERED = 32  # of these, the last ones are reported with the sequencer's response, for survivors that did not get it
_RESPONSE_BYTES = 1024  # longer responses are not reported; that of a loss or an accuracy is shorter
STOPPING = b"s"  # the reported response of a commit round that came after a stop notice


@dataclass(frozen=True, slots=True)
class Fail:
    """The job ends with the first loss, and pending operations fail.

    find_cause: returns a better reason of a failure than gloo's, if one is known.
    """

    find_cause: Callable[[], str | None] = lambda: None


class Retry:
    """Pending operations wait for the next generation, and run again there: see `Succession`.

    Args:
        report_failure: called with the number of a failed generation and the reason; from any thread, repeatedly.

    floor: the low watermark: completed operations with a smaller release index may have been forgotten.
    """

    def __init__(self, report_failure: Callable[[int, str], None]) -> None:
        self.report_failure = report_failure
        self.floor = 0
        self._completed: deque[tuple[Release, int, bytes]] = deque()  # with the commit round (or 0), and the response

    def remember(self, operation: Operation[Any], release: Release, payload: memoryview, *, is_stopping: bool) -> None:
        """Remember a completed operation for the report; other ranks may not have completed it.

        Args:
            operation: the operation.
            release: its release.
            payload: the payload of the release.
            is_stopping: the release came after a stop notice for the job.
        """
        number = 0
        if isinstance(operation, CommitRound):
            number = operation.number
        response = b""
        if payload.nbytes <= _RESPONSE_BYTES:
            response = bytes(payload)
        self._completed.append((release, number, STOPPING if number and is_stopping else response))
        if len(self._completed) > _REMEMBERED:
            forgotten, _, _ = self._completed.popleft()
            self.floor = max(self.floor, forgotten.index + 1)

    def list_completed(self) -> Iterator[CompletedOperation]:
        """The completed operations for the report."""
        unanswered = len(self._completed) - _ANSWERED
        for place, (release, number, payload) in enumerate(self._completed):
            response = b""
            if number:
                response = payload
            elif place >= unanswered:
                response = encode_response(release, payload)
            yield CompletedOperation(release.members, release.request.name, release.index, number, response)

    def forget(self) -> None:
        """Forget all operations, at the start of another generation."""
        self._completed.clear()
        self.floor = 0


LossPolicy: TypeAlias = Fail | Retry


def encode_response(release: Release, payload: bytes) -> bytes:
    """The sequencer's response to an operation with a payload, from which its result can be computed; else b""."""
    if payload:
        return wire.encode_releases(0, release, (payload,))
    return b""


def decode_response(response: bytes, request: Request, members: tuple[int, ...]) -> tuple[Release, memoryview]:
    """The release and the payload to finish an operation that other ranks have completed; b"" answers a barrier."""
    if not response:
        return Release(-1, request, members), memoryview(b"")
    released = next(wire.decode_releases(memoryview(response), lambda _: len(members)))
    return Release(-1, request, members, released.joined, released.sizes, released.value), released.payload


def runs_with_step(operation: Operation[Any]) -> bool:
    """Whether the operation runs again only as part of its optimizer's step, so that it is not reported."""
    return operation.is_of_step and not isinstance(operation, CommitRound)
