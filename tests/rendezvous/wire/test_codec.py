"""Every message arrives as it was, short where thousands say the same; what lacks something is refused in one way."""

import math
from collections.abc import Callable
from typing import Any, get_args

import pytest
from google.protobuf.message import Message
from hypothesis import given
from hypothesis import strategies as st

from protos import rendezvous_pb2 as pb
from rendezvous.core.messages import Exited, Launch, Refuse, Terminate
from rendezvous.core.model import Assignment, Worker
from rendezvous.core.reports import Action, CompletedOperation, Done, JoinReason, RecoveryDecision, Report
from rendezvous.errors import WireError
from rendezvous.wire import codec
from rendezvous.wire.notifications import KEY_BYTES, Notification
from rendezvous.wire.orders import Admission, AgentAdmitted, AgentJoin, AgentMessage, Order, Remark
from rendezvous.wire.tasks import OutcomeHead
from tests.rendezvous.wire import messages
from tests.rendezvous.wire.messages import READABLE, UNDECODABLE, WORKER, unframe

Codec = tuple[Callable[[Any], Any], Callable[[Any], Any]]


def of(kind: type) -> Codec:
    """The codec of a dataclass."""
    return codec.encode, lambda message: codec.decode(kind, message)


def framed(kind: type) -> Codec:
    """The codec of a dataclass that travels in a frame of its own."""
    return codec.encode_frame, lambda data: codec.decode_frame(kind, data)


NOTICES: Codec = (codec.encode_notification, codec.decode_notification)
ORDERS: Codec = (codec.encode_order, codec.decode_order)
AGENT_MESSAGES: Codec = (codec.encode_agent_message, codec.decode_agent_message)
ANSWERS: Codec = framed(AgentAdmitted)

NUMBERS = Assignment(0, 1, 0, 1, 0, 1)
NAMED = pb.WorkerId(host="a", incarnation=1)
FIRST = pb.Assignment(size=1)
KEY = bytes(KEY_BYTES)
HERE = pb.Endpoint(address="a", port=1)


def send(ways: Codec, value: object) -> object:
    """What arrives of it: framed where agents and launchers speak, a message of gRPC's elsewhere."""
    encode, decode = ways
    message = encode(value)
    if isinstance(message, bytes):
        return decode(unframe(message))
    return decode(type(message).FromString(message.SerializeToString()))


@pytest.mark.parametrize(
    ("ways", "values"),
    [
        (of(Worker), messages.workers),
        (of(Assignment), messages.assignments),
        (of(Exited), messages.exits),
        (NOTICES, messages.notices),
        (of(Report), messages.reports),
        (of(RecoveryDecision), messages.decisions),
        (ORDERS, messages.orders),
        (AGENT_MESSAGES, messages.agent_messages),
        (framed(AgentJoin), messages.agent_joins),
        (ANSWERS, messages.agents_admitted),
    ],
    ids=[
        "worker",
        "assignment",
        "exit",
        "notification",
        "report",
        "decision",
        "order",
        "agent message",
        "door",
        "answer",
    ],
)
@given(data=st.data())
def test_a_message_survives_the_wire(ways: Codec, values: st.SearchStrategy[object], data: st.DataObject) -> None:
    value = data.draw(values)
    assert send(ways, value) == value


@pytest.mark.parametrize(
    ("ways", "sent", "arrived"),
    [
        (of(Exited), Exited(WORKER, 127, UNDECODABLE), Exited(WORKER, 127, READABLE)),
        (NOTICES, Refuse(WORKER, UNDECODABLE), Refuse(WORKER, READABLE)),
        (ORDERS, Launch(WORKER, NUMBERS, UNDECODABLE), Launch(WORKER, NUMBERS, READABLE)),
        (ORDERS, Terminate(WORKER, 1.0, UNDECODABLE, signal=2), Terminate(WORKER, 1.0, READABLE, signal=2)),
        (of(Report), Report(JoinReason.CONTINUE, UNDECODABLE), Report(JoinReason.CONTINUE, READABLE)),
        (AGENT_MESSAGES, Remark(UNDECODABLE), Remark(READABLE)),
    ],
)
def test_a_sentence_that_is_not_utf8_arrives_readable(ways: Codec, sent: object, arrived: object) -> None:
    assert send(ways, sent) == arrived


