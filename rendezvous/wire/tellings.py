"""Messages of what an agent tells its launcher."""

import os

from google.protobuf.message import DecodeError

from protos import rendezvous_pb2 as pb
from rendezvous.errors import WireError
from rendezvous.wire.frames import frame
from rendezvous.wire.membership import decode_endpoint, decode_worker, encode_endpoint, encode_worker
from rendezvous.wire.orders import (
    Alert,
    Found,
    Hello,
    Listening,
    Output,
    OutputStream,
    Probed,
    Proof,
    Remark,
    Reserved,
    Taken,
    Telling,
    Written,
)
from rendezvous.wire.text import encode_text


def encode_telling(telling: Telling) -> bytes:
    """One framed piece of what an agent tells its launcher."""
    match telling:
        case Output(worker, stream, data):
            output = pb.Output(worker=encode_worker(worker), stream=pb.Stream.ValueType(stream), data=data)
            message = pb.Telling(output=output)
        case Remark(text):
            message = pb.Telling(remark=pb.Remark(text=encode_text(text)))
        case Alert(text):
            message = pb.Telling(alert=pb.Alert(text=encode_text(text)))
        case Reserved(master):
            message = pb.Telling(reserved=pb.Reserved(master=encode_endpoint(master)))
        case Taken():
            message = pb.Telling(taken=pb.Taken())
        case Hello(version, hostname, python):
            hello = pb.Hello(version=version, hostname=encode_text(hostname), python=python)
            message = pb.Telling(hello=hello)
        case Found(addresses, cores, token):
            message = pb.Telling(found=pb.Found(addresses=map(_encode_listening, addresses), cores=cores, token=token))
        case Probed(proofs, token):
            message = pb.Telling(probed=pb.Probed(proofs=map(_encode_proof, proofs), token=token))
        case Written(worker, number):
            message = pb.Telling(written=pb.Written(worker=encode_worker(worker), number=number))
    return frame(message.SerializeToString())


def decode_telling(data: bytes) -> Telling:  # noqa: C901 - one case for each kind
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
        case "written":
            return Written(decode_worker(message.written.worker), message.written.number)
        case "alert":
            return Alert(message.alert.text)
        case "reserved":
            return Reserved(decode_endpoint(message.reserved.master))
        case "taken":
            return Taken()
        case "hello":
            return Hello(message.hello.version, message.hello.hostname, message.hello.python)
        case "found":
            found = message.found
            return Found(tuple(map(_decode_listening, found.addresses)), found.cores, found.token)
        case "probed":
            return Probed(tuple(map(_decode_proof, message.probed.proofs)), message.probed.token)
        case _:
            raise WireError("a telling of no known kind")


def _decode_stream(number: int) -> OutputStream:
    try:
        return OutputStream(number)
    except ValueError as error:
        raise WireError(f"output of stream {number}") from error


def _encode_listening(listening: Listening) -> pb.Listening:
    return pb.Listening(
        interface=os.fsencode(listening.interface),
        endpoint=encode_endpoint(listening.endpoint),
        prefix=listening.prefix,
        speed=listening.speed,
    )


def _decode_listening(message: pb.Listening) -> Listening:
    interface = os.fsdecode(message.interface)
    return Listening(interface, decode_endpoint(message.endpoint), message.prefix, message.speed)


def _encode_proof(proof: Proof) -> pb.Proof:
    return pb.Proof(host=proof.host, address=proof.address, source=proof.source, milliseconds=proof.milliseconds)


def _decode_proof(message: pb.Proof) -> Proof:
    if not (message.host and message.address and message.source):
        raise WireError("a proof without host, address or source")
    return Proof(message.host, message.address, message.source, message.milliseconds)
