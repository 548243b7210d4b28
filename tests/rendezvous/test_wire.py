"""Every message arrives as it was, and what is no message is refused in one way."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protos import rendezvous_pb2 as pb
from rendezvous import wire
from rendezvous.core.effects import Launch, Terminate
from rendezvous.core.events import Exited
from rendezvous.core.model import Assignment, Endpoint, Slot, Worker
from rendezvous.credentials import Credential
from rendezvous.errors import WireError
from rendezvous.notices import Departed, Notice, Published, Refused, StoreOpened
from rendezvous.orders import Begin, Hold, Input, Order, Output, OutputStream, Release, Remark, Reserved, Taken, Telling

texts = st.text()
names = st.text(min_size=1)
words = st.binary().map(os.fsdecode)  # whatever an operating system may hold, as Python shows it
numbers = st.integers(0, 2**32 - 1)
generations = st.integers(0, 2**64 - 1)
seconds = st.floats(min_value=0, allow_nan=False)
workers = st.builds(Worker, st.builds(Slot, names, numbers), st.integers(1, 2**32 - 1))
assignments = st.builds(Assignment, st.integers(0, 2**31), st.just(2**31 + 1), numbers, numbers, numbers, numbers)
endpoints = st.builds(Endpoint, names, st.integers(1, 65_535))
exits = st.builds(Exited, workers, st.integers(-(2**31), 2**31 - 1), st.none() | names)
notices: st.SearchStrategy[Notice] = st.one_of(
    st.builds(Published, generations, st.lists(st.tuples(workers, assignments), max_size=3).map(tuple)),
    st.builds(StoreOpened, generations, endpoints),
    st.builds(Refused, workers, texts),
    st.builds(Departed, generations, workers, numbers),
)
begins = st.builds(
    Begin,
    job=names,
    host=names,
    server=names,
    credential=st.builds(Credential, st.binary(), st.binary(), st.binary()),
    command=st.lists(words, min_size=1, max_size=4).map(tuple),
    directory=words,
    environment=st.dictionaries(st.binary(), st.binary(), max_size=4),
    lease_seconds=seconds,
    start_timeout_seconds=seconds,
    address=texts,
    master=st.none() | endpoints,
    stdin_rank=st.none() | numbers,
    prefork=st.booleans(),
)
orders: st.SearchStrategy[Order] = st.one_of(
    begins,
    st.builds(Launch, workers, assignments, texts),
    st.builds(Terminate, workers, seconds, texts),
    st.builds(Release),
    st.builds(Hold, st.booleans()),
    st.builds(Input, st.binary()),
)
tellings: st.SearchStrategy[Telling] = st.one_of(
    st.builds(Output, workers, st.sampled_from(OutputStream), st.binary()),
    st.builds(Remark, texts),
    st.builds(Reserved, endpoints),
    st.builds(Taken),
)


def unframe(data: bytes) -> bytes:
    (message,) = wire.FrameReader().feed(data)
    return message


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


@given(orders)
def test_an_order_survives_the_wire(order: Order) -> None:
    assert wire.decode_order(unframe(wire.encode_order(order))) == order


@given(tellings)
def test_what_an_agent_tells_survives_the_wire(telling: Telling) -> None:
    assert wire.decode_telling(unframe(wire.encode_telling(telling))) == telling


WORKER = Worker(Slot("a", 0), 1)
UNDECODABLE = "cannot find /data/caf\udce9"
READABLE = "cannot find /data/caf\\udce9"


def test_a_sentence_about_a_path_that_is_no_utf8_arrives_readable() -> None:
    assignment = Assignment(0, 1, 0, 1, 0, 1)
    ended = wire.decode_exited(wire.encode_exited(Exited(WORKER, 127, UNDECODABLE)))
    refused = wire.decode_notice(wire.encode_notice(Refused(WORKER, UNDECODABLE)))
    remark = wire.decode_telling(unframe(wire.encode_telling(Remark(UNDECODABLE))))
    launch = wire.decode_order(unframe(wire.encode_order(Launch(WORKER, assignment, UNDECODABLE))))
    terminate = wire.decode_order(unframe(wire.encode_order(Terminate(WORKER, 1.0, UNDECODABLE))))
    assert ended == Exited(WORKER, 127, READABLE)
    assert refused == Refused(WORKER, READABLE)
    assert remark == Remark(READABLE)
    assert launch == Launch(WORKER, assignment, READABLE)
    assert terminate == Terminate(WORKER, 1.0, READABLE)


@given(st.binary())
def test_garbage_is_an_error_of_the_wire_and_of_no_other_kind(data: bytes) -> None:
    for decode in (wire.decode_order, wire.decode_telling):
        try:
            decode(data)
        except WireError as error:
            assert "does not speak hvdrun's protocol" in str(error)  # noqa: PT017 - bytes at random may be a message


@given(orders.map(wire.encode_order) | tellings.map(wire.encode_telling), st.data())
def test_a_damaged_message_is_an_error_of_the_wire_and_of_no_other_kind(frame: bytes, data: st.DataObject) -> None:
    message = bytearray(unframe(frame))
    for _ in range(data.draw(st.integers(1, 3)) if message else 0):
        message[data.draw(st.integers(0, len(message) - 1))] = data.draw(st.integers(0, 255))
    for decode in (wire.decode_order, wire.decode_telling):
        try:
            decode(bytes(message))
        except WireError as error:
            assert "does not speak hvdrun's protocol" in str(error)  # noqa: PT017 - it may still be a message


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
    ],
)
def test_an_order_that_lacks_something_is_an_error(message: pb.Order, lack: str) -> None:
    with pytest.raises(WireError, match=lack):
        wire.decode_order(message.SerializeToString())


@pytest.mark.parametrize(
    ("message", "lack"),
    [
        (pb.Telling(), "no known kind"),
        (pb.Telling(output=pb.Output(stream=pb.STREAM_STDOUT)), "without host"),
        (pb.Telling(output=pb.Output(worker=NAMED)), "stream 0"),
        (pb.Telling(output=pb.Output(worker=NAMED, stream=pb.Stream.ValueType(7))), "stream 7"),
        (pb.Telling(reserved=pb.Reserved(master=pb.Endpoint(port=1))), "without address"),
        (pb.Telling(reserved=pb.Reserved(master=pb.Endpoint(address="a", port=65_536))), "port 65536"),
    ],
)
def test_a_telling_that_lacks_something_is_an_error(message: pb.Telling, lack: str) -> None:
    with pytest.raises(WireError, match=lack):
        wire.decode_telling(message.SerializeToString())


@pytest.mark.parametrize(
    "message",
    [
        pb.Notice(),
        pb.Notice(published=pb.Published(generation=1, members=[pb.Member(worker=NAMED)])),
        pb.Notice(published=pb.Published(generation=1, members=[pb.Member(assignment=FIRST)])),
        pb.Notice(store_opened=pb.StoreOpened(generation=1)),
        pb.Notice(refused=pb.Refused(reason="no")),
        pb.Notice(departed=pb.Departed(generation=1)),
    ],
)
def test_a_notice_that_lacks_something_is_an_error(message: pb.Notice) -> None:
    with pytest.raises(WireError):
        wire.decode_notice(message)


@given(st.lists(st.binary(max_size=40)), st.data())
def test_frames_arrive_whole_in_whatever_chunks_they_come(frames: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(map(wire.frame, frames))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)))))
    reader = wire.FrameReader()
    arrived = [
        frame
        for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)
        for frame in reader.feed(stream[start:end])
    ]
    assert arrived == frames


def test_a_frame_is_told_with_its_last_byte_and_not_before() -> None:
    reader = wire.FrameReader()
    frame = wire.frame(b"abc")
    assert list(reader.feed(frame[:-1])) == []
    assert list(reader.feed(frame[-1:])) == [b"abc"]


def test_a_frame_that_is_too_long_is_refused_before_its_bytes_have_come() -> None:
    reader = wire.FrameReader()
    with pytest.raises(WireError, match=f"a frame of {wire.MAX_FRAME_BYTES + 1} bytes"):
        list(reader.feed((wire.MAX_FRAME_BYTES + 1).to_bytes(4, "big")))
    with pytest.raises(WireError):  # and what comes after it is not taken for a frame
        list(reader.feed(wire.frame(b"abc")))


def test_frames_before_one_that_is_too_long_have_been_told() -> None:
    arrived: list[bytes] = []
    with pytest.raises(WireError):
        arrived.extend(wire.FrameReader().feed(wire.frame(b"abc") + b"HTTP/1.1 400 Bad Request"))
    assert arrived == [b"abc"]
