"""Blocking calls beside the event loop."""

import asyncio
import threading

import pytest

from hvdrun.processes.background import in_thread
from tests.waiting import LIMIT_SECONDS, in_loop


@in_loop
async def test_a_call_returns_or_raises_where_it_is_waited_for() -> None:
    assert await in_thread(lambda: threading.current_thread().daemon)
    with pytest.raises(ZeroDivisionError):
        await in_thread(lambda: 1 // 0)


@in_loop
async def test_a_call_that_nobody_waits_for_any_more_is_ended() -> None:
    released = threading.Event()
    ended = threading.Event()

    def work() -> None:
        released.wait()
        ended.set()

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await in_thread(work, abort=released.set)
    assert ended.wait(LIMIT_SECONDS)


def test_a_call_that_never_ends_does_not_hold_up_the_loop_s_end() -> None:
    stuck = threading.Event()

    async def scenario() -> None:
        waiting = asyncio.create_task(in_thread(stuck.wait))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)

    asyncio.run(scenario())
    stuck.set()  # its result comes to a loop that has closed
