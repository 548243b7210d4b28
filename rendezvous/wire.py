"""Proto messages <-> the values the rest of the project speaks in; nothing else knows how they look on the wire.

`WireError` is raised for a message that lacks what it must have.
"""

import os
import struct
from collections.abc import Iterator

from google.protobuf.message import DecodeError

from protos import rendezvous_pb2 as pb
from rendezvous.core.effects import Launch, Terminate
from rendezvous.core.events import Exited
from rendezvous.core.model import Assignment, Endpoint, Slot, Worker
from rendezvous.credentials import Credential
from rendezvous.errors import WireError
from rendezvous.notices import Departed, Notice, Published, Refused, StoreOpened
from rendezvous.orders import Begin, Hold, Input, Order, Output, OutputStream, Release, Remark, Reserved, Taken, Telling

_LENGTH = struct.Struct(">I")
MAX_FRAME_BYTES = 16 * 1024 * 1024
_LAST_PORT = 65_535


def encode_worker(worker: Worker) -> pb.WorkerId:
    """The message of a worker."""
    return pb.WorkerId(host=worker.slot.host, slot=worker.slot.index, incarnation=worker.incarnation)


def decode_worker(message: pb.WorkerId) -> Worker:
    """The worker of a message."""
    if not message.host or not message.incarnation:
        raise WireError("a worker without host or incarnation")
    return Worker(Slot(message.host, message.slot), message.incarnation)


def encode_assignment(assignment: Assignment) -> pb.Assignment:
    """The message of an assignment."""
    return pb.Assignment(
        rank=assignment.rank,
        size=assignment.size,
        local_rank=assignment.local_rank,
        local_size=assignment.local_size,
        cross_rank=assignment.cross_rank,
        cross_size=assignment.cross_size,
    )


def decode_assignment(message: pb.Assignment) -> Assignment:
    """The assignment of a message."""
    if message.rank >= message.size:
        raise WireError(f"rank {message.rank} in a generation of {message.size}")
    return Assignment(
        message.rank,
        message.size,
        message.local_rank,
        message.local_size,
        message.cross_rank,
        message.cross_size,
    )


def encode_endpoint(endpoint: Endpoint) -> pb.Endpoint:
    """The message of an endpoint."""
    return pb.Endpoint(address=endpoint.address, port=endpoint.port)


def decode_endpoint(message: pb.Endpoint) -> Endpoint:
    """The endpoint of a message."""
    if not message.address or not 0 < message.port <= _LAST_PORT:
        raise WireError(f"an endpoint without address, or with port {message.port}")
    return Endpoint(message.address, message.port)


def encode_exited(event: Exited) -> pb.Ended:
    """The message of a worker's end."""
    return pb.Ended(worker=encode_worker(event.worker), returncode=event.returncode, error=_encode_text(event.error))


def decode_exited(message: pb.Ended) -> Exited:
    """A worker's end, as the core is told."""
    return Exited(decode_worker(message.worker), message.returncode, message.error or None)


def encode_notice(notice: Notice) -> pb.Notice:
    """The message of a notice."""
    match notice:
        case Published(generation, members):
            listed = [
                pb.Member(worker=encode_worker(worker), assignment=encode_assignment(assignment))
                for worker, assignment in members
            ]
            return pb.Notice(published=pb.Published(generation=generation, members=listed))
        case StoreOpened(generation, endpoint):
            return pb.Notice(store_opened=pb.StoreOpened(generation=generation, endpoint=encode_endpoint(endpoint)))
        case Refused(worker, reason):
            return pb.Notice(refused=pb.Refused(worker=encode_worker(worker), reason=_encode_text(reason)))
        case Departed(generation, worker, rank):
            departed = pb.Departed(generation=generation, worker=encode_worker(worker), rank=rank)
            return pb.Notice(departed=departed)


def decode_notice(message: pb.Notice) -> Notice:
    """The notice of a message."""
    match message.WhichOneof("notice"):
        case "published":
            members = tuple(
                (decode_worker(member.worker), decode_assignment(member.assignment))
                for member in message.published.members
            )
            return Published(message.published.generation, members)
        case "store_opened":
            return StoreOpened(message.store_opened.generation, decode_endpoint(message.store_opened.endpoint))
        case "refused":
            return Refused(decode_worker(message.refused.worker), message.refused.reason)
        case "departed":
            departed = message.departed
            return Departed(departed.generation, decode_worker(departed.worker), departed.rank)
        case _:
            raise WireError("a notice of no known kind")


