"""Every message arrives as it was, short where thousands say the same; what lacks something is refused in one way."""

from collections.abc import Callable
from typing import Any

import pytest
from google.protobuf.message import Message
from hypothesis import given
from hypothesis import strategies as st

from protos import rendezvous_pb2 as pb
from rendezvous.core.messages import Exited, Launch, Terminate
from rendezvous.core.model import Assignment
from rendezvous.core.reports import CompletedOperation, Decision, Done, Report, Verdict, Wish
from rendezvous.errors import WireError
from rendezvous.wire import codec
from rendezvous.wire.notifications import KEY_BYTES, Refused
from rendezvous.wire.orders import Hello, Remark
from rendezvous.wire.text import encode_text
from tests.rendezvous.wire import messages
from tests.rendezvous.wire.messages import READABLE, UNDECODABLE, WORKER, unframe

Codec = tuple[Callable[[Any], Any], Callable[[Any], Any]]

WORKERS: Codec = (codec.encode_worker, codec.decode_worker)
ASSIGNMENTS: Codec = (codec.encode_assignment, codec.decode_assignment)
EXITS: Codec = (codec.encode_exited, codec.decode_exited)
NOTICES: Codec = (codec.encode_notice, codec.decode_notice)
REPORTS: Codec = (codec.encode_report, codec.decode_report)
VERDICTS: Codec = (codec.encode_verdict, codec.decode_verdict)
ORDERS: Codec = (codec.encode_order, codec.decode_order)
TELLINGS: Codec = (codec.encode_telling, codec.decode_telling)
AGENT_JOINS: Codec = (codec.encode_agent_join, codec.decode_agent_join)
AGENTS_ADMITTED: Codec = (codec.encode_agent_admitted, codec.decode_agent_admitted)

NUMBERS = Assignment(0, 1, 0, 1, 0, 1)
NAMED = pb.WorkerId(host="a", incarnation=1)
FIRST = pb.Assignment(size=1)
KEY = bytes(KEY_BYTES)
HERE = pb.Endpoint(address="a", port=1)


def send(codec: Codec, value: object) -> object:
    """What arrives of it: framed where agents and launchers speak, a message of gRPC's elsewhere."""
    encode, decode = codec
    message = encode(value)
    if isinstance(message, bytes):
        return decode(unframe(message))
    return decode(type(message).FromString(message.SerializeToString()))


@pytest.mark.parametrize(
    ("codec", "values"),
    [
        (WORKERS, messages.workers),
        (ASSIGNMENTS, messages.assignments),
        (EXITS, messages.exits),
        (NOTICES, messages.notices),
        (REPORTS, messages.reports),
        (VERDICTS, messages.verdicts),
        (ORDERS, messages.orders),
        (TELLINGS, messages.tellings),
        (AGENT_JOINS, messages.agent_joins),
        (AGENTS_ADMITTED, messages.agents_admitted),
    ],
    ids=["worker", "assignment", "exit", "notice", "report", "verdict", "order", "telling", "wish", "answer"],
)
@given(data=st.data())
def test_a_message_survives_the_wire(codec: Codec, values: st.SearchStrategy[object], data: st.DataObject) -> None:
    value = data.draw(values)
    assert send(codec, value) == value


@pytest.mark.parametrize(
    ("codec", "sent", "arrived"),
    [
        (EXITS, Exited(WORKER, 127, UNDECODABLE), Exited(WORKER, 127, READABLE)),
        (NOTICES, Refused(WORKER, UNDECODABLE), Refused(WORKER, READABLE)),
        (ORDERS, Launch(WORKER, NUMBERS, UNDECODABLE), Launch(WORKER, NUMBERS, READABLE)),
        (ORDERS, Terminate(WORKER, 1.0, UNDECODABLE, signal=2), Terminate(WORKER, 1.0, READABLE, signal=2)),
        (REPORTS, Report(Wish.CONTINUE, UNDECODABLE), Report(Wish.CONTINUE, READABLE)),
        (TELLINGS, Remark(UNDECODABLE), Remark(READABLE)),
        (TELLINGS, Hello("1.0", UNDECODABLE, "3.11.2"), Hello("1.0", READABLE, "3.11.2")),
    ],
)
def test_a_sentence_that_is_no_utf8_arrives_readable(codec: Codec, sent: object, arrived: object) -> None:
    assert send(codec, sent) == arrived


def test_a_sentence_that_is_utf8_stays_as_it_is() -> None:
    assert [encode_text(text) for text in ("plain", "schön", None)] == ["plain", "schön", ""]


def test_a_worker_that_says_nothing_begins() -> None:
    assert codec.decode_report(pb.StateReport()) == Report(seen=0)
    assert codec.decode_verdict(pb.Verdict()) == Verdict(Decision.BEGIN)


def test_the_set_of_all_ranks_is_short_and_one_tuple_for_all() -> None:
    done = tuple(CompletedOperation(tuple(range(1000)), "x", index) for index in range(100))
    message = codec.encode_report(Report(completed=done))
    assert message.ByteSize() < 100 * 20
    completed = codec.decode_report(message).completed
    assert completed == done
    assert len({id(operation.ranks) for operation in completed}) == 1


