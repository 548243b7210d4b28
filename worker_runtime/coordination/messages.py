"""The encoding of operations as requests, and of the sequencer's messages as responses.

Both sides count requests, so each counted request must be sent. So `SendQueue.ask` first checks that an operation can
be encoded. Its values are read only when it is sent, together with those of its neighbors. If that fails, a FAIL is
sent in its place, which reports the error to all ranks.

Consecutive small operations are packed and unpacked together. Each call of torch takes about a microsecond: sending and
receiving a thousand tensors of 64 bytes costs 5 us a tensor if each is packed alone, and 1.2 us a tensor together.
"""

import struct
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import accumulate, groupby, pairwise
from operator import attrgetter
from typing import Any, NamedTuple, TypeAlias

from worker_runtime.coordination import wire
from worker_runtime.coordination.operation import Batcher, Handle, Operation
from worker_runtime.coordination.ordering.requests import Kind, Release, Signature
from worker_runtime.coordination.wire import NUMBERS, Frame, RankSpan, Released, encode_request
from worker_runtime.errors import UnsendableError

BURST = 256  # this many requests are sent without waiting for more, so that the sequencer can start
_MAX_COUNT = 0xFFFF  # the largest number of a request's sizes, and of the bytes of its name

_Gathered = tuple[Operation[Any], int, bytes]  # with the number of its signature, and its encoded name
_Pieces = list[bytes | memoryview]


class SendQueue:
    """The frames and requests to send, in their order.

    asked: the number of requests so far, modulo NUMBERS.
    """

    def __init__(self) -> None:
        self._signatures: OrderedDict[Signature, int] = OrderedDict()  # the last used one at the end
        self._latest: tuple[Signature | None, int] = (None, -1)  # the last used one: often the same in a burst
        self._frames: _Pieces = []  # signatures and complete frames
        self._operations: list[_Gathered] = []  # the operations to send after these
        self.asked = 0

    @property
    def is_full(self) -> bool:
        """Whether the queue should be sent."""
        return len(self._operations) >= BURST

    def ask(self, operation: Operation[object]) -> int:
        """Add an operation, whose values `take` reads; return the number by which responses refer to it.

        Raises:
            UnsendableError: the operation cannot be encoded. It was not added.
        """
        _, title, described, _ = operation.request
        try:
            name = title.encode()
            if operation.sizes or len(name) > _MAX_COUNT:
                _check(name, operation.sizes)
            latest, signature = self._latest
            if described is not latest:
                signature = self._call_signature(described)
        except (TypeError, ValueError, ArithmeticError, RecursionError, struct.error) as error:
            raise UnsendableError(operation.title, str(error)) from None
        self._operations.append((operation, signature, name))
        number, self.asked = self.asked, (self.asked + 1) % NUMBERS
        return number

    def put(self, kind: Frame, body: bytes = b"") -> None:
        """Add another frame, after the present requests."""
        self._encode_requests()
        self._frames.append(wire.encode_frame(kind, body))

    def take(self) -> bytes:
        """Encode and remove the content of the queue."""
        self._encode_requests()
        if not self._frames:
            return b""
        data, self._frames = b"".join(self._frames), []
        return data

    def _encode_requests(self) -> None:
        """Make frames of the operations."""
        gathered, self._operations = self._operations, []
        if not gathered:
            return

        frames: _Pieces = []
        pieces: _Pieces = []
        length = 0
        try:
            for (operation, signature, name), payload in zip(gathered, _pack(gathered), strict=True):
                process_set, _, _, factors = operation.request
                if isinstance(payload, Exception):
                    piece: bytes | memoryview = b""
                    head = encode_request(self._call_failure(payload), process_set, name)
                else:
                    piece = payload
                    head = encode_request(signature, process_set, name, operation.sizes, len(piece), factors=factors)
                count = len(head) + len(piece)
                if length + count > wire.MAX_FRAME_BYTES:
                    frames += _close(pieces, length)
                    pieces, length = [], 0
                pieces += (head, piece)
                length += count
            frames += _close(pieces, length)
        except BaseException:  # from a signal's handler: counted requests must be sent
            self._operations[:0] = gathered
            raise
        self._frames += frames

    def _call_failure(self, error: Exception) -> int:
        """The signature of the FAIL that replaces an operation whose values cannot be read."""
        return self._call_signature(Signature(Kind.FAIL, note=f"{type(error).__name__}: {error}"))

    def _call_signature(self, signature: Signature) -> int:
        """The number of a signature. A new one is sent to the sequencer, and replaces the oldest of too many."""
        signatures = self._signatures
        known = signatures.get(signature)
        if known is None:
            is_full = len(signatures) >= wire.MAX_SIGNATURES
            if is_full:
                known = next(iter(signatures.values()))
            else:
                known = len(signatures)
            frame = wire.encode_frame(Frame.SIGNATURE, wire.encode_signature(known, signature))
            # No operation in the queue uses the oldest signature: each has used its own signature more recently.
            if is_full:
                signatures.popitem(last=False)
            signatures[signature] = known  # only after it could be encoded
            self._frames.append(frame)
        else:
            signatures.move_to_end(signature)

        self._latest = signature, known
        return known


