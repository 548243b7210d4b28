"""What becomes of a task arrives as it was; what cannot be sent is named by the way that leads to it."""

import asyncio
import functools
import threading
from collections.abc import AsyncIterator, Callable, Iterable

import pytest

from protos import rendezvous_pb2 as pb
from rendezvous.errors import WireError
from rendezvous.wire.task_codec import decode_outcome_head, encode_outcome, read_data
from rendezvous.wire.tasks import OutcomeHead, find_unsendable
from tests.rendezvous.wire.messages import WORKER

HEAD = OutcomeHead(WORKER, 3, 5, failed=True, follows_another=True)


def read(parts: Iterable[pb.OutcomePart]) -> list[bytes]:
    """The data of a stream."""

    async def stream() -> AsyncIterator[pb.OutcomePart]:
        for part in parts:
            yield part

    async def collect() -> list[bytes]:
        return [data async for data in read_data(stream())]

    return asyncio.run(collect())


def test_an_outcome_comes_back_as_it_was() -> None:
    first, *others = encode_outcome(HEAD, iter([b"ab", b"cde"]))
    assert decode_outcome_head(pb.OutcomePart.FromString(first.SerializeToString())) == HEAD
    assert read(others) == [b"ab", b"cde"]


@pytest.mark.parametrize(
    "first", [pb.OutcomePart(number=1), pb.OutcomePart(worker=pb.WorkerId(host="a", incarnation=1))]
)
def test_an_outcome_without_worker_or_number_is_none(first: pb.OutcomePart) -> None:
    with pytest.raises(WireError, match="an outcome without worker or number"):
        decode_outcome_head(first)


def test_one_outcome_holds_no_other() -> None:
    with pytest.raises(WireError, match="an outcome within an outcome"):
        read(encode_outcome(HEAD, iter([])))


LOCK = threading.Lock()
LIST = [1, 2, LOCK]


class Box:
    """Holds something."""

    def __init__(self) -> None:
        self.inner = LOCK

    def look(self) -> None:
        """A method."""


def use_global() -> object:
    return LIST


def make_closure() -> Callable[[], object]:
    lock = LOCK
    return lambda: lock


def make_nested() -> Callable[[], object]:
    def outer() -> object:
        return use_global()

    return outer


def with_default(value: object = LOCK, *, word: object = 1) -> object:
    return value, word


def is_sendable(value: object, seen: frozenset[int] = frozenset()) -> bool:
    """Nothing that leads to the lock is."""
    from rendezvous.wire.tasks import list_parts  # noqa: PLC0415 - only this

    if value is LOCK:
        return False
    rest = seen | {id(value)}
    return all(is_sendable(part, rest) for _, part in list_parts(value) if id(part) not in seen)


@pytest.mark.parametrize(
    ("value", "way"),
    [
        (LOCK, "it is"),
        (LIST, "its item 2 is"),
        ({"a": 1, "b": (LOCK,)}, "its item 'b', item 0 is"),
        (make_closure(), "its variable `lock` is"),
        (use_global, "its global variable `LIST`, item 2 is"),
        (make_nested(), "its global variable `use_global`, global variable `LIST`, item 2 is"),
        (with_default, "its default 0 is"),
        (Box(), "its attribute `inner` is"),
        (Box().look, "its object, attribute `inner` is"),
        (functools.partial(print, 1, sep=LOCK), "its argument 'sep' is"),
    ],
)
def test_the_way_to_what_cannot_be_sent_is_named(value: object, way: str) -> None:
    assert (
        find_unsendable("this", value, is_sendable) == f"this cannot be sent to another process: {way} a _thread.lock"
    )


def test_a_value_that_leads_to_itself_comes_to_an_end() -> None:
    ring: list[object] = []
    ring.append(ring)
    assert "is a list" in find_unsendable("this", ring, lambda _: False)
