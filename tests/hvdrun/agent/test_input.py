"""What was typed into hvdrun, on its way into a worker's standard input."""

import asyncio
import os

import pytest

from hvdrun.agent.input import InputFeed
from tests.waiting import happen, in_loop


class Story:
    """A feed, the pipe to a worker, and how often the feed has asked for a piece."""

    def __init__(self) -> None:
        self.asked = 0
        self.feed = InputFeed(self._ask)
        self.reader, self.writer = os.pipe()

    def read(self) -> bytes:
        """All that the worker gets, to the end."""
        with os.fdopen(self.reader, "rb") as pipe:
            return pipe.read()

    def _ask(self) -> None:
        self.asked += 1


@in_loop
async def test_pieces_arrive_in_order_and_an_empty_one_is_the_end() -> None:
    story = Story()
    await story.feed.open(story.writer)
    for count, piece in enumerate([b"first\n", b"\xff\x00second", b""], 1):
        await happen(lambda count=count: story.asked == count)  # type: ignore[misc]  # mypy sees no default there
        story.feed.write(piece)
    assert await asyncio.to_thread(story.read) == b"first\n\xff\x00second"
    assert story.asked == 3


@in_loop
async def test_the_next_piece_is_asked_for_only_when_the_worker_has_taken_the_last() -> None:
    story = Story()
    await story.feed.open(story.writer)
    large = b"x" * 1_000_000  # more than a pipe holds
    story.feed.write(large)
    await asyncio.sleep(0)
    assert story.asked == 1
    reading = asyncio.create_task(asyncio.to_thread(story.read))
    await happen(lambda: story.asked == 2)
    story.feed.write(b"")
    assert await reading == large


@in_loop
async def test_a_worker_that_does_not_read_any_more_is_asked_nothing_more(caplog: pytest.LogCaptureFixture) -> None:
    story = Story()
    await story.feed.open(story.writer)
    os.close(story.reader)
    story.feed.write(b"nobody reads this")
    await happen(lambda: str(story.writer) not in os.listdir("/proc/self/fd"))  # noqa: PTH208 - names are all it needs
    asked = story.asked
    for _ in range(10):  # asyncio complains from the fifth on of what is written into a pipe that is lost
        story.feed.write(b"nor this")
    story.feed.write(b"")
    story.feed.close()
    assert (story.asked, caplog.messages) == (asked, [])


@in_loop
async def test_what_is_typed_before_there_is_a_worker_is_dropped() -> None:
    story = Story()
    story.feed.write(b"too early")
    await story.feed.open(story.writer)
    story.feed.write(b"in time")
    story.feed.write(b"")
    assert await asyncio.to_thread(story.read) == b"in time"
