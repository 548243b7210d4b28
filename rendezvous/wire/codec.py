"""The codec: a dataclass <-> the protobuf message of the same name, field by field; and frames of them.

A new message is a dataclass and a message in protos/rendezvous.proto, with the same names. Their fields correspond like
this:

| field of the dataclass | field of the message |
|---|---|
| `X`, another dataclass or an enum | its message; its enum, whose values are X_MEMBER |
| `X | None`, or a dataclass with a default | optional; missing for None, and for the default |
| `tuple[X, ...]` | repeated; `tuple[int, ...]` are ranks, in runs: see `_encode_runs` |
| `tuple[X, Y]`, in a tuple; a Mapping | a message of two fields, in this order; repeated |
| `str` | string, in which undecodable bytes of a path become escapes; or bytes, which arrive unchanged |

A malformed message raises `WireError`: see `_CHECKS` and `Filled`.
"""

import math
import os
import re
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import Enum
from functools import cache, lru_cache, partial
from itertools import chain, pairwise
from types import NoneType
from typing import Annotated, Any, NamedTuple, NoReturn, TypeAlias, TypeVar, cast, get_args, get_origin, get_type_hints

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message

from protos import rendezvous_pb2 as pb
from rendezvous.core.model import Assignment, Endpoint, Slot, Worker
from rendezvous.core.reports import CompletedOperation, PendingOperation
from rendezvous.errors import WireError
from rendezvous.wire.notifications import KEY_BYTES, Notification, Published
from rendezvous.wire.orders import AgentMessage, Order

T = TypeVar("T")
Convert: TypeAlias = Callable[[Any], Any]
Hint: TypeAlias = Any  # a type, as it stands at a field
Wire: TypeAlias = Any  # a FieldDescriptor or EnumDescriptor, of which the stubs know too little

MAX_FRAME_BYTES = 16 * 1024 * 1024
_LENGTH = struct.Struct(">I")
_LAST_PORT = 65_535
_MOST_RANKS = 1_000_000  # a short run of a peer must not fill the memory

# By type, what is wrong with a received value, beyond the types of its fields; False if nothing is.
_CHECKS: dict[type, Convert] = {
    Assignment: lambda it: it.rank >= it.size and f"rank {it.rank} in a generation of {it.size}",
    Endpoint: lambda it: (
        not (it.address and 0 < it.port <= _LAST_PORT) and f"an endpoint without address, or with port {it.port}"
    ),
    Published: lambda it: len(it.key) != KEY_BYTES and f"a generation with a key of {len(it.key)} bytes",
    PendingOperation: lambda it: not it.ranks and f"an operation {it.name!r} without ranks",
    CompletedOperation: lambda it: not it.ranks and f"an operation {it.name!r} without ranks",
}


def encode(value: object) -> Any:
    """The message of a dataclass."""
    return _find_codec(type(value)).encode(value)


def decode(kind: type[T], message: Message) -> T:
    """The dataclass of a message.

    Raises:
        WireError: the message is malformed.
    """
    return cast("T", _find_codec(kind).decode(message))


def encode_worker(worker: Worker) -> pb.WorkerId:
    """The message of a worker."""
    return pb.WorkerId(host=worker.slot.host, slot=worker.slot.index, incarnation=worker.incarnation)


def decode_worker(message: pb.WorkerId) -> Worker:
    """The worker of a message."""
    if not message.host or not message.incarnation:
        raise WireError("a worker without host or incarnation")
    return Worker(Slot(message.host, message.slot), message.incarnation)


def encode_notification(notification: Notification) -> pb.Notification:
    """The message that holds a notification."""
    return cast("pb.Notification", _find_union(pb.Notification, Notification).encode(notification))


def decode_notification(message: pb.Notification) -> Notification:
    """The notification in a message."""
    return cast("Notification", _find_union(pb.Notification, Notification).decode(message))


def encode_order(order: Order) -> bytes:
    """One framed order."""
    return frame(make_order(order).SerializeToString())


def decode_order(data: bytes) -> Order:
    """The order of one frame."""
    return cast("Order", _parse(_find_union(pb.Order, Order), data))


def make_order(order: Order) -> pb.Order:
    """The message that holds an order."""
    return cast("pb.Order", _find_union(pb.Order, Order).encode(order))


def read_order(message: pb.Order) -> Order:
    """The order in a message."""
    return cast("Order", _find_union(pb.Order, Order).decode(message))


def encode_agent_message(message: AgentMessage) -> bytes:
    """One framed message of an agent to its launcher."""
    return frame(pack_agent_message(message))


def pack_agent_message(message: AgentMessage) -> bytes:
    """The bytes of a message of an agent to its launcher, without a frame."""
    return bytes(_find_union(pb.AgentMessage, AgentMessage).encode(message).SerializeToString())


