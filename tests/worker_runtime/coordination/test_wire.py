"""What worker and sequencer say to each other arrives as it was said, and nothing else is believed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker_runtime.coordination import wire
from worker_runtime.coordination.ordering.requests import Kind, Reduction, Release, Request, Signature
from worker_runtime.coordination.wire import ProtocolError, Released

Factors = tuple[float, float]
Asked = tuple[int, int, bytes, tuple[int, ...], bytes, Factors]  # signature, set, name, sizes, payload, factors

NUMBERS = st.integers(-(2**63), 2**63 - 1)
SMALL = st.integers(0, 2**16 - 1)
SIGNATURES = st.builds(
    Signature,
    kind=st.sampled_from(Kind),
    dtypes=st.lists(st.sampled_from(["float32", "bool"]), max_size=3).map(tuple),
    shapes=st.lists(st.lists(st.integers(0, 9), max_size=3).map(tuple), max_size=3).map(tuple),
    reduction=st.none() | st.sampled_from(Reduction),
    root=st.none() | SMALL,
    device=st.sampled_from(["cpu", "cuda"]),
    payload_dtype=st.sampled_from(["", "float32"]),
    tolerates_joined=st.booleans(),
    note=st.text(max_size=20),
)
ASKED = st.tuples(
    st.integers(0, 2**32 - 1),
    SMALL,
    st.text(max_size=30).map(str.encode),
    st.lists(NUMBERS, max_size=4).map(tuple),
    st.binary(max_size=50),
    st.tuples(st.floats(allow_nan=False), st.floats(allow_nan=False)),
)


def encode(asked: Asked) -> bytes:
    signature, process_set, name, sizes, payload, factors = asked
    return wire.encode_request(signature, process_set, name, sizes, len(payload), factors=factors) + payload


@given(number=st.integers(0, 2**32 - 1), signature=SIGNATURES)
def test_a_signature_survives_the_wire(number: int, signature: Signature) -> None:
    assert wire.decode_signature(memoryview(wire.encode_signature(number, signature))) == (number, signature)


@given(st.lists(ASKED, max_size=5))
def test_requests_follow_each_other_in_one_frame(requests: list[Asked]) -> None:
    body = b"".join(map(encode, requests))
    decoded = wire.decode_requests(b"before" + body, 6, 6 + len(body))
    assert [(*wire.decode_head(head), sizes, payload) for head, sizes, payload in decoded] == [
        (signature, process_set, name.decode(), factors, sizes, payload)
        for signature, process_set, name, sizes, payload, factors in requests
    ]


@given(ASKED, st.integers(1))
def test_a_request_that_is_cut_off_is_an_error(asked: Asked, cut: int) -> None:
    body = encode(asked)
    with pytest.raises(ProtocolError, match=r"request"):
        list(wire.decode_requests(body, 0, cut % len(body) or 1))


def test_a_name_that_is_no_text_is_an_error() -> None:
    with pytest.raises(ProtocolError, match="is not a name"):
        wire.decode_head(wire.encode_request(0, 0, b"\xff"))


@given(st.data(), st.integers(1, 4))
def test_releases_follow_each_other_in_one_frame(data: st.DataObject, members: int) -> None:
    request = Request(0, "allgather.x", Signature(Kind.ALLGATHER))
    count = data.draw(st.integers(0, 3))
    sizes = st.lists(NUMBERS, min_size=count, max_size=count).map(tuple)
    releases = [
        Release(
            index=data.draw(st.integers(0, 2**64 - 1)),
            request=request,
            members=tuple(range(members)),
            joined=tuple(data.draw(st.lists(st.integers(0, 2**32 - 1), max_size=2))),
            sizes=tuple(data.draw(st.lists(sizes, min_size=members, max_size=members))) if count else (),
            value=data.draw(NUMBERS),
            last=data.draw(st.integers(-1, 2**31 - 1)),
        )
        for _ in range(data.draw(st.integers(0, 3)))
    ]
    payloads = [data.draw(st.lists(st.binary(max_size=20), min_size=1, max_size=3)) for _ in releases]
    body = b"".join(
        wire.encode_releases(number, release, each)
        for number, (release, each) in enumerate(zip(releases, payloads, strict=True))
    )
    assert list(wire.decode_releases(memoryview(body), lambda _: members)) == [
        Released(
            number,
            release.index,
            release.joined,
            release.sizes,
            release.value,
            tuple(map(len, each)),
            memoryview(b"".join(each)),
            release.last,
        )
        for number, (release, each) in enumerate(zip(releases, payloads, strict=True))
    ]


@given(SIGNATURES, SMALL, st.text(max_size=20), st.lists(SMALL, max_size=3).map(tuple))
def test_a_release_to_a_rank_that_joined_is_complete(
    signature: Signature, number: int, name: str, joined: tuple[int, ...]
) -> None:
    release = Release(number, Request(3, name, signature), (0, 4), joined, ((1, 2), (0, 0)), 7, 4)
    assert wire.decode_neutral(memoryview(wire.encode_neutral(release))) == release


def test_refusals_and_blocks_survive_the_wire() -> None:
    assert wire.decode_numbered(memoryview(wire.encode_numbered(5, "nö"))) == (5, "nö")
    for is_blocked in (True, False):
        assert wire.decode_blocked(memoryview(wire.encode_blocked(9, is_blocked=is_blocked))) == (9, is_blocked)
    with pytest.raises(ProtocolError):
        wire.decode_blocked(memoryview(b"123"))


@pytest.mark.parametrize(
    "body", [b"", b"\0\0\0\0", b"\0\0\0\0{}", b"\0\0\0\0[]", b'\0\0\0\0{"kind":99}', b"\0\0\0\0\xff"]
)
def test_bytes_that_are_no_signature_are_an_error(body: bytes) -> None:
    with pytest.raises(ProtocolError, match=r"signature"):
        wire.decode_signature(memoryview(body))


def test_both_sides_prove_that_they_know_the_key() -> None:
    key, challenge, nonce = bytes(32), b"c" * 32, b"n" * 32
    data, expected = wire.make_greeting(key, 3, 1, challenge, nonce)
    assert len(data) == wire.GREETING_BYTES
    greeting = wire.read_greeting(data)
    assert (greeting.generation, greeting.rank) == (3, 1)
    assert greeting.is_proven(key, challenge)
    assert greeting.answer(key, challenge) == expected
    assert not greeting.is_proven(b"k" * 32, challenge)
    assert not greeting.is_proven(key, b"d" * 32)
    other, _ = wire.make_greeting(key, 3, 2, challenge, nonce)
    forged = wire.read_greeting(data[:12] + other[12:])  # another rank's proof
    assert not forged.is_proven(key, challenge)


def test_a_proof_of_one_side_differs_from_that_of_the_other_side() -> None:
    data, expected = wire.make_greeting(bytes(32), 1, 0, b"c" * 32, b"n" * 32)
    assert wire.read_greeting(data).proof != expected


@given(SIGNATURES, SMALL, st.text(max_size=20), st.lists(st.tuples(SMALL, st.floats(0, 1e6)), max_size=3))
def test_arrivals_are_complete(signature: Signature, number: int, name: str, asked: list[tuple[int, float]]) -> None:
    release = Release(number, Request(3, name, signature), (0, 4))
    body = wire.encode_arrivals(release, 1.5, asked) * 2
    assert list(wire.decode_arrivals(memoryview(body))) == [(3, name, signature.kind, 1.5, asked)] * 2


NAMES, TIMES = st.text(max_size=5), st.floats(0, 1e6)


@given(st.lists(st.tuples(NAMES, TIMES, TIMES, NAMES), max_size=3))
def test_waits_are_forwarded_with_their_rank(waits: list[wire.RankSpan]) -> None:
    body = wire.forward_waits(3, 2.5, memoryview(wire.encode_waits(1.5, waits)))
    assert wire.decode_rank_waits(memoryview(body)) == (3, 2.5, 1.5, waits)


@pytest.mark.parametrize("text", [b"", b"3", b"[1, 2, 3]", b'[1, [["a", 2, 3]]]', b"[1, [3]]"])
def test_waits_that_are_malformed_are_refused(text: bytes) -> None:
    with pytest.raises(ProtocolError, match="waits of rank 1 were expected"):
        wire.decode_rank_waits(memoryview(wire.forward_waits(1, 0.0, memoryview(text))))