def test_survivors_are_short_since_every_host_is_told_all() -> None:
    ranks = (*range(8), *range(16, 8000), 5)
    verdict = Verdict(Decision.RETRY, survivors=ranks, done=(Done(ranks, 1),))
    message = codec.encode_verdict(verdict)
    assert message.ByteSize() < 50
    assert codec.decode_verdict(message) == verdict


def begin(*command: bytes, master: pb.Endpoint | None = None, workers: bytes = b"{}") -> pb.Order:
    return pb.Order(begin=pb.Begin(job="j", host="a", server="s:1", command=command, master=master, workers=workers))


def publish(*members: pb.Member, key: bytes = KEY) -> pb.Notice:
    return pb.Notice(published=pb.Published(generation=1, members=members, key=key))


@pytest.mark.parametrize(
    ("codec", "message", "lack"),
    [
        (NOTICES, pb.Notice(), "no known kind"),
        (NOTICES, publish(pb.Member(worker=NAMED)), "rank 0 in a generation of 0"),
        (NOTICES, publish(pb.Member(assignment=FIRST)), "without host"),
        (NOTICES, publish(key=KEY[1:]), "key"),
        (NOTICES, publish(key=b""), "key"),
        (NOTICES, pb.Notice(sequencer_opened=pb.SequencerOpened(generation=1)), "without address"),
        (NOTICES, pb.Notice(refused=pb.Refused(reason="no")), "without host"),
        (NOTICES, pb.Notice(departed=pb.Departed(generation=1)), "without host"),
        (REPORTS, pb.StateReport(wish=pb.Wish.ValueType(77)), "a wish of kind 77"),
        (REPORTS, pb.StateReport(pending=[pb.OperationState(name="x")]), "an operation 'x' of nobody"),
        (REPORTS, pb.StateReport(completed=[pb.OperationState(name="x", ranks=[0])]), "'x' without its place"),
        (VERDICTS, pb.Verdict(decision=pb.Decision.ValueType(77)), "a decision of kind 77"),
        (VERDICTS, pb.Verdict(survivors=[0, 8, 16]), "3 numbers"),
        (VERDICTS, pb.Verdict(survivors=[0, 4_000_000_000]), "2 numbers"),
        (ORDERS, pb.Order(), "no known kind"),
        (ORDERS, pb.Order(begin=pb.Begin()), "without job"),
        (ORDERS, begin(), "or command"),
        (ORDERS, begin(b"x", workers=b"x"), "no JSON"),
        (ORDERS, begin(b"x", master=pb.Endpoint(address="a")), "port 0"),
        (ORDERS, pb.Order(launch=pb.Launch(assignment=FIRST)), "without host"),
        (ORDERS, pb.Order(launch=pb.Launch(worker=pb.WorkerId(host="a"), assignment=FIRST)), "or incarnation"),
        (ORDERS, pb.Order(launch=pb.Launch(worker=NAMED)), "rank 0 in a generation of 0"),
        (ORDERS, pb.Order(terminate=pb.Terminate()), "without host"),
        (ORDERS, pb.Order(look=pb.Look(host="a")), "without token"),
        (ORDERS, pb.Order(look=pb.Look(token=b"t")), "or host"),
        (ORDERS, pb.Order(probe=pb.Probe(targets=[pb.ProbeTarget(endpoint=HERE)])), "without host"),
        (ORDERS, pb.Order(probe=pb.Probe(targets=[pb.ProbeTarget(host="a")])), "without address"),
        (AGENTS_ADMITTED, pb.AgentAdmitted(), "answer nothing"),
        (TELLINGS, pb.Telling(), "no known kind"),
        (TELLINGS, pb.Telling(output=pb.Output(stream=pb.STREAM_STDOUT)), "without host"),
        (TELLINGS, pb.Telling(output=pb.Output(worker=NAMED)), "stream 0"),
        (TELLINGS, pb.Telling(output=pb.Output(worker=NAMED, stream=pb.Stream.ValueType(7))), "stream 7"),
        (TELLINGS, pb.Telling(reserved=pb.Reserved(master=pb.Endpoint(port=1))), "without address"),
        (TELLINGS, pb.Telling(reserved=pb.Reserved(master=pb.Endpoint(address="a", port=65_536))), "port 65536"),
        (TELLINGS, pb.Telling(found=pb.Found(addresses=[pb.Listening(interface=b"eth0")])), "without address"),
        (TELLINGS, pb.Telling(probed=pb.Probed(proofs=[pb.Proof(host="a", address="10.0.0.1")])), "or source"),
    ],
)
def test_a_message_that_lacks_something_is_an_error(codec: Codec, message: Message, lack: str) -> None:
    _, decode = codec
    with pytest.raises(WireError, match=lack):
        decode(message.SerializeToString() if codec in (ORDERS, TELLINGS, AGENTS_ADMITTED) else message)
