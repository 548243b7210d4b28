"""The board: the present state first, then every change, each once."""

import asyncio
from contextlib import aclosing

import pytest

from rendezvous.core.model import Assignment, Endpoint, Slot, Worker
from rendezvous.wire.notifications import (
    KEY_BYTES,
    Board,
    Departed,
    Notice,
    Published,
    Refused,
    SequencerFailed,
    SequencerOpened,
)
from tests.waiting import in_loop

A0, A1 = Worker(Slot("a", 0), 1), Worker(Slot("a", 1), 1)
FIRST = Published(1, ((A0, Assignment(0, 1, 0, 1, 0, 1)),), b"k" * KEY_BYTES)
SECOND = Published(2, FIRST.members, b"l" * KEY_BYTES)
OPENED = SequencerOpened(1, Endpoint("10.0.0.1", 4711))
MOVED = SequencerOpened(1, Endpoint("10.0.0.1", 4712))
REFUSED, OTHERWISE = Refused(A0, "it is over"), Refused(A0, "for another reason")


@pytest.mark.parametrize(
    ("posted", "read"),
    [
        ([FIRST, REFUSED, OPENED], [FIRST, REFUSED, OPENED]),
        ([FIRST, OPENED, MOVED], [FIRST, MOVED]),
        ([FIRST, OPENED, REFUSED, Departed(1, A1, 1), SequencerFailed(1, "no NumPy"), SECOND], [SECOND]),
        ([REFUSED, Refused(A1, "it is over"), OTHERWISE], [Refused(A1, "it is over"), OTHERWISE]),
        ([FIRST, Departed(1, A0, 0), Departed(1, A1, 1)], [FIRST, Departed(1, A0, 0), Departed(1, A1, 1)]),
        ([FIRST, REFUSED, Departed(1, A0, 0)], [FIRST, REFUSED, Departed(1, A0, 0)]),
    ],
    ids=[
        "all in its order",
        "a sequencer that moved",
        "another generation",
        "one refusal of each worker, the last",
        "every departure",
        "a refusal and a departure of one worker",
    ],
)
@in_loop
async def test_one_who_comes_late_reads_the_present_state(posted: list[Notice], read: list[Notice]) -> None:
    board = Board()
    for notice in posted:
        board.post(notice)
    board.close()
    async with aclosing(board.follow()) as notices:
        assert [notice async for notice in notices] == read


def test_generations_of_two_keys_are_two() -> None:
    assert Published(1, FIRST.members, SECOND.key) != FIRST


@in_loop
async def test_every_follower_reads_each_change_once() -> None:
    board = Board()
    async with aclosing(board.follow()) as early, aclosing(board.follow()) as late:
        board.post(FIRST)
        assert await anext(early) == FIRST
        board.post(FIRST)  # hangs there already
        board.post(OPENED)
        assert await anext(early) == OPENED
        assert [await anext(late), await anext(late)] == [FIRST, OPENED]
        board.post(SECOND)
        assert [await anext(early), await anext(late)] == [SECOND, SECOND]


@in_loop
async def test_a_follower_that_leaves_is_forgotten() -> None:
    board = Board()
    board.post(FIRST)
    async with aclosing(board.follow()) as notices:
        assert await anext(notices) == FIRST
        assert len(board._followers) == 1
    assert not board._followers

    board = Board()
    waiting = asyncio.ensure_future(anext(aiter(board.follow())))
    await asyncio.sleep(0)
    assert len(board._followers) == 1
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert not board._followers
