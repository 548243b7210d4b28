"""A member of a generation in the sequencer: its connection, its numbers, and the encoding of its responses.

Consecutive releases are sent as one range, with one number; other responses are separate frames.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter

from worker_runtime.coordination.ordering.requests import Failure, Refusal, Release, Request, Signature, Stopping
from worker_runtime.coordination.sequencer.connection import Connection
from worker_runtime.coordination.sequencer.payloads import Entry, check_signature
from worker_runtime.coordination.wire import (
    HEADER,
    MAX_SIGNATURES,
    Farewell,
    Frame,
    ProtocolError,
    decode_head,
    decode_signature,
    encode_frame,
    encode_index,
    encode_number,
    encode_numbered,
    encode_range,
)

MAX_PENDING = 1_000_000  # the largest number of pending requests of one rank
_MAX_SHARED = 4 * MAX_SIGNATURES  # the largest number of shared signatures of all members
_MAX_KNOWN_REQUESTS = 8192  # a program's own names recur in every step; numbered ones never do
_FULL_FRAME_BYTES = 16 * 1024 * 1024  # the size at which a frame of releases is closed

Key = tuple[int, str]  # set and name


@dataclass(slots=True, eq=False)
class Member:
    """A member.

    pending: its unanswered requests, oldest first.
    asked: the number of its next request.
    has_left: it has left, so that the end of its connection means nothing.
    farewell: its farewell, which takes effect at the end of its connection; None if that end means a loss.
    is_undecided: the farewell is valid only if its process exits with 0, which is not known yet.
    requests: its known requests, by their heads.
    releases: the encoded releases to send.
    """

    rank: int
    connection: Connection
    pending: dict[Key, Entry] = field(default_factory=dict)
    asked: int = 0
    has_left: bool = False
    farewell: Farewell | None = None
    is_undecided: bool = False
    requests: dict[bytes, tuple[Request, Key]] = field(default_factory=dict)
    releases: list[bytes] = field(default_factory=list)
    _signatures: dict[int, Signature] = field(default_factory=dict)
    _frames: list[bytes] = field(default_factory=list)

    def learn_signature(self, body: memoryview, known: dict[Signature, Signature]) -> None:
        """Store a signature under its number.

        Args:
            body: the body of a SIGNATURE.
            known: the signatures of all members, so that equal ones are the same object and compare fast.

        Raises:
            ProtocolError: the body is malformed, or the number is too large.
        """
        number, signature = decode_signature(body)
        check_signature(signature)
        if number >= MAX_SIGNATURES:
            raise ProtocolError(f"a rank may have {MAX_SIGNATURES} signatures")
        if len(known) >= _MAX_SHARED:
            known.clear()  # sharing is only an optimization
        if number in self._signatures:
            self.requests.clear()  # some have the signature that the number meant before
        self._signatures[number] = known.setdefault(signature, signature)

    def learn_request(self, head: bytes) -> tuple[Request, Key]:
        """Decode and store a request by its head.

        Raises:
            ProtocolError: the number of its signature is unknown, or the name is not UTF-8.
        """
        number, process_set, name, factors = decode_head(head)
        signature = self._signatures.get(number)
        if signature is None:
            raise ProtocolError(f"there is no signature with the number {number}")
        if len(self.requests) >= _MAX_KNOWN_REQUESTS:
            self.requests.clear()
        known = self.requests[head] = Request(process_set, name, signature, factors), (process_set, name)
        return known

    def find_pending(self, number: int) -> Key | None:
        """The pending request with a number; None if it is answered."""
        return next((key for key in reversed(self.pending) if self.pending[key][1] == number), None)

    def put(self, kind: Frame, body: bytes) -> None:
        """Queue another frame."""
        self._close_releases()
        self._frames.append(encode_frame(kind, body))

    def flush(self) -> None:
        """Send the queued frames.

        Raises:
            ConnectionEndedError: the connection is broken, or the rank reads too slowly.
        """
        self._close_releases()
        if self._frames:
            data, self._frames = b"".join(self._frames), []
            self.connection.send(data)

    def _close_releases(self) -> None:
        """Queue the releases as a frame, or as several large ones."""
        pieces, self.releases = self.releases, []
        length, first = 0, 0
        for end, piece in enumerate(pieces):
            if length + len(piece) > _FULL_FRAME_BYTES and length:
                self._frames += (HEADER.pack(length, Frame.RELEASES), *pieces[first:end])
                length, first = 0, end
            length += len(piece)
        if length:
            self._frames += (HEADER.pack(length, Frame.RELEASES), *pieces[first:])


_FULL_BYTES = 1024 * 1024  # the size of payloads at which a range is closed
_find_arrival = itemgetter(3)  # of an entry


class ReleaseRange:
    """Releases of consecutive indices, whose requests have consecutive numbers on every rank.

    Args:
        release: the first release.
        asked: the requests that it answers.
        payload: the payload of its response.
    """

    __slots__ = ("_bytes", "_is_plain", "_latest", "_numbers", "_payloads", "asked", "first")

    def __init__(self, release: Release, asked: Sequence[Entry], payload: bytes) -> None:
        self.first = release
        self.asked = self._latest = asked
        self._numbers = [number for _, number, _, _ in asked]
        self._payloads = [payload]
        self._bytes = len(payload)
        self._is_plain = _is_plain(release, asked)

    def take(self, release: Release, asked: Sequence[Entry], payload: bytes) -> bool:
        """Add the next release if it continues the range; return whether it does."""
        count = len(self._payloads)
        if (
            not self._is_plain
            or self._bytes > _FULL_BYTES
            or release.members is not self.first.members
            or [number - count for _, number, _, _ in asked] != self._numbers
            or not _is_plain(release, asked)
        ):
            return False
        self._payloads.append(payload)
        self._bytes += len(payload)
        self._latest = asked
        return True

    def encode(self) -> Iterator[tuple[int, bytes]]:
        """The ranks and the bytes for each; ranks with the same number of the first request share the bytes."""
        if not self.asked:
            return  # they have left
        last, _, _, _ = max(self._latest, key=_find_arrival)
        body = encode_range(self.first, self._payloads, last)
        pieces: dict[int, bytes] = {}
        for (rank, _, _, _), number in zip(self.asked, self._numbers, strict=True):
            if number not in pieces:
                pieces[number] = encode_number(number) + body
            yield rank, pieces[number]


def _is_plain(release: Release, asked: Sequence[Entry]) -> bool:
    """Whether all members have asked, and the release is the same for all."""
    return len(asked) == len(release.members) and not (release.joined or release.sizes or release.value)


def make_frames(
    response: Refusal | Failure | Stopping, asked: Sequence[Entry], members: Mapping[int, Member]
) -> Iterator[tuple[int, Frame, bytes]]:
    """The frames of a response other than a release: the rank, the frame's type and its body.

    Args:
        response: the response.
        asked: the requests that it answers.
        members: the members of the generation.
    """
    match response:
        case Refusal():
            kind = Frame.DEADLOCK if response.is_deadlock else Frame.REFUSAL
            for rank, number, _, _ in asked:
                yield rank, kind, encode_numbered(number, response.reason)
        case Stopping(index):
            body = encode_index(index)
            yield from ((rank, Frame.STOPPING, body) for rank, member in members.items() if not member.has_left)
        case Failure():
            yield from ((rank, Frame.FAILURE, response.reason.encode()) for rank in members)