def _check(name: bytes, sizes: Sequence[int]) -> None:
    """Check that a name and sizes can be encoded.

    Raises:
        ValueError: they are too long.
        struct.error: a size is not a 64-bit integer.
    """
    if len(name) > _MAX_COUNT:
        raise ValueError(f"its name has {len(name)} bytes; the maximum is {_MAX_COUNT}")
    if len(sizes) > _MAX_COUNT:
        raise ValueError(f"it has {len(sizes)} tensors or splits; the maximum is {_MAX_COUNT}")
    struct.pack(f"<{len(sizes)}q", *sizes)


def pack(operations: Sequence[Operation[Any]]) -> list[bytes | memoryview]:
    """The payload of each operation.

    Raises:
        RuntimeError: out of memory, or a program changed tensors in flight.
    """
    payloads: list[bytes | memoryview] = []
    for batcher, alike in groupby(operations, attrgetter("batcher")):
        batch = list(alike)
        if batcher is None or len(batch) == 1:
            payloads += [operation.payload for operation in batch]
        else:
            payloads += batcher.pack(batch)
    return payloads


def _pack(gathered: Sequence[_Gathered]) -> Sequence[bytes | memoryview | Exception]:
    """The payload of each operation, or the error of reading it."""
    operations = [operation for operation, _, _ in gathered]
    try:
        return pack(operations)
    except Exception:  # noqa: BLE001 - it concerns some of them only: read each separately
        return [_read_payload(operation) for operation in operations]


def _read_payload(operation: Operation[Any]) -> bytes | memoryview | Exception:
    try:
        return operation.payload
    except Exception as error:  # noqa: BLE001 - reported to all ranks that wait for the operation
        return error.with_traceback(None)


def _close(pieces: _Pieces, length: int) -> _Pieces:
    """The frame of some requests; empty if there are none."""
    if pieces:
        return [wire.HEADER.pack(length, Frame.REQUESTS), *pieces]
    return []


# Returns the results of operations that are finished together; None if one fails: then each is finished separately.
Unpack: TypeAlias = Callable[[], Sequence[object] | None]


class Answered(NamedTuple):
    """Operations of this rank were released.

    handles: the operations' handles.
    releases: the release of each.
    payload: the concatenated payloads.
    lengths: the length of each payload.
    unpack: finishes all of them together; None if each must run separately.
    """

    handles: Sequence[Handle[Any]]
    releases: Sequence[Release]
    payload: memoryview
    lengths: Sequence[int]
    unpack: Unpack | None

    @property
    def payloads(self) -> Iterable[memoryview]:
        """The payload of each."""
        if len(self.lengths) == 1:
            return (self.payload,)
        ends = accumulate(self.lengths, initial=0)
        return (self.payload[start:end] for start, end in pairwise(ends))


class Neutral(NamedTuple):
    """An operation was released that this rank, after `join()`, has not submitted."""

    release: Release


class Refused(NamedTuple):
    """The sequencer has refused an operation."""

    handle: Handle[Any]
    reason: str
    is_deadlock: bool


class StopNoticed(NamedTuple):
    """The job has received a stop notice, before the release of this index."""

    index: int  # type: ignore[assignment]  # it hides the method of tuples


class Arrived(NamedTuple):
    """When the ranks had asked for operations that are released now; only to a rank 0 that records.

    parts: see `wire.decode_arrivals`.
    """

    parts: Sequence[tuple[int, str, Kind, float, Sequence[tuple[int, float]]]]


class Waited(NamedTuple):
    """What the time of another rank was spent on; only to a rank 0 that records.

    received, sent: when the sequencer had the message, and when that rank sent it, each by its own clock.
    waits: see `wire.encode_waits`.
    """

    rank: int
    received: float
    sent: float
    waits: Sequence[RankSpan]


class Ended(NamedTuple):
    """The conversation has ended.

    fault: the bug of the runtime that is the reason, if any.
    """

    reason: str
    fault: Exception | None = None


ReceivedResponse: TypeAlias = Answered | Neutral | Refused | StopNoticed | Arrived | Waited | Ended


def split(
    released: Released, handles: Sequence[Handle[Any]], list_members: Callable[[int], tuple[int, ...]]
) -> Sequence[Answered]:
    """The responses of one message, in the order of their releases.

    Args:
        released: the message.
        handles: the operations' handles.
        list_members: returns the ranks of a set.
    """
    shared = released.joined, released.sizes, released.value, released.last
    requests = [handle.operation.request for handle in handles]
    members = {number: list_members(number) for number in {request.process_set for request in requests}}
    releases = [
        Release(index, request, members[request.process_set], *shared)
        for index, request in enumerate(requests, released.index)
    ]

    payload = released.payload
    if len(releases) == 1:
        return (Answered(handles, releases, payload, released.lengths, None),)

    ends = [0, *accumulate(released.lengths)]
    responses: list[Answered] = []
    first = 0
    for batcher, alike in groupby(handles, attrgetter("operation.batcher")):
        batch = list(alike)
        last = first + len(batch)
        own = payload[ends[first] : ends[last]]
        if batcher is None or len(batch) == 1:
            unpack = None
        else:
            unpack = partial(_unpack, batcher, batch, own)
        responses.append(Answered(batch, releases[first:last], own, released.lengths[first:last], unpack))
        first = last
    return responses


def _unpack(batcher: Batcher, handles: Sequence[Handle[Any]], payload: memoryview) -> Sequence[object] | None:
    """See `Unpack`."""
    try:
        return batcher.unpack([handle.operation for handle in handles], payload)
    except RuntimeError:
        return None
