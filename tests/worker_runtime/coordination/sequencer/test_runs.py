"""Releases that are sent as one, and those that are not."""

from collections.abc import Sequence

import pytest

from worker_runtime.coordination import wire
from worker_runtime.coordination.ordering.requests import Kind, Reduction, Release, Request, Signature
from worker_runtime.coordination.sequencer import member as member_module
from worker_runtime.coordination.sequencer.member import ReleaseRange
from worker_runtime.coordination.sequencer.payloads import Entry

REQUEST = Request(0, "allreduce.x", Signature(Kind.ALLREDUCE, reduction=Reduction.SUM))
MEMBERS = (0, 1)


def make_release(index: int, joined: tuple[int, ...] = (), members: tuple[int, ...] = MEMBERS) -> Release:
    return Release(index, REQUEST, members, joined)


def make_asked(*numbers: int) -> list[Entry]:
    return [(rank, number, b"", 0.0) for rank, number in enumerate(numbers)]


def read(run: ReleaseRange) -> dict[int, list[tuple[int, int, Sequence[int], bytes]]]:
    """What each rank receives: number, index, lengths and payload of each piece."""
    return {
        rank: [
            (released.number, released.index, released.lengths, bytes(released.payload)) for released in decode(piece)
        ]
        for rank, piece in run.encode()
    }


def decode(piece: bytes) -> list[wire.Released]:
    return list(wire.decode_releases(memoryview(piece), lambda _: len(MEMBERS)))


def test_consecutive_releases_become_one_range_in_the_numbers_of_each_rank() -> None:
    run = ReleaseRange(make_release(5), make_asked(0, 7), b"ab")
    assert run.take(make_release(6), make_asked(1, 8), b"")
    assert run.take(make_release(7), make_asked(2, 9), b"c")
    assert read(run) == {0: [(0, 5, (2, 0, 1), b"abc")], 1: [(7, 5, (2, 0, 1), b"abc")]}


def test_a_run_names_the_rank_that_was_the_last_to_ask_for_its_last_release() -> None:
    run = ReleaseRange(make_release(5), [(0, 0, b"", 3.0), (1, 7, b"", 2.0)], b"")
    assert [released.last for piece in dict(run.encode()).values() for released in decode(piece)] == [0, 0]
    assert run.take(make_release(6), [(0, 1, b"", 3.0), (1, 8, b"", 4.0)], b"")
    assert [released.last for piece in dict(run.encode()).values() for released in decode(piece)] == [1, 1]


def test_a_release_whose_members_have_all_left_is_not_sent() -> None:
    assert list(ReleaseRange(make_release(5, joined=(0, 1)), [], b"").encode()) == []


def test_ranks_with_equally_many_requests_receive_the_same_bytes() -> None:
    run = ReleaseRange(make_release(5), make_asked(3, 3), b"ab")
    (_, first), (_, second) = run.encode()
    assert first is second


def test_another_order_on_a_rank_ends_a_run() -> None:
    run = ReleaseRange(make_release(0), make_asked(0, 1), b"")
    assert not run.take(make_release(1), make_asked(1, 0), b"")
    assert read(run) == {0: [(0, 0, (0,), b"")], 1: [(1, 0, (0,), b"")]}


@pytest.mark.parametrize(
    ("release", "asked"),
    [
        (make_release(1, joined=(1,)), make_asked(1)),
        (make_release(1, members=(0, 2)), [(0, 1, b"", 0.0), (2, 1, b"", 0.0)]),
        (make_release(1)._replace(value=3), make_asked(1, 1)),
        (make_release(1)._replace(sizes=((1,), (2,))), make_asked(1, 1)),
        (make_release(1), make_asked(1)),
    ],
    ids=["joined", "another set", "value", "sizes", "a member that has left"],
)
def test_a_release_that_is_not_plain_stands_alone(release: Release, asked: list[Entry]) -> None:
    plain = ReleaseRange(make_release(0), make_asked(0, 0), b"")
    assert not plain.take(release, asked, b"")
    odd = ReleaseRange(release, asked, b"")
    assert not odd.take(make_release(2), make_asked(2, 2), b"")


def test_a_run_does_not_grow_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(member_module, "_FULL_BYTES", 10)
    run = ReleaseRange(make_release(0), make_asked(0, 0), bytes(8))
    assert run.take(make_release(1), make_asked(1, 1), bytes(8))
    assert not run.take(make_release(2), make_asked(2, 2), b"")
