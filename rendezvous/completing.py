"""Work that must not be left halfway: gRPC's asyncio server fails, and says so on standard error, when its start is."""

import asyncio
from collections.abc import Coroutine
from typing import Any


async def complete(work: Coroutine[Any, Any, None]) -> None:
    """Do short work to its end, even if the caller is cancelled meanwhile; then that is raised."""
    task = asyncio.create_task(work)
    try:
        await asyncio.shield(task)
    finally:
        await asyncio.wait({task})