def encode_order(order: Order) -> bytes:
    """One framed order."""
    match order:
        case Begin():
            message = pb.Order(begin=_encode_begin(order))
        case Launch(worker, assignment, reason):
            numbers = encode_assignment(assignment)
            launch = pb.Launch(worker=encode_worker(worker), assignment=numbers, reason=_encode_text(reason))
            message = pb.Order(launch=launch)
        case Terminate(worker, grace_seconds, reason):
            named = encode_worker(worker)
            terminate = pb.Terminate(worker=named, grace_seconds=grace_seconds, reason=_encode_text(reason))
            message = pb.Order(terminate=terminate)
        case Release():
            message = pb.Order(release=pb.Release())
        case Hold(held):
            message = pb.Order(hold=pb.Hold(held=held))
        case Input(data):
            message = pb.Order(input=pb.Input(data=data))
    return frame(message.SerializeToString())


def decode_order(data: bytes) -> Order:
    """The order of one frame."""
    try:
        message = pb.Order.FromString(data)
    except DecodeError as error:
        raise WireError(f"{len(data)} bytes that are no order") from error
    match message.WhichOneof("order"):
        case "begin":
            return _decode_begin(message.begin)
        case "launch":
            launch = message.launch
            return Launch(decode_worker(launch.worker), decode_assignment(launch.assignment), launch.reason)
        case "terminate":
            terminate = message.terminate
            return Terminate(decode_worker(terminate.worker), terminate.grace_seconds, terminate.reason)
        case "release":
            return Release()
        case "hold":
            return Hold(message.hold.held)
        case "input":
            return Input(message.input.data)
        case _:
            raise WireError("an order of no known kind")


def encode_telling(telling: Telling) -> bytes:
    """One framed piece of what an agent tells its launcher."""
    match telling:
        case Output(worker, stream, data):
            output = pb.Output(worker=encode_worker(worker), stream=pb.Stream.ValueType(stream), data=data)
            message = pb.Telling(output=output)
        case Remark(text):
            message = pb.Telling(remark=pb.Remark(text=_encode_text(text)))
        case Reserved(master):
            message = pb.Telling(reserved=pb.Reserved(master=encode_endpoint(master)))
        case Taken():
            message = pb.Telling(taken=pb.Taken())
    return frame(message.SerializeToString())


def decode_telling(data: bytes) -> Telling:
    """What the agent told in one frame."""
    try:
        message = pb.Telling.FromString(data)
    except DecodeError as error:
        raise WireError(f"{len(data)} bytes that tell nothing") from error
    match message.WhichOneof("telling"):
        case "output":
            output = message.output
            return Output(decode_worker(output.worker), _decode_stream(output.stream), output.data)
        case "remark":
            return Remark(message.remark.text)
        case "reserved":
            return Reserved(decode_endpoint(message.reserved.master))
        case "taken":
            return Taken()
        case _:
            raise WireError("a telling of no known kind")


def frame(data: bytes) -> bytes:
    """Length-delimited: four bytes, most significant first, then the message."""
    return _LENGTH.pack(len(data)) + data


class FrameReader:
    """Cuts a stream of bytes, in whatever chunks it comes, into the frames it is made of."""

    def __init__(self) -> None:
        self._pending = bytearray()

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """The frames that are complete with this chunk.

        Raises:
            WireError: a frame is longer than MAX_FRAME_BYTES, so this is not our stream.
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


def _encode_text(sentence: str | None) -> str:
    """A sentence for people, in UTF-8; the command or path it speaks of may hold what is none (os.fsdecode)."""
    return "" if sentence is None else sentence.encode(errors="backslashreplace").decode()


def _decode_stream(number: int) -> OutputStream:
    try:
        return OutputStream(number)
    except ValueError as error:
        raise WireError(f"output of stream {number}") from error


def _encode_begin(begin: Begin) -> pb.Begin:
    return pb.Begin(
        job=begin.job,
        host=begin.host,
        server=begin.server,
        authority=begin.credential.authority,
        certificate=begin.credential.certificate,
        private_key=begin.credential.private_key,
        command=[os.fsencode(word) for word in begin.command],
        directory=os.fsencode(begin.directory),
        environment=[pb.Variable(name=name, value=value) for name, value in begin.environment.items()],
        lease_seconds=begin.lease_seconds,
        start_timeout_seconds=begin.start_timeout_seconds,
        address=begin.address,
        prefork=begin.prefork,
        stdin_rank=begin.stdin_rank,
        master=None if begin.master is None else encode_endpoint(begin.master),
    )


def _decode_begin(message: pb.Begin) -> Begin:
    if not (message.job and message.host and message.server and message.command):
        raise WireError("a beginning without job, host, server or command")
    return Begin(
        job=message.job,
        host=message.host,
        server=message.server,
        credential=Credential(message.authority, message.certificate, message.private_key),
        command=tuple(os.fsdecode(word) for word in message.command),
        directory=os.fsdecode(message.directory),
        environment={variable.name: variable.value for variable in message.environment},
        lease_seconds=message.lease_seconds,
        start_timeout_seconds=message.start_timeout_seconds,
        address=message.address,
        prefork=message.prefork,
        stdin_rank=message.stdin_rank if message.HasField("stdin_rank") else None,
        master=decode_endpoint(message.master) if message.HasField("master") else None,
    )
