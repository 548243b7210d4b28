"""The protocol between a worker and the sequencer: the mutual proof of the generation's key, and the frames.

A connection begins with the proof: the sequencer sends NONCE_BYTES random bytes; the worker answers with a greeting
(`make_greeting`), the sequencer with its own proof. Nothing else is read before. Then both send frames: a length, a
type, and that many bytes. Requests are frequent and small, so a signature is sent once, and then referred to by a
number.

A REQUESTS frame has any number of requests. Each connection numbers its requests from 0. A RELEASES frame refers to a
request by its number, and to a burst by the number of the first. Integers are little-endian.
"""

import hashlib
import hmac
import json
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import IntEnum
from typing import Any, NamedTuple, Self

from worker_runtime.coordination.ordering.requests import Kind, Reduction, Release, Request, Signature


class Farewell(NamedTuple):
    """The body of a LEAVE, END or EXIT.

    reason: why the other ranks cannot continue; "" if they can.
    how: how the rank's process ends: "ended (ValueError: no such luck)"; "" if only `shutdown()` was called.
    """

    reason: str = ""
    how: str = ""

    def encode(self) -> bytes:
        """The body as bytes."""
        text = self.reason
        if self.how:
            text = f"{self.reason}\0{self.how}"
        return text.encode(errors="backslashreplace")

    @classmethod
    def decode(cls, body: bytes) -> Self:
        """The farewell of a body, which may be truncated."""
        reason, _, how = body.decode(errors="replace").partition("\0")
        return cls(reason, how)


NONCE_BYTES = 32
PROOF_BYTES = 32
KEY_BYTES = 32
STALL_VARIABLES = (
    "HOROVOD_STALL_CHECK_DISABLE",
    "HOROVOD_STALL_CHECK_TIME_SECONDS",
    "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS",
    "HVD_HANG_TIMEOUT",
)
MAX_FRAME_BYTES = 64 * 1024 * 1024
MAX_SIGNATURES = 4096  # of one rank; numbers are used again. It is much larger than a burst.

HEADER = struct.Struct("<IB")  # the length of the body, and the frame's type
_GREETING = struct.Struct(f"<QI{NONCE_BYTES}s{PROOF_BYTES}s")
GREETING_BYTES = _GREETING.size
_NUMBERS = struct.Struct("<QI")
_REQUEST = struct.Struct("<IHHHIdd")  # signature, set, bytes of the name, sizes, bytes of the payload, factors
_pack_request = _REQUEST.pack
# First request, count, first index, joined members, sizes of each, value, last rank.
_RELEASES = struct.Struct("<IIQHHqi")
_RANGE = struct.Struct("<IQHHqi")  # the same without the request
_NUMBER = struct.Struct("<I")
encode_number = _NUMBER.pack  # the number of a request
NUMBERS = 1 << 32  # the numbers of requests wrap around here
_BLOCKED = struct.Struct("<IB")
_INDEX = struct.Struct("<Q")
encode_index = _INDEX.pack  # of a release
_FORWARDED = struct.Struct("<Id")  # rank, time
_ARRIVALS = struct.Struct("<IBHId")  # set, kind, bytes of the name, ranks, release


class Frame(IntEnum):
    """The types of frames. The first ones go to the sequencer, the others come from it."""

    SIGNATURE = 1  # a number, and the signature that it refers to
    REQUESTS = 2
    BLOCKED = 3  # the number of a request in which the rank's only thread is blocked (1), or no longer blocked (0)
    LEAVE = 4  # the rank leaves: a farewell
    END = 5  # the process ends: a farewell that takes effect at the end of this connection
    EXIT = 10  # the process ends: like END if its exit code is 0 (see DEPARTED), else it is lost
    DEPARTED = 11  # a rank whose process has exited with 0, as reported by the rendezvous to the sender
    HALT = 6  # release nothing more; the reason, which is sent to all ranks after earlier releases
    RECORD = 13  # from rank 0: send it ARRIVALS (1), or no longer (0)
    WAITS = 14  # from another rank: for which operations its program has waited; for rank 0, if that records
    SETTINGS = 12  # rank 0's first frame: Horovod's variables of its program

    RELEASES = 16  # releases of requests of this rank, in the order of their indices
    NEUTRAL = 17  # a release to a joined rank, which has not asked
    REFUSAL = 18  # the number of a refused request, and the reason
    FAILURE = 19  # the reason why nothing more will be released
    STALL = 20  # a warning for the user
    DEADLOCK = 21  # like REFUSAL: every rank waits for another, and all pending requests are refused
    ARRIVALS = 24  # to a rank 0 that records: when the ranks had asked for released operations
    RANK_WAITS = 25  # to a rank 0 that records: the WAITS of a rank, with when they came
    STOPPING = 23  # the job has received a stop notice: it takes effect before the release of this index


