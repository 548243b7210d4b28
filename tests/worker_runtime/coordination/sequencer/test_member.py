"""What a rank's numbers mean, and how its responses are put together."""

import socket

import pytest

from tests.worker_runtime.coordination.sequencer.client import BARRIER, make_request, summing
from tests.worker_runtime.coordination.sequencer.ends import Ends
from worker_runtime.coordination import wire
from worker_runtime.coordination.ordering.requests import Kind, Release, Signature
from worker_runtime.coordination.sequencer import member as member_module
from worker_runtime.coordination.sequencer.member import Member
from worker_runtime.coordination.wire import Frame, ProtocolError


@pytest.fixture
def member(ends: Ends) -> Member:
    return Member(0, ends.connection)


def learn(member: Member, number: int, signature: Signature, known: dict[Signature, Signature] | None = None) -> None:
    body = memoryview(wire.encode_signature(number, signature))
    member.learn_signature(body, {} if known is None else known)


def make_head(number: int, name: bytes = b"a", process_set: int = 0) -> bytes:
    return wire.encode_request(number, process_set, name)


def test_a_number_stands_for_a_signature(member: Member) -> None:
    learn(member, 7, BARRIER)
    assert member.learn_request(make_head(7, b"b", 3))[1] == (3, "b")
    request, key = member.learn_request(make_head(7))
    assert (request, key) == (make_request("a", BARRIER), (0, "a"))
    assert member.requests[make_head(7)] == (request, key)


def test_a_number_may_later_stand_for_another_signature(member: Member) -> None:
    learn(member, 7, BARRIER)
    member.learn_request(make_head(7))
    learn(member, 7, summing())
    assert make_head(7) not in member.requests
    assert member.learn_request(make_head(7))[0].signature == summing()


def test_equal_signatures_of_two_ranks_are_one_object(member: Member) -> None:
    known: dict[Signature, Signature] = {}
    other = Member(1, member.connection)
    learn(member, 0, summing(), known)
    learn(other, 5, summing(), known)
    assert member.learn_request(make_head(0))[0].signature is other.learn_request(make_head(5))[0].signature


@pytest.mark.parametrize(
    ("head", "reported"), [(make_head(8), "no signature with the number 8"), (make_head(7, b"\xff"), "is not a name")]
)
def test_a_request_without_meaning_is_refused(member: Member, head: bytes, reported: str) -> None:
    learn(member, 7, BARRIER)
    with pytest.raises(ProtocolError, match=reported):
        member.learn_request(head)


@pytest.mark.parametrize(
    "body", [b"", b"\0\0\0\0", b"\0\0\0\0{}", b"\0\0\0\0" + b"[" * 100_000, b"\0\0\0\0" + b'{"reduction": 1e999}']
)
def test_bytes_that_are_no_signature_are_refused(member: Member, body: bytes) -> None:
    with pytest.raises(ProtocolError, match="a signature was expected"):
        member.learn_signature(memoryview(body), {})


def test_a_signature_whose_payload_cannot_be_combined_is_refused(member: Member) -> None:
    with pytest.raises(ProtocolError, match="payloads of 'float33' cannot"):
        learn(member, 0, summing("float33"))


def test_signatures_are_not_collected_without_end(member: Member, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(member_module, "_MAX_SHARED", 3)
    known: dict[Signature, Signature] = {}
    for number in range(10):
        learn(member, 0, Signature(Kind.BARRIER, note=str(number)), known)
    with pytest.raises(ProtocolError, match="a rank may have 4096 signatures"):
        learn(member, 4096, BARRIER, known)
    assert len(known) <= 3


def test_names_are_not_collected_without_end(member: Member, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(member_module, "_MAX_KNOWN_REQUESTS", 10)
    learn(member, 0, BARRIER)
    for number in range(100):
        member.learn_request(make_head(0, str(number).encode()))
        assert len(member.requests) <= 10


def test_a_pending_request_is_found_by_its_number(member: Member) -> None:
    member.pending = {(0, name): (0, number, b"", 0.0) for number, name in enumerate("abc")}
    assert member.find_pending(1) == (0, "b")
    assert member.find_pending(3) is None


def make_piece(number: int, payload: bytes) -> bytes:
    release = Release(number, make_request("a", BARRIER), (0,))
    return wire.encode_releases(number, release, [payload])


def read_frames(other: socket.socket, count: int) -> list[tuple[int, bytes]]:
    frames = []
    for _ in range(count):
        length, kind = wire.HEADER.unpack(other.recv(wire.HEADER.size, socket.MSG_WAITALL))
        frames.append((kind, other.recv(length, socket.MSG_WAITALL)))
    return frames


def test_releases_travel_together_and_in_order_with_all_else(ends: Ends, member: Member) -> None:
    pieces = [make_piece(number, bytes(number)) for number in range(5)]
    member.releases += pieces[:3]
    member.put(Frame.STALL, b"slow")
    member.releases += pieces[3:]
    member.flush()
    assert read_frames(ends.peer, 3) == [
        (Frame.RELEASES, b"".join(pieces[:3])),
        (Frame.STALL, b"slow"),
        (Frame.RELEASES, b"".join(pieces[3:])),
    ]


def test_long_frames_of_releases_are_divided_between_them(
    ends: Ends, member: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(member_module, "_FULL_FRAME_BYTES", 100)
    pieces = [make_piece(number, bytes(length)) for number, length in enumerate((10, 300, 10, 10, 10, 10))]
    member.releases += pieces
    member.flush()
    expected = [pieces[:1], pieces[1:2], pieces[2:4], pieces[4:]]
    assert [body for _, body in read_frames(ends.peer, 4)] == [b"".join(group) for group in expected]


def test_an_idle_member_sends_nothing(ends: Ends, member: Member) -> None:
    member.flush()
    ends.peer.settimeout(0)
    with pytest.raises(BlockingIOError):
        ends.peer.recv(1)
