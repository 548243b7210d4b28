"""The board: the present state first, then every change, each once."""

import asyncio
from contextlib import aclosing

import pytest

from rendezvous.core.model import Assignment, Endpoint, Slot, Worker
from rendezvous.notices import (
    KEY_BYTES,
    Board,
    Departed,
    Notice,
    Published,
    Refused,
    SequencerFailed,
    SequencerOpened,
    StoreOpened,
)
from tests.waiting import in_loop

A0, A1 = Worker(Slot("a", 0), 1), Worker(Slot("a", 1), 1)
FIRST = Published(1, ((A0, Assignment(0, 1, 0, 1, 0, 1)),), b"k" * KEY_BYTES)
SECOND = Published(2, FIRST.members, b"l" * KEY_BYTES)
STORE = StoreOpened(1, Endpoint("10.0.0.1", 4711))
REFUSED = Refused(A0, "it is over")


def read_after(*posted: Notice, last: Notice = STORE) -> list[Notice]:
    """What a follower that comes after these notices reads, up to the last one."""

    async def story() -> list[Notice]:
        board = Board()
        for notice in posted:
            board.post(notice)
        read = []
        async with aclosing(board.follow()) as notices:
            async for notice in notices:
                read.append(notice)
                if notice == last:
                    break
        return read

    return asyncio.run(story())


def test_one_who_comes_late_reads_the_present_state_in_its_order() -> None:
    assert read_after(FIRST, REFUSED, STORE) == [FIRST, REFUSED, STORE]


def test_a_new_generation_ends_what_was_said_of_the_former_one() -> None:
    departed = Departed(1, A1, 1)
    assert read_after(FIRST, STORE, REFUSED, departed, SECOND, last=SECOND) == [SECOND]


def test_a_store_that_moved_is_told_once_where_it_is_now() -> None:
    moved = StoreOpened(1, Endpoint("10.0.0.1", 4712))
    assert read_after(FIRST, STORE, moved, last=moved) == [FIRST, moved]


def test_a_sequencer_is_known_until_the_next_generation() -> None:
    opened = SequencerOpened(1, Endpoint("10.0.0.1", 4712))
    assert read_after(FIRST, opened, STORE) == [FIRST, opened, STORE]
    assert read_after(FIRST, SequencerFailed(1, "no NumPy"), SECOND, last=SECOND) == [SECOND]


def test_a_generation_s_key_is_not_shown() -> None:
    assert "kkkk" not in f"{FIRST!r} {FIRST}"
    assert Published(1, FIRST.members, SECOND.key) != FIRST


def test_each_worker_has_its_own_refusal() -> None:
    other, newer = Refused(A1, "it is over"), Refused(A0, "for another reason")
    assert read_after(REFUSED, other, newer, last=newer) == [other, newer]


def test_every_departure_stays_known() -> None:
    gone = (Departed(1, A0, 0), Departed(1, A1, 1))
    assert read_after(FIRST, *gone, last=gone[1]) == [FIRST, *gone]


def test_a_refusal_and_a_departure_of_one_worker_are_two_things() -> None:
    gone = Departed(1, A0, 0)
    assert read_after(FIRST, REFUSED, gone, last=gone) == [FIRST, REFUSED, gone]


@in_loop
async def test_every_follower_reads_each_change_once() -> None:
    board = Board()
    async with aclosing(board.follow()) as early, aclosing(board.follow()) as late:
        board.post(FIRST)
        assert await anext(early) == FIRST
        board.post(FIRST)  # hangs there already
        board.post(STORE)
        assert await anext(early) == STORE
        assert [await anext(late), await anext(late)] == [FIRST, STORE]
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
