"""Waiting without a clock: the limits are far beyond what a busy machine takes, and end only what hangs."""

import asyncio
import functools
import time
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec

LIMIT_SECONDS = 60.0
_TEST_LIMIT_SECONDS = 100.0
_PAUSE_SECONDS = 0.005

P = ParamSpec("P")


def wait_until(holds: Callable[[], bool], what: str = "it", limit_seconds: float = LIMIT_SECONDS) -> None:
    """Block until this holds, where no event reports it.

    what: what is waited for, for the error message.
    """
    deadline = time.monotonic() + limit_seconds
    while not holds():
        assert time.monotonic() < deadline, f"{what} did not happen within {limit_seconds:.0f} s"
        time.sleep(_PAUSE_SECONDS)


async def happen(holds: Callable[[], bool], what: str = "it") -> None:
    """Wait until this holds, while the loop runs."""
    deadline = time.monotonic() + LIMIT_SECONDS
    while not holds():
        assert time.monotonic() < deadline, f"{what} did not happen within {LIMIT_SECONDS:.0f} s"
        await asyncio.sleep(_PAUSE_SECONDS)


def in_loop(test: Callable[P, Coroutine[object, object, None]]) -> Callable[P, None]:
    """Run an asynchronous test in a new event loop, which it leaves without an open connection.

    The accepted side of a connection counts, too: garbage collection would report it in a later test.
    """

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        async def run_limited() -> None:
            async with asyncio.timeout(_TEST_LIMIT_SECONDS):
                await test(*args, **kwargs)

        with asyncio.Runner() as runner:
            loop: Any = runner.get_loop()
            runner.run(run_limited())
        opened = loop._transports.values()  # of asyncio's selector event loop: its sockets
        left = [str(transport) for transport in opened if transport._sock is not None]
        assert not left, f"connections that the test has not closed: {left}"

    return run