def test_a_worker_without_a_report_begins() -> None:
    assert codec.decode(Report, pb.Report()) == Report(seen=0)
    assert codec.decode(RecoveryDecision, pb.RecoveryDecision()) == RecoveryDecision(Action.BEGIN)


def test_the_set_of_all_ranks_is_short_and_one_tuple_for_all() -> None:
    done = tuple(CompletedOperation(tuple(range(1000)), "x", index) for index in range(100))
    message = codec.encode(Report(completed=done))
    assert message.ByteSize() < 100 * 20
    completed = codec.decode(Report, message).completed
    assert completed == done
    assert len({id(operation.ranks) for operation in completed}) == 1


def test_the_list_of_survivors_is_encoded_in_runs() -> None:
    ranks = (*range(8), *range(16, 8000), 5)
    decision = RecoveryDecision(Action.RETRY, survivors=ranks, done=(Done(ranks, 1),))
    message = codec.encode(decision)
    assert message.ByteSize() < 50
    assert codec.decode(RecoveryDecision, message) == decision


def begin(*command: bytes, workers: pb.WorkerOptions | None = None) -> pb.Order:
    message = pb.Begin(job="j", host="a", server="s:1", command=command, workers=workers)
    message.credential.SetInParent()
    return pb.Order(begin=message)


def launch(known: pb.Round) -> pb.Order:
    return pb.Order(launch=pb.Launch(worker=NAMED, assignment=FIRST, round=known))


def publish(*members: pb.Member, key: bytes = KEY) -> pb.Notification:
    return pb.Notification(published=pb.Published(generation=1, members=members, key=key))


