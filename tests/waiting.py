"""Waiting for what no event reports, such as another process's end.

The limit is far beyond what a busy machine takes: it ends only what hangs.
"""

import asyncio
import time
from collections.abc import Callable

LIMIT_SECONDS = 30.0
_PAUSE_SECONDS = 0.005


def wait_until(holds: Callable[[], bool], what: str = "it") -> None:
    """Block until this holds.

    what: what is waited for, for the error message.
    """
    deadline = time.monotonic() + LIMIT_SECONDS
    while not holds():
        assert time.monotonic() < deadline, f"{what} did not happen within {LIMIT_SECONDS:.0f} s"
        time.sleep(_PAUSE_SECONDS)


async def happen(holds: Callable[[], bool], what: str = "it") -> None:
    """Wait until this holds, while the loop runs."""
    deadline = time.monotonic() + LIMIT_SECONDS
    while not holds():
        assert time.monotonic() < deadline, f"{what} did not happen within {LIMIT_SECONDS:.0f} s"
        await asyncio.sleep(_PAUSE_SECONDS)