class StoreFrame(IntEnum):
    """The types of frames on a connection to the generation's store. Each but SET is answered by one RESPONSE."""

    SET = 32  # a key and its value
    GET = 33  # a key; answered with its value, after it is set
    CHECK = 34  # keys; answered with a non-empty body if all are set
    COMPARE = 35  # the connections of one member of a process group; answered when those of all members are known
    RESPONSE = 36


STORE_ROLE = 1 << 31  # added to the rank in the greeting of a connection to the store


class ProtocolError(ValueError):
    """A message violates the protocol. The error says what was expected."""


@dataclass(frozen=True, slots=True)
class Greeting:
    """A worker's first message: its rank and its proof."""

    generation: int
    rank: int
    nonce: bytes
    proof: bytes

    def is_proven(self, key: bytes, challenge: bytes) -> bool:
        """Whether the worker knows the key; compared in constant time."""
        return hmac.compare_digest(self.proof, _prove(key, b"worker", self, challenge))

    def answer(self, key: bytes, challenge: bytes) -> bytes:
        """The sequencer's proof."""
        return _prove(key, b"sequencer", self, challenge)


def make_greeting(key: bytes, generation: int, rank: int, challenge: bytes, nonce: bytes) -> tuple[bytes, bytes]:
    """The greeting's bytes, and the sequencer's expected proof."""
    greeting = Greeting(generation, rank, nonce, b"")
    proof = _prove(key, b"worker", greeting, challenge)
    return _GREETING.pack(generation, rank, nonce, proof), greeting.answer(key, challenge)


def read_greeting(data: bytes) -> Greeting:
    """Decode a greeting of GREETING_BYTES bytes."""
    return Greeting(*_GREETING.unpack(data))


def encode_frame(kind: Frame | StoreFrame, body: bytes = b"") -> bytes:
    """A complete frame."""
    return HEADER.pack(len(body), kind) + body


def encode_entry(key: str, value: bytes) -> bytes:
    """The body of a SET."""
    name = key.encode()
    return _NUMBER.pack(len(name)) + name + value


def decode_entry(body: bytes) -> tuple[str, bytes]:
    """The key and the value of a SET.

    Raises:
        ProtocolError: the body is malformed.
    """
    if len(body) < _NUMBER.size or len(body) < (end := _NUMBER.size + _NUMBER.unpack_from(body)[0]):
        raise ProtocolError("a SET needs a key")
    return body[_NUMBER.size : end].decode(errors="replace"), body[end:]


def encode_ends(group: str, rank: int, size: int, ends: Sequence[tuple[str, str, int | None]] | None) -> bytes:
    """The body of a COMPARE.

    Args:
        group: a unique name of the process group.
        rank: this member's rank in the group.
        size: the number of members.
        ends: for each connection this end's address and port, the other end's, and the number of bytes that the other
            end has sent if it has connected to the group's listener (else None). None if they are unknown.
    """
    return json.dumps([group, rank, size, ends]).encode()


def decode_ends(body: bytes) -> tuple[str, int, int, list[tuple[str, str, int | None]] | None]:
    """The group, the member's rank in it, the group's size and the member's connections; see `encode_ends`.

    Raises:
        ProtocolError: the body is malformed.
    """
    try:
        group, rank, size, ends = json.loads(body)
        known = None
        if ends is not None:
            known = [_make_end(*end) for end in ends]
        if 0 <= int(rank) < int(size):
            return str(group), int(rank), int(size), known
    except (ValueError, TypeError):  # reported below
        pass
    raise ProtocolError("a COMPARE needs a group, a rank, a size and connections")


