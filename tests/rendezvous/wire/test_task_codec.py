"""Tasks and outcomes as streams of messages."""

import asyncio
from collections.abc import AsyncIterator, Iterable

import pytest

from protos import rendezvous_pb2 as pb
from rendezvous.errors import WireError
from rendezvous.wire.task_codec import decode_outcome_head, encode_outcome, read_data
from rendezvous.wire.tasks import OutcomeHead
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
