"""Every order arrives as it was, and what is none is refused in one way."""

import pytest
from hypothesis import given

from protos import rendezvous_pb2 as pb
from rendezvous import wire
from rendezvous.core.effects import Launch, Terminate
from rendezvous.core.model import Assignment
from rendezvous.errors import WireError
from rendezvous.orders import Order
from tests.rendezvous.wire.messages import READABLE, UNDECODABLE, WORKER, orders, unframe


@given(orders)
def test_an_order_survives_the_wire(order: Order) -> None:
    assert wire.decode_order(unframe(wire.encode_order(order))) == order


def test_a_sentence_about_a_path_that_is_no_utf8_arrives_readable() -> None:
    assignment = Assignment(0, 1, 0, 1, 0, 1)
    launch = wire.decode_order(unframe(wire.encode_order(Launch(WORKER, assignment, UNDECODABLE))))
    terminate = wire.decode_order(unframe(wire.encode_order(Terminate(WORKER, 1.0, UNDECODABLE))))
    assert launch == Launch(WORKER, assignment, READABLE)
    assert terminate == Terminate(WORKER, 1.0, READABLE)


NAMED = pb.WorkerId(host="a", incarnation=1)
FIRST = pb.Assignment(size=1)


@pytest.mark.parametrize(
    ("message", "lack"),
    [
        (pb.Order(), "no known kind"),
        (pb.Order(begin=pb.Begin()), "without job"),
        (pb.Order(begin=pb.Begin(job="j", host="a", server="s:1")), "or command"),
        (
            pb.Order(begin=pb.Begin(job="j", host="a", server="s:1", command=[b"x"], master=pb.Endpoint(address="a"))),
            "port 0",
        ),
        (pb.Order(launch=pb.Launch(assignment=FIRST)), "without host"),
        (pb.Order(launch=pb.Launch(worker=pb.WorkerId(host="a"), assignment=FIRST)), "or incarnation"),
        (pb.Order(launch=pb.Launch(worker=NAMED)), "rank 0 in a generation of 0"),
        (pb.Order(terminate=pb.Terminate()), "without host"),
        (pb.Order(look=pb.Look(host="a")), "without token"),
        (pb.Order(look=pb.Look(token=b"t")), "or host"),
        (pb.Order(probe=pb.Probe(targets=[pb.ProbeTarget(endpoint=pb.Endpoint(address="a", port=1))])), "without host"),
        (pb.Order(probe=pb.Probe(targets=[pb.ProbeTarget(host="a")])), "without address"),
    ],
)
def test_an_order_that_lacks_something_is_an_error(message: pb.Order, lack: str) -> None:
    with pytest.raises(WireError, match=lack):
        wire.decode_order(message.SerializeToString())