def decode_agent_message(data: bytes) -> AgentMessage:
    """The agent's message of one frame."""
    return cast("AgentMessage", _parse(_find_union(pb.AgentMessage, AgentMessage), data))


def encode_frame(value: object) -> bytes:
    """One framed dataclass."""
    return frame(encode(value).SerializeToString())


def decode_frame(kind: type[T], data: bytes) -> T:
    """The dataclass of one frame."""
    return cast("T", _parse(_find_codec(kind), data))


def frame(data: bytes) -> bytes:
    """Prefix a message with its length: four bytes, most significant first."""
    return _LENGTH.pack(len(data)) + data


class FrameReader:
    """Splits a stream of bytes, which comes in any chunks, into frames."""

    def __init__(self) -> None:
        self._pending = bytearray()

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """The frames that are complete with this chunk.

        Raises:
            WireError: a frame is longer than MAX_FRAME_BYTES: the peer is another program.
        """
        self._pending += chunk
        while len(self._pending) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._pending)
            if length > MAX_FRAME_BYTES:
                raise WireError(f"a frame of {length} bytes")
            end = _LENGTH.size + length
            if len(self._pending) < end:
                return
            data = bytes(self._pending[_LENGTH.size : end])
            del self._pending[:end]
            yield data


class _Codec(NamedTuple):
    """How one kind of message is encoded, and decoded."""

    message: type[Message]
    encode: Convert
    decode: Convert


class _Field(NamedTuple):
    """How one field is encoded, and decoded; whether a message can lack it, and its default then."""

    name: str
    encode: Convert
    decode: Convert
    may_be_missing: bool = False
    default: object = MISSING


def _parse(codec: _Codec, data: bytes) -> object:
    try:
        message = codec.message.FromString(data)
    except DecodeError as error:
        raise WireError(f"{len(data)} bytes that are not a {codec.message.DESCRIPTOR.name}") from error
    return codec.decode(message)


@cache
def _find_union(message: type[Message], union: object) -> _Codec:
    """The codec of a message with one field for each member of a union, named after it."""
    (oneof,) = message.DESCRIPTOR.oneofs_by_name
    codecs = {kind: (_name_field(kind.__name__), _find_codec(kind)) for kind in get_args(union)}
    decoders = {name: codec.decode for name, codec in codecs.values()}

    def encode_union(value: object) -> Message:
        name, codec = codecs[type(value)]
        return message(**{name: codec.encode(value)})

    def decode_union(received: Message) -> object:
        name = received.WhichOneof(oneof)
        if name is None:
            raise WireError(f"{message.DESCRIPTOR.name} of an unknown kind")
        return decoders[name](getattr(received, name))

    return _Codec(message, encode_union, decode_union)


_CODECS: dict[type, _Codec] = {Worker: _Codec(pb.WorkerId, encode_worker, decode_worker)}


def _find_codec(kind: type) -> _Codec:
    if kind not in _CODECS:
        _CODECS[kind] = _make_codec(kind)
    return _CODECS[kind]


def _make_codec(kind: type) -> _Codec:
    """The codec of a dataclass; its fields are inspected here, once."""
    message: type[Message] = getattr(pb, kind.__name__)
    hints = get_type_hints(kind, include_extras=True)
    known = message.DESCRIPTOR.fields_by_name
    found = {
        f"value.{field.name}": _find_field(kind, field, hints[field.name], known[field.name]) for field in fields(kind)
    }
    return _compile(message, found, "kind({})", kind=kind, check=_CHECKS.get(kind))


def _compile(message: type[Message], found: dict[str, _Field], result: str, **names: object) -> _Codec:
    """Generate and compile both functions, as `dataclass` does: they are as fast as functions written by hand.

    found: the fields, by the expression that reads them.
    result: the expression that makes the value.
    """
    names |= {
        "message_type": message,
        "make_readable": _make_readable,
        "WireError": WireError,
        "lack": partial(_lack, message.DESCRIPTOR.name),
    }
    sent, received = {}, []
    for part, (name, encode, decode, may_be_missing, default) in found.items():
        names |= {f"encode_{name}": encode, f"decode_{name}": decode, f"default_{name}": default}
        sent[name] = part if encode is _keep else f"encode_{name}({part})"
        missing = f"lack({name!r})" if default is MISSING else f"default_{name}"
        read = f"message.{name}" if decode is _keep else f"decode_{name}(message.{name})"
        received.append(f"{read} if message.HasField({name!r}) else {missing}" if may_be_missing else read)
    source = f"""
def encode(value):
    try:
        return message_type({", ".join(f"{name}={part}" for name, part in sent.items())})
    except UnicodeEncodeError:  # a sentence names a command or path that is not UTF-8 (os.fsdecode)
        return message_type({", ".join(f"{name}=make_readable({part})" for name, part in sent.items())})

def decode(message):
    value = {result.format(", ".join(received))}
    {"if fault := check(value): raise WireError(fault)" if names.get("check") else ""}
    return value
"""
    exec(source, names)  # noqa: S102 - it consists of the names of our own fields
    return _Codec(message, cast("Convert", names["encode"]), cast("Convert", names["decode"]))


