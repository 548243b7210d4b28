"""Messages between an agent that comes by itself and the launcher's door."""

from google.protobuf.message import DecodeError

from protos import rendezvous_pb2 as pb
from rendezvous.errors import WireError
from rendezvous.wire.frames import frame
from rendezvous.wire.orders import Admission, AgentAdmitted, AgentJoin
from rendezvous.wire.text import encode_text


def encode_agent_join(join: AgentJoin) -> bytes:
    """One framed wish to join."""
    message = pb.AgentJoin(
        version=join.version, secret=join.secret, host=encode_text(join.host), slots=join.slots, tunnel=join.tunnel
    )
    return frame(message.SerializeToString())


def decode_agent_join(data: bytes) -> AgentJoin:
    """The wish in one frame."""
    try:
        message = pb.AgentJoin.FromString(data)
    except DecodeError as error:
        raise WireError(f"{len(data)} bytes that are no wish to join") from error
    return AgentJoin(message.version, message.secret, message.host, message.slots, message.tunnel)


def encode_agent_admitted(answer: AgentAdmitted) -> bytes:
    """One framed answer."""
    admission = pb.Admission.ValueType(answer.admission)
    message = pb.AgentAdmitted(admission=admission, reason=encode_text(answer.reason), exit_code=answer.exit_code)
    return frame(message.SerializeToString())


def decode_agent_admitted(data: bytes) -> AgentAdmitted:
    """The answer in one frame."""
    try:
        message = pb.AgentAdmitted.FromString(data)
        return AgentAdmitted(Admission(message.admission), message.reason, message.exit_code)
    except (DecodeError, ValueError) as error:
        raise WireError(f"{len(data)} bytes that answer nothing") from error
