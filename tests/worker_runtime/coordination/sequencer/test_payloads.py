"""What the responses carry: sums, the root's bytes, all ranks' bytes; and which payloads no rank may send."""

from dataclasses import replace

import numpy as np
import pytest

from tests.worker_runtime.coordination.sequencer.client import floats, make_request, summing
from worker_runtime.coordination.ordering.requests import (
    ALL_PAYLOADS_BYTES,
    PAYLOAD_BYTES,
    Kind,
    Reduction,
    Release,
    Signature,
)
from worker_runtime.coordination.sequencer.payloads import (
    Entry,
    UnequalPayloadError,
    check_signature,
    check_size,
    combine,
)
from worker_runtime.coordination.wire import ProtocolError


def released(signature: Signature, *payloads: bytes | None, name: str = "x") -> tuple[Release, list[Entry]]:
    """A release of all these ranks; those with None have joined."""
    members = tuple(range(len(payloads)))
    joined = tuple(rank for rank in members if payloads[rank] is None)
    asked = [(rank, 7 + rank, payload, 0.0) for rank, payload in enumerate(payloads) if payload is not None]
    return Release(0, make_request(name, signature), members, joined), asked


def test_many_different_payloads_are_combined_together() -> None:
    chance = np.random.default_rng(5)
    story = []
    expected = []
    for number in range(60):
        dtype = ["float32", "int64"][number % 2]
        count = [1, 3, 0, 5000][number % 4]
        reduction = [Reduction.SUM, Reduction.MAX][number % 3 == 0]
        rows = chance.integers(0, 100, (3, count)).astype(dtype)
        story.append(released(summing(dtype, reduction, count), *(row.tobytes() for row in rows)))
        expected.append((rows.sum(0) if reduction is Reduction.SUM else rows.max(0)).astype(dtype).tobytes())
    assert combine(story) == expected


def test_joined_ranks_contribute_nothing() -> None:
    story = [
        released(summing(), floats(1), None, floats(2)),
        released(summing(), None, floats(4), floats(8)),
        released(summing(), None, floats(16), None),
        released(summing(), None, None, None),
    ]
    assert combine(story) == [floats(3), floats(12), floats(16), b""]


def test_a_broadcast_carries_the_roots() -> None:
    broadcast = Signature(Kind.BROADCAST, root=1, payload_dtype="uint8")
    assert combine([released(broadcast, b"", b"abc", b"x"), released(broadcast, b"", None)]) == [b"abc", b""]


def test_a_gathering_carries_all_in_the_order_of_the_ranks() -> None:
    release, asked = released(Signature(Kind.ALLGATHER, payload_dtype="uint8"), b"aa", b"", b"b")
    for rows, gathered in (((2,), (0,), (1,)), b"aab"), (((2,), (9,), (1,)), b""):  # nine rows that sent nothing
        assert combine([(release._replace(sizes=rows), asked)]) == [gathered]


def test_requests_without_payload_get_a_response_without_payload() -> None:
    assert combine([released(Signature(Kind.BARRIER), b"", b"")]) == [b""]


@pytest.mark.parametrize(
    ("payloads", "rank", "reported"),
    [
        ((bytes(64), bytes(64), bytes(60)), 2, "it sent 60 bytes with 'x', and rank 0 sent 64"),
        ((bytes(63), bytes(63), bytes(63)), 0, "it sent 63 bytes of float32 with 'x'"),
        ((None, bytes(8), bytes(4)), 2, "it sent 4 bytes with 'x', and rank 1 sent 8"),
    ],
)
def test_a_payload_of_another_length_is_blamed_on_its_rank(
    payloads: tuple[bytes | None, ...], rank: int, reported: str
) -> None:
    with pytest.raises(UnequalPayloadError) as raised:
        combine([released(summing(), floats(1)), released(summing(), *payloads)])
    assert (raised.value.rank, str(raised.value)) == (rank, reported)


@pytest.mark.parametrize(
    "signature",
    [
        summing(),
        summing("bool", Reduction.MIN),
        Signature(Kind.ALLREDUCE, reduction=Reduction.ADASUM),
        Signature(Kind.BROADCAST, root=0, payload_dtype="whatever"),
        Signature(Kind.ALLGATHER, payload_dtype="bfloat16"),
    ],
)
def test_combinable_signatures_are_accepted(signature: Signature) -> None:
    check_signature(signature)


@pytest.mark.parametrize(
    "signature",
    [
        summing("float33"),
        summing("object"),
        summing(reduction=Reduction.ADASUM),
        replace(summing(), reduction=None),
        Signature(Kind.BROADCAST, payload_dtype="uint8"),
        Signature(Kind.ALLTOALL, payload_dtype="uint8"),
        Signature(Kind.REDUCESCATTER, reduction=Reduction.SUM, payload_dtype="float32"),
        Signature(Kind.BARRIER, payload_dtype="uint8"),
    ],
)
def test_other_signatures_are_refused(signature: Signature) -> None:
    with pytest.raises(ProtocolError, match="payload"):
        check_signature(signature)


@pytest.mark.parametrize("size", [1, 2, 8, 64])
def test_payloads_are_as_large_as_ranks_may_send_them_in_a_wider_dtype(size: int) -> None:
    allowed = min(PAYLOAD_BYTES, ALL_PAYLOADS_BYTES // size) * 8
    check_size(size, allowed)
    with pytest.raises(ProtocolError, match=f"too large for a set of {size} ranks"):
        check_size(size, allowed + 8)
