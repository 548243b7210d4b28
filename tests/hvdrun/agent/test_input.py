"""What was typed into hvdrun, on its way into a worker's standard input."""

import asyncio
import os

from hvdrun.agent.input import InputFeed

LIMIT_SECONDS = 10


def test_pieces_arrive_in_order_and_an_empty_one_is_the_end() -> None:
    async def story() -> tuple[bytes, int]:
        taken = asyncio.Semaphore(0)
        feed = InputFeed(taken.release)
        reader, writer = os.pipe()
        await feed.open(writer)
        pieces = [b"first\n", b"\xff\x00second", b""]
        for count, piece in enumerate(pieces):
            async with asyncio.timeout(LIMIT_SECONDS):
                await taken.acquire()
            feed.write(piece)
            if not piece:
                return await asyncio.to_thread(read_all, reader), count
        raise AssertionError

    assert asyncio.run(story()) == (b"first\n\xff\x00second", 2)


def test_the_next_piece_is_asked_for_only_when_the_worker_has_taken_the_last() -> None:
    async def story() -> list[int]:
        asked = 0

        def taken() -> None:
            nonlocal asked
            asked += 1

        feed = InputFeed(taken)
        reader, writer = os.pipe()
        await feed.open(writer)
        counts = [asked]
        large = b"x" * 1_000_000  # more than a pipe holds
        feed.write(large)
        await asyncio.sleep(0)
        counts.append(asked)
        assert await asyncio.to_thread(read_exactly, reader, len(large)) == large
        async with asyncio.timeout(LIMIT_SECONDS):
            while asked == counts[-1]:  # noqa: ASYNC110 - the feed's own callback is what is waited for
                await asyncio.sleep(0.001)
        counts.append(asked)
        feed.close()
        os.close(reader)
        return counts

    assert asyncio.run(story()) == [1, 1, 2]


def test_a_worker_that_does_not_read_any_more_harms_nobody() -> None:
    async def story() -> None:
        feed = InputFeed(lambda: None)
        reader, writer = os.pipe()
        await feed.open(writer)
        os.close(reader)
        for _ in range(3):
            feed.write(b"nobody reads this")
            await asyncio.sleep(0)
        feed.write(b"")
        feed.close()

    asyncio.run(story())


def test_without_a_worker_that_reads_pieces_are_dropped() -> None:
    feed = InputFeed(lambda: None)
    feed.write(b"too early")
    feed.close()


def read_all(descriptor: int) -> bytes:
    """To the end of the pipe."""
    with os.fdopen(descriptor, "rb") as pipe:
        return pipe.read()


def read_exactly(descriptor: int, size: int) -> bytes:
    """So many bytes; the descriptor stays open."""
    data = b""
    while len(data) < size:
        data += os.read(descriptor, size - len(data))
    return data
