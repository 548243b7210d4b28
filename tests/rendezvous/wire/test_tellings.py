"""Whatever an agent tells arrives as it was, and what is nothing is refused in one way."""

import pytest
from hypothesis import given

from protos import rendezvous_pb2 as pb
from rendezvous import wire
from rendezvous.errors import WireError
from rendezvous.orders import Hello, Remark, Telling
from tests.rendezvous.wire.messages import READABLE, UNDECODABLE, tellings, unframe


@given(tellings)
def test_what_an_agent_tells_survives_the_wire(telling: Telling) -> None:
    assert wire.decode_telling(unframe(wire.encode_telling(telling))) == telling


def test_a_sentence_about_a_path_that_is_no_utf8_arrives_readable() -> None:
    remark = wire.decode_telling(unframe(wire.encode_telling(Remark(UNDECODABLE))))
    hello = wire.decode_telling(unframe(wire.encode_telling(Hello("1.0", UNDECODABLE, "3.11.2"))))
    assert remark == Remark(READABLE)
    assert hello == Hello("1.0", READABLE, "3.11.2")


NAMED = pb.WorkerId(host="a", incarnation=1)


@pytest.mark.parametrize(
    ("message", "lack"),
    [
        (pb.Telling(), "no known kind"),
        (pb.Telling(output=pb.Output(stream=pb.STREAM_STDOUT)), "without host"),
        (pb.Telling(output=pb.Output(worker=NAMED)), "stream 0"),
        (pb.Telling(output=pb.Output(worker=NAMED, stream=pb.Stream.ValueType(7))), "stream 7"),
        (pb.Telling(reserved=pb.Reserved(master=pb.Endpoint(port=1))), "without address"),
        (pb.Telling(reserved=pb.Reserved(master=pb.Endpoint(address="a", port=65_536))), "port 65536"),
        (pb.Telling(found=pb.Found(addresses=[pb.Listening(interface=b"eth0")])), "without address"),
        (pb.Telling(probed=pb.Probed(proofs=[pb.Proof(host="a", address="10.0.0.1")])), "or source"),
    ],
)
def test_a_telling_that_lacks_something_is_an_error(message: pb.Telling, lack: str) -> None:
    with pytest.raises(WireError, match=lack):
        wire.decode_telling(message.SerializeToString())