@pytest.mark.parametrize(
    ("ways", "message", "lack"),
    [
        (NOTICES, pb.Notification(), "unknown kind"),
        (NOTICES, publish(pb.Member(worker=NAMED)), "rank 0 in a generation of 0"),
        (NOTICES, publish(pb.Member(assignment=FIRST)), "without host"),
        (NOTICES, publish(key=KEY[1:]), "key"),
        (NOTICES, publish(key=b""), "key"),
        (NOTICES, pb.Notification(announce=pb.Announce(generation=1)), "Announce without endpoint"),
        (NOTICES, pb.Notification(refuse=pb.Refuse(reason="no")), "Refuse without worker"),
        (NOTICES, pb.Notification(depart=pb.Depart(generation=1)), "Depart without worker"),
        (of(Report), pb.Report(reason=pb.JoinReason.ValueType(77)), "JoinReason 77"),
        (of(Report), pb.Report(pending=[pb.PendingOperation(name="x")]), "an operation 'x' without ranks"),
        (
            of(Report),
            pb.Report(completed=[pb.CompletedOperation(name="x", ranks=[0, 1])]),
            "CompletedOperation without index",
        ),
        (of(RecoveryDecision), pb.RecoveryDecision(action=pb.Action.ValueType(77)), "Action 77"),
        (of(RecoveryDecision), pb.RecoveryDecision(survivors=[0, 8, 16]), "3 numbers"),
        (of(RecoveryDecision), pb.RecoveryDecision(survivors=[0, 4_000_000_000]), "2 numbers"),
        (ORDERS, pb.Order(), "unknown kind"),
        (ORDERS, pb.Order(begin=pb.Begin()), "Begin without job"),
        (ORDERS, begin(), "Begin without command"),
        (ORDERS, begin(b"x"), "Begin without workers"),
        (ORDERS, begin(b"x", workers=pb.WorkerOptions()), "WorkerOptions without bind_to"),
        (ORDERS, pb.Order(wait=pb.Wait(limit_seconds=math.nan)), "NaN"),
        (ORDERS, launch(pb.Round(master=pb.Endpoint(address="a"))), "port 0"),
        (ORDERS, pb.Order(launch=pb.Launch(assignment=FIRST)), "Launch without worker"),
        (ORDERS, pb.Order(launch=pb.Launch(worker=pb.WorkerId(host="a"), assignment=FIRST)), "or incarnation"),
        (ORDERS, pb.Order(launch=pb.Launch(worker=NAMED)), "Launch without assignment"),
        (ORDERS, pb.Order(terminate=pb.Terminate()), "Terminate without worker"),
        (ORDERS, pb.Order(list_addresses=pb.ListAddresses(host="a")), "ListAddresses without token"),
        (ORDERS, pb.Order(list_addresses=pb.ListAddresses(token=b"t")), "ListAddresses without host"),
        (
            ORDERS,
            pb.Order(probe_peers=pb.ProbePeers(targets=[pb.ProbeTarget(endpoint=HERE)])),
            "ProbeTarget without host",
        ),
        (
            ORDERS,
            pb.Order(probe_peers=pb.ProbePeers(targets=[pb.ProbeTarget(host="a")])),
            "ProbeTarget without endpoint",
        ),
        (of(OutcomeHead), pb.OutcomeHead(number=1), "without worker"),
        (of(OutcomeHead), pb.OutcomeHead(worker=NAMED), "without number"),
        (ANSWERS, pb.AgentAdmitted(), "Admission 0"),
        (AGENT_MESSAGES, pb.AgentMessage(), "unknown kind"),
        (AGENT_MESSAGES, pb.AgentMessage(output=pb.Output(stream=pb.OUTPUT_STREAM_STDOUT)), "Output without worker"),
        (AGENT_MESSAGES, pb.AgentMessage(output=pb.Output(worker=NAMED)), "OutputStream 0"),
        (
            AGENT_MESSAGES,
            pb.AgentMessage(output=pb.Output(worker=NAMED, stream=pb.OutputStream.ValueType(7))),
            "OutputStream 7",
        ),
        (AGENT_MESSAGES, pb.AgentMessage(reserved=pb.Reserved(master=pb.Endpoint(port=1))), "without address"),
        (
            AGENT_MESSAGES,
            pb.AgentMessage(reserved=pb.Reserved(master=pb.Endpoint(address="a", port=65_536))),
            "port 65536",
        ),
        (
            AGENT_MESSAGES,
            pb.AgentMessage(addresses=pb.Addresses(addresses=[pb.Listening(interface=b"eth0")])),
            "Listening without endpoint",
        ),
        (
            AGENT_MESSAGES,
            pb.AgentMessage(probe_results=pb.ProbeResults(proofs=[pb.Proof(host="a", address="10.0.0.1")])),
            "Proof without source",
        ),
    ],
)
def test_an_incomplete_message_raises_wire_error(ways: Codec, message: Message, lack: str) -> None:
    _, decode = ways
    with pytest.raises(WireError, match=lack):
        decode(message.SerializeToString() if ways in (ORDERS, AGENT_MESSAGES, ANSWERS) else message)


def test_messages_that_other_versions_of_hvdrun_read_keep_their_bytes() -> None:
    join = codec.encode_frame(AgentJoin("1.0", b"token", "a", 2, 4711))
    assert join.hex(" ", 1) == "00 00 00 14 0a 03 31 2e 30 12 05 74 6f 6b 65 6e 1a 01 61 20 02 28 e7 24"
    answer = codec.encode_frame(AgentAdmitted(Admission.NOT_NEEDED, "no", -1))
    assert answer.hex(" ", 1) == "00 00 00 11 08 03 12 02 6e 6f 18 ff ff ff ff ff ff ff ff ff 01"


@pytest.mark.parametrize(
    ("message", "union"), [(pb.Order, Order), (pb.AgentMessage, AgentMessage), (pb.Notification, Notification)]
)
def test_a_union_has_one_class_for_each_field(message: type[Message], union: object) -> None:
    fields = {field.message_type.name for field in message.DESCRIPTOR.fields if field.message_type is not None}
    assert fields == {kind.__name__ for kind in get_args(union)}
