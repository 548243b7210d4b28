"""The lines about a start where nothing can be redrawn: what they say, and when."""

import asyncio

import pytest

from hvdrun.console.start_line import StartNotice
from tests.waiting import LIMIT_SECONDS, in_loop


class Said(list[str]):
    """Sentences, and an event when there are so many."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self._count = count
        self.all_said = asyncio.Event()

    def __call__(self, sentence: str) -> None:
        """Say it."""
        self.append(sentence)
        if len(self) == self._count:
            self.all_said.set()


@pytest.mark.parametrize(
    ("hosts", "size", "begin", "end"),
    [
        (["localhost"], 2, "starting 2 workers on localhost ...", "2 workers ready after 12.0 s"),
        (["a", "b"], 1, "starting 1 worker on 2 hosts ...", "1 worker ready after 12.0 s"),
        ([], 4, "starting 4 workers ...", "4 workers ready after 12.0 s"),
    ],
)
@pytest.mark.parametrize("is_closed", [True, False], ids=["by its first output", "while nothing is printed"])
@in_loop
async def test_a_long_start_is_reported_in_two_lines(
    hosts: list[str], size: int, begin: str, end: str, *, is_closed: bool
) -> None:
    said, ready = Said(1), 0
    notice = StartNotice(said, lambda: ready, size, hosts, lambda: 12.0)
    notice.open(asyncio.get_running_loop(), 0.0)
    await asyncio.wait_for(said.all_said.wait(), LIMIT_SECONDS)
    ready = size
    if is_closed:
        notice.close()
        notice.close()
    await asyncio.wait(asyncio.all_tasks() - {asyncio.current_task()}, timeout=LIMIT_SECONDS)
    assert said == [begin, end]


@in_loop
async def test_the_end_of_a_short_or_failed_start_is_not_reported() -> None:
    said = Said(1)
    short = StartNotice(said, lambda: 2, 2, [], lambda: 12.0)
    failed = StartNotice(said, lambda: 1, 2, [], lambda: 12.0)
    short.open(asyncio.get_running_loop(), 0.0)
    await asyncio.wait(asyncio.all_tasks() - {asyncio.current_task()}, timeout=LIMIT_SECONDS)
    assert said == []
    failed.open(asyncio.get_running_loop(), 0.0)
    await asyncio.wait_for(said.all_said.wait(), LIMIT_SECONDS)
    failed.close()
    StartNotice(None, lambda: 0, 2, []).open(asyncio.get_running_loop(), 0.0)
    assert said == ["starting 2 workers ..."]