def _make_end(own: object, other: object, sent: object) -> tuple[str, str, int | None]:
    return str(own), str(other), sent if isinstance(sent, int) else None


def encode_comparison(fault: str, matched: Sequence[int]) -> bytes:
    """The response to a COMPARE.

    Args:
        fault: a message about a connection that leads to no member, the same for all members; "" if there is none.
        matched: the indices of the member's connections that lead to a member.
    """
    return json.dumps([fault, matched]).encode()


def decode_comparison(body: bytes) -> tuple[str, list[int]]:
    """See `encode_comparison`; the sequencer is trusted."""
    fault, matched = json.loads(body)
    return fault, matched


def decode_index(body: memoryview) -> int:
    """The index of a release."""
    return int(_INDEX.unpack(body)[0])


def encode_settings(environment: Mapping[str, str]) -> bytes:
    """The body of a SETTINGS: the variables for the sequencer."""
    return json.dumps({name: environment[name] for name in STALL_VARIABLES if name in environment}).encode()


def decode_settings(body: memoryview) -> dict[str, str]:
    """The variables of a SETTINGS and their values."""
    try:
        return {name: str(value) for name, value in json.loads(bytes(body)).items()}
    except (ValueError, AttributeError, RecursionError) as error:
        raise ProtocolError(f"variables were expected: {error}") from None


def encode_signature(number: int, signature: Signature) -> bytes:
    """The body of a SIGNATURE."""
    return _NUMBER.pack(number) + json.dumps(asdict(signature), separators=(",", ":")).encode()