def _find_field(kind: type, field: "Field[Any]", hint: Hint, wire: Wire) -> _Field:
    origin: object = get_origin(hint)
    is_filled = origin is Annotated
    if is_filled:
        hint = get_args(hint)[0]
    default: object = field.default
    if NoneType in get_args(hint):
        default = None
        (hint,) = set(get_args(hint)) - {NoneType}
    encode, decode = _find_conversion(hint, wire)

    def encode_optional(value: object) -> object:
        if value is default:
            return None
        return encode(value)

    def decode_filled(value: object) -> object:
        if value:
            return decode(value)
        return _lack(kind.__name__, field.name)

    is_optional = wire.has_presence and default is not MISSING
    return _Field(
        field.name,
        encode_optional if is_optional and encode is not _keep else encode,
        decode_filled if is_filled else decode,
        may_be_missing=wire.has_presence,
        default=default,
    )


def _find_conversion(hint: Hint, wire: Wire) -> tuple[Convert, Convert]:
    """How a value of this type becomes the value of a protobuf field, and back."""
    origin: object = get_origin(hint)
    parts = get_args(hint)
    is_bytes = wire.type == FieldDescriptor.TYPE_BYTES

    if hint is float:
        return _keep, _check_number
    if hint is str and is_bytes:
        return os.fsencode, os.fsdecode

    if origin is Mapping:
        encode, decode = _find_pair(parts, wire)
        return lambda value: [encode(item) for item in value.items()], lambda each: dict(map(decode, each))
    if hint == tuple[int, ...]:
        return _encode_runs, lambda runs: _decode_runs(tuple(runs))
    if origin is tuple and parts[-1] is Ellipsis:
        encode, decode = _find_conversion(parts[0], wire)
        return lambda values: [encode(value) for value in values], lambda each: tuple(map(decode, each))
    if origin is tuple:
        return _find_pair(parts, wire)

    if is_dataclass(hint):
        _, encode, decode = _find_codec(cast("type", hint))
        return encode, decode
    if issubclass(hint, Enum):
        return _find_enum(hint, wire.enum_type)
    return _keep, _keep


def _find_pair(parts: tuple[Hint, ...], wire: Wire) -> tuple[Convert, Convert]:
    """The conversions of a tuple, whose message has a field for each part."""
    ways = zip(parts, wire.message_type.fields, strict=True)
    found = {
        f"value[{index}]": _Field(field.name, *_find_conversion(part, field))
        for index, (part, field) in enumerate(ways)
    }
    _, encode, decode = _compile(getattr(pb, wire.message_type.name), found, "({})")
    return encode, decode


def _find_enum(kind: type[Enum], wire: Wire) -> tuple[Convert, Convert]:
    prefix = f"{_name_field(wire.name)}_".upper()
    named = {value.name.removeprefix(prefix): value.number for value in wire.values}
    numbers = {member: named[member.name] for member in kind}
    members = {number: member for member, number in numbers.items()}

    def decode_member(number: int) -> Enum:
        if number not in members:
            raise WireError(f"{wire.name} {number}, which is unknown")
        return members[number]

    return numbers.__getitem__, decode_member


def _name_field(kind: str) -> str:
    """The field named after a class: offer_resize for OfferResize."""
    return re.sub(r"(?<=.)(?=[A-Z])", "_", kind).lower()


def _lack(kind: str, name: str) -> NoReturn:
    raise WireError(f"{kind} without {name}")


def _keep(value: T) -> T:
    return value


def _make_readable(value: object) -> object:
    if isinstance(value, str):
        return value.encode(errors="backslashreplace").decode()
    return value


def _check_number(value: float) -> float:
    if math.isnan(value):
        raise WireError("a number that is NaN")
    return value


@lru_cache(maxsize=8)
def _encode_runs(ranks: tuple[int, ...]) -> tuple[int, ...]:
    """The first rank and the length of each run of consecutive ranks: the list of survivors goes to every host."""
    starts = [index for index, rank in enumerate(ranks) if not index or rank != ranks[index - 1] + 1]
    return tuple(chain.from_iterable((ranks[start], end - start) for start, end in pairwise([*starts, len(ranks)])))


@lru_cache(maxsize=8)
def _decode_runs(runs: tuple[int, ...]) -> tuple[int, ...]:
    """The ranks of these runs: one shared tuple for the thousands of operations of a report."""
    if len(runs) % 2 or sum(runs[1::2]) > _MOST_RANKS:
        raise WireError(f"malformed runs of ranks: {len(runs)} numbers")
    pairs = zip(runs[::2], runs[1::2], strict=True)
    return tuple(chain.from_iterable(range(first, first + count) for first, count in pairs))
