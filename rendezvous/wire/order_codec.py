"""Messages of a launcher's orders to an agent."""

import json
import os

from google.protobuf.message import DecodeError

from protos import rendezvous_pb2 as pb
from rendezvous.core.messages import Launch, Terminate
from rendezvous.errors import WireError
from rendezvous.wire.frames import frame
from rendezvous.wire.membership import (
    decode_assignment,
    decode_endpoint,
    decode_worker,
    encode_assignment,
    encode_endpoint,
    encode_worker,
)
from rendezvous.wire.orders import Begin, Credential, Hold, Input, Look, Order, Probe, ProbeTarget, Release, Stop, Wait
from rendezvous.wire.text import encode_text


def encode_order(order: Order) -> bytes:  # noqa: C901 - one case for each kind of order
    """One framed order."""
    match order:
        case Begin():
            message = pb.Order(begin=_encode_begin(order))
        case Launch(worker, assignment, reason, is_late):
            numbers = encode_assignment(assignment)
            launch = pb.Launch(
                worker=encode_worker(worker), assignment=numbers, reason=encode_text(reason), late=is_late
            )
            message = pb.Order(launch=launch)
        case Terminate(worker, grace_seconds, reason, number):
            named = encode_worker(worker)
            terminate = pb.Terminate(
                worker=named, grace_seconds=grace_seconds, reason=encode_text(reason), signal=number
            )
            message = pb.Order(terminate=terminate)
        case Release(exit_code):
            message = pb.Order(release=pb.Release(exit_code=exit_code))
        case Stop():
            message = pb.Order(stop=pb.Stop())
        case Hold(held):
            message = pb.Order(hold=pb.Hold(held=held))
        case Input(data):
            message = pb.Order(input=pb.Input(data=data))
        case Wait(limit_seconds):
            message = pb.Order(wait=pb.Wait(limit_seconds=limit_seconds))
        case Look(token, host):
            message = pb.Order(look=pb.Look(token=token, host=host))
        case Probe(targets):
            listed = [pb.ProbeTarget(host=target.host, endpoint=encode_endpoint(target.endpoint)) for target in targets]
            message = pb.Order(probe=pb.Probe(targets=listed))
    return frame(message.SerializeToString())


def decode_order(data: bytes) -> Order:  # noqa: C901 - one case for each kind of order
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
            return Launch(
                decode_worker(launch.worker), decode_assignment(launch.assignment), launch.reason, launch.late
            )
        case "terminate":
            terminate = message.terminate
            worker = decode_worker(terminate.worker)
            return Terminate(worker, terminate.grace_seconds, terminate.reason, signal=terminate.signal)
        case "release":
            return Release(message.release.exit_code)
        case "stop":
            return Stop()
        case "hold":
            return Hold(message.hold.held)
        case "input":
            return Input(message.input.data)
        case "wait":
            return Wait(message.wait.limit_seconds if message.wait.HasField("limit_seconds") else None)
        case "look":
            return _decode_look(message.look)
        case "probe":
            return Probe(tuple(_decode_target(target) for target in message.probe.targets))
        case _:
            raise WireError("an order of no known kind")


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
        patience_seconds=begin.patience_seconds,
        start_timeout_seconds=begin.start_timeout_seconds,
        address=begin.address,
        workers=json.dumps(dict(begin.workers)).encode(),
        master=None if begin.master is None else encode_endpoint(begin.master),
        interface=os.fsencode(begin.interface),
        inherits=begin.inherits,
        grace_seconds=begin.grace_seconds,
    )


def _decode_begin(message: pb.Begin) -> Begin:
    if not (message.job and message.host and message.server and message.command):
        raise WireError("a beginning without job, host, server or command")
    try:
        workers = json.loads(message.workers or b"{}")
    except ValueError as error:
        raise WireError("a beginning whose workers are no JSON") from error
    return Begin(
        job=message.job,
        host=message.host,
        server=message.server,
        credential=Credential(message.authority, message.certificate, message.private_key),
        command=tuple(os.fsdecode(word) for word in message.command),
        directory=os.fsdecode(message.directory),
        environment={variable.name: variable.value for variable in message.environment},
        lease_seconds=message.lease_seconds,
        patience_seconds=message.patience_seconds,
        start_timeout_seconds=message.start_timeout_seconds,
        address=message.address,
        workers=workers,
        master=decode_endpoint(message.master) if message.HasField("master") else None,
        interface=os.fsdecode(message.interface),
        inherits=message.inherits,
        grace_seconds=message.grace_seconds,
    )


def _decode_look(message: pb.Look) -> Look:
    if not (message.token and message.host):
        raise WireError("a survey without token or host")
    return Look(message.token, message.host)


def _decode_target(message: pb.ProbeTarget) -> ProbeTarget:
    if not message.host:
        raise WireError("a target of a survey without host")
    return ProbeTarget(message.host, decode_endpoint(message.endpoint))
