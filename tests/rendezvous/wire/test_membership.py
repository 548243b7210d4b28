"""Every message of membership arrives as it was, and what lacks something is refused."""

import pytest
from hypothesis import given

from protos import rendezvous_pb2 as pb
from rendezvous import wire
from rendezvous.core.events import Exited
from rendezvous.core.model import Assignment, Worker
from rendezvous.errors import WireError
from rendezvous.notices import KEY_BYTES, Notice, Refused
from tests.rendezvous.wire.messages import READABLE, UNDECODABLE, WORKER, assignments, exits, notices, workers


@given(workers)
def test_a_worker_survives_the_wire(worker: Worker) -> None:
    assert wire.decode_worker(wire.encode_worker(worker)) == worker


@given(assignments)
def test_an_assignment_survives_the_wire(assignment: Assignment) -> None:
    assert wire.decode_assignment(wire.encode_assignment(assignment)) == assignment


@given(exits)
def test_the_end_of_a_worker_survives_the_wire(event: Exited) -> None:
    assert wire.decode_exited(pb.Ended.FromString(wire.encode_exited(event).SerializeToString())) == event


@given(notices)
def test_a_notice_survives_the_wire(notice: Notice) -> None:
    assert wire.decode_notice(pb.Notice.FromString(wire.encode_notice(notice).SerializeToString())) == notice


def test_a_sentence_about_a_path_that_is_no_utf8_arrives_readable() -> None:
    ended = wire.decode_exited(wire.encode_exited(Exited(WORKER, 127, UNDECODABLE)))
    refused = wire.decode_notice(wire.encode_notice(Refused(WORKER, UNDECODABLE)))
    assert ended == Exited(WORKER, 127, READABLE)
    assert refused == Refused(WORKER, READABLE)


NAMED = pb.WorkerId(host="a", incarnation=1)
FIRST = pb.Assignment(size=1)
KEY = bytes(KEY_BYTES)


@pytest.mark.parametrize(
    "message",
    [
        pb.Notice(),
        pb.Notice(published=pb.Published(generation=1, members=[pb.Member(worker=NAMED)], key=KEY)),
        pb.Notice(published=pb.Published(generation=1, members=[pb.Member(assignment=FIRST)], key=KEY)),
        pb.Notice(published=pb.Published(generation=1, key=KEY[1:])),
        pb.Notice(published=pb.Published(generation=1)),
        pb.Notice(sequencer_opened=pb.SequencerOpened(generation=1)),
        pb.Notice(store_opened=pb.StoreOpened(generation=1)),
        pb.Notice(refused=pb.Refused(reason="no")),
        pb.Notice(departed=pb.Departed(generation=1)),
    ],
)
def test_a_notice_that_lacks_something_is_an_error(message: pb.Notice) -> None:
    with pytest.raises(WireError):
        wire.decode_notice(message)