def decode_signature(body: memoryview) -> tuple[int, Signature]:
    """The number and the signature of a SIGNATURE."""
    try:
        return _NUMBER.unpack_from(body)[0], _make_signature(json.loads(bytes(body[_NUMBER.size :])))
    except (struct.error, ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
        raise ProtocolError(f"a signature was expected: {error}") from None


def encode_request(
    signature: int,
    process_set: int,
    name: bytes,
    sizes: Sequence[int] = (),
    payload_bytes: int = 0,
    *,
    factors: tuple[float, float] = (1.0, 1.0),
) -> bytes:
    """One request; its payload must follow."""
    head = _pack_request(signature, process_set, len(name), len(sizes), payload_bytes, *factors) + name
    if sizes:
        return head + struct.pack(f"<{len(sizes)}q", *sizes)
    return head


# One received request: its head, sizes and payload. A plain tuple, since a message may have a thousand. The head stays
# in bytes, since most heads are known; `decode_head` decodes the others.
Asked = tuple[bytes, tuple[int, ...], bytes]


def decode_requests(data: bytes, offset: int, end: int) -> Iterator[Asked]:
    """The requests of a REQUESTS whose body is `data[offset:end]`; heads and payloads are copies."""
    unpack, size = _REQUEST.unpack_from, _REQUEST.size
    try:
        while offset < end:
            _, _, name_bytes, size_count, payload_bytes, _, _ = unpack(data, offset)
            sizes_at = offset + size + name_bytes
            payload_at = sizes_at + 8 * size_count
            head = data[offset:sizes_at]
            offset = payload_at + payload_bytes
            if offset > end:
                raise ProtocolError("a request is cut off")
            if size_count:
                sizes = struct.unpack_from(f"<{size_count}q", data, sizes_at)
            else:
                sizes = ()
            yield head, sizes, data[payload_at:offset]
    except struct.error as error:
        raise ProtocolError(f"a request was expected: {error}") from None


def decode_head(head: bytes) -> tuple[int, int, str, tuple[float, float]]:
    """The content of a request's head: its signature's number on this connection, its set, name and factors."""
    signature, process_set, _, _, _, before, after = _REQUEST.unpack_from(head)
    try:
        return signature, process_set, head[_REQUEST.size :].decode(), (before, after)
    except UnicodeDecodeError:
        raise ProtocolError(f"{head[_REQUEST.size :]!r} is not a name") from None


def encode_releases(number: int, first: Release, payloads: Sequence[bytes]) -> bytes:
    """Releases of consecutive requests; `number` is that of the first on this connection; see `encode_range`."""
    return encode_number(number) + encode_range(first, payloads, first.last)


def encode_range(first: Release, payloads: Sequence[bytes], last: int) -> bytes:
    """The part of RELEASES after the number of the first request, which is the same for all members.

    Args:
        first: the first release; the others have the following indices, and are otherwise equal.
        payloads: the payload of each release, at least one.
        last: see `Release`.
    """
    sizes, joined, count = first.sizes, first.joined, len(payloads)
    each = 0
    if sizes:
        each = len(sizes[0])
    parts = [_RANGE.pack(count, first.index, len(joined), each, first.value, last)]
    if each:
        parts.append(struct.pack(f"<{each * len(sizes)}q", *(size for member in sizes for size in member)))
    if joined:
        parts.append(struct.pack(f"<{len(joined)}I", *joined))
    parts.append(struct.pack(f"<{count}I", *map(len, payloads)))
    return b"".join((*parts, *payloads))


class Released(NamedTuple):
    """Received releases of consecutive requests and indices, otherwise equal.

    number: the number of the first request on this connection.
    index: the index of the first release.
    lengths: the length of each payload in bytes.
    payload: the concatenated payloads.
    last: see `Release`.
    """

    number: int
    index: int  # type: ignore[assignment]  # it hides the method of tuples, which is not wanted here
    joined: tuple[int, ...]
    sizes: tuple[tuple[int, ...], ...]
    value: int
    lengths: tuple[int, ...]
    payload: memoryview
    last: int = -1

    @property
    def numbers(self) -> range:
        """The numbers of the requests."""
        return range(self.number, self.number + len(self.lengths))


def decode_releases(body: memoryview, count_members: Callable[[int], int]) -> Iterator[Released]:
    """The releases of a RELEASES. Their payloads are views of `body`.

    Args:
        body: the frame's body.
        count_members: returns the number of members of the set of a request, by its number.
    """
    offset, end = 0, len(body)
    while offset < end:
        number, count, index, joined_count, each, value, last = _RELEASES.unpack_from(body, offset)
        offset += _RELEASES.size
        sizes: tuple[tuple[int, ...], ...] = ()
        joined: tuple[int, ...] = ()

        if each:
            total = each * count_members(number)
            flat = struct.unpack_from(f"<{total}q", body, offset)
            offset += 8 * total
            sizes = tuple(flat[start : start + each] for start in range(0, total, each))
        if joined_count:
            joined = struct.unpack_from(f"<{joined_count}I", body, offset)
            offset += 4 * joined_count

        lengths = struct.unpack_from(f"<{count}I", body, offset)
        start = offset + 4 * count
        offset = start + sum(lengths)
        yield Released(number, index, joined, sizes, value, lengths, body[start:offset], last)


def encode_neutral(release: Release) -> bytes:
    """The body of a NEUTRAL."""
    request = {**release.request._asdict(), "signature": asdict(release.request.signature)}
    fields = {**release._asdict(), "request": request}
    return json.dumps(fields, separators=(",", ":")).encode()


def decode_neutral(body: memoryview) -> Release:
    """The release of a NEUTRAL."""
    fields = json.loads(bytes(body))
    request = fields["request"]
    return Release(
        index=fields["index"],
        request=Request(
            request["process_set"],
            request["name"],
            _make_signature(request["signature"]),
            tuple(request["factors"]),
        ),
        members=tuple(fields["members"]),
        joined=tuple(fields["joined"]),
        sizes=tuple(tuple(member) for member in fields["sizes"]),
        value=fields["value"],
        last=fields["last"],
    )


def encode_numbered(number: int, text: str = "") -> bytes:
    """The body of a REFUSAL or a DEADLOCK."""
    return _NUMBER.pack(number) + text.encode(errors="backslashreplace")


def decode_numbered(body: memoryview) -> tuple[int, str]:
    """The request's number and the text of a REFUSAL or a DEADLOCK."""
    if len(body) < _NUMBER.size:
        raise ProtocolError("a request's number and a text were expected")
    return _NUMBER.unpack_from(body)[0], str(body[_NUMBER.size :], "utf-8", "replace")


def decode_number(body: memoryview) -> int:
    """A request's number."""
    if len(body) != _NUMBER.size:
        raise ProtocolError("a request's number was expected")
    return int(_NUMBER.unpack(body)[0])


def encode_blocked(number: int, *, is_blocked: bool) -> bytes:
    """The body of a BLOCKED."""
    return _BLOCKED.pack(number, is_blocked)


def decode_blocked(body: memoryview) -> tuple[int, bool]:
    """The request's number of a BLOCKED, and whether the rank is blocked in it."""
    if len(body) != _BLOCKED.size:
        raise ProtocolError("a request's number and a truth value were expected")
    number, is_blocked = _BLOCKED.unpack(body)
    return number, bool(is_blocked)


def encode_arrivals(release: Release, released: float, asked: Iterable[tuple[int, float]]) -> bytes:
    """A part of ARRIVALS.

    Args:
        release: the release.
        released: when it was decided, in seconds of the monotonic clock of the sequencer's host.
        asked: ranks, and the times at which the sequencer had their requests.
    """
    request = release.request
    name = request.name.encode()
    pairs = [number for pair in asked for number in pair]
    head = _ARRIVALS.pack(request.process_set, request.signature.kind, len(name), len(pairs) // 2, released)
    return head + name + struct.pack("<" + "Id" * (len(pairs) // 2), *pairs)


def decode_arrivals(body: memoryview) -> Iterator[tuple[int, str, Kind, float, list[tuple[int, float]]]]:
    """The parts of ARRIVALS: the set, the name and the kind of an operation, its release, and the ranks' requests."""
    offset = 0
    while offset < len(body):
        process_set, kind, name_bytes, count, released = _ARRIVALS.unpack_from(body, offset)
        start = offset + _ARRIVALS.size
        end = start + name_bytes
        numbers = struct.unpack_from("<" + "Id" * count, body, end)
        offset = end + struct.calcsize("<Id") * count
        pairs = list(zip(numbers[::2], numbers[1::2], strict=True))
        yield process_set, str(body[start:end], "utf-8"), Kind(kind), released, pairs


RankSpan = tuple[str, float, float, str]  # a name, a begin, an end, and the row among those of the rank


def encode_waits(sent: float, waits: Sequence[RankSpan]) -> bytes:
    """The body of WAITS.

    Args:
        sent: the present time of the sender's monotonic clock, in seconds.
        waits: operations, with the times at which the program began and ended to wait, and "" for the row of waits; or
            other spans of its time, each with its row.
    """
    return json.dumps([sent, waits]).encode()


def forward_waits(rank: int, received: float, body: memoryview) -> bytes:
    """The body of RANK_WAITS: that of the rank's WAITS, and when the sequencer had it by its own clock."""
    return _FORWARDED.pack(rank, received) + body


def decode_rank_waits(body: memoryview) -> tuple[int, float, float, list[RankSpan]]:
    """The rank, when the sequencer had its waits, when the rank sent them, and the waits.

    Raises:
        ProtocolError: the rank has sent something else.
    """
    rank, received = _FORWARDED.unpack_from(body)
    try:
        sent, waits = json.loads(bytes(body[_FORWARDED.size :]))
        spans = [(str(name), float(one), float(other), str(row)) for name, one, other, row in waits]
        return rank, received, float(sent), spans
    except (ValueError, TypeError) as error:
        raise ProtocolError(f"waits of rank {rank} were expected: {error}") from None


def _prove(key: bytes, role: bytes, greeting: Greeting, challenge: bytes) -> bytes:
    numbers = _NUMBERS.pack(greeting.generation, greeting.rank)
    return hmac.digest(key, b"hvd " + role + numbers + greeting.nonce + challenge, hashlib.sha256)


def _make_signature(fields: dict[str, Any]) -> Signature:
    reduction = fields["reduction"]
    return Signature(
        kind=Kind(fields["kind"]),
        dtypes=tuple(str(dtype) for dtype in fields["dtypes"]),
        shapes=tuple(tuple(int(size) for size in shape) for shape in fields["shapes"]),
        reduction=None if reduction is None else Reduction(reduction),
        root=None if fields["root"] is None else int(fields["root"]),
        device=str(fields["device"]),
        payload_dtype=str(fields["payload_dtype"]),
        tolerates_joined=bool(fields["tolerates_joined"]),
        note=str(fields["note"]),
    )
