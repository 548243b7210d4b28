"""Starts and stops gRPC's servers, neither halfway nor without a limit."""

import asyncio
from collections.abc import Iterable

import grpc

LIMIT_SECONDS = 10.0  # a start takes one turn of the loop, a stop that of all calls


async def start(server: grpc.aio.Server) -> None:
    """Start a server to its end, even if the caller is cancelled meanwhile: gRPC complains of one that is left halfway.

    Raises:
        TimeoutError: it does not start.
    """
    starting = asyncio.create_task(server.start())
    try:
        async with asyncio.timeout(LIMIT_SECONDS):
            await asyncio.shield(starting)
    except TimeoutError:
        starting.cancel()
        raise TimeoutError(f"gRPC's server has not started within {LIMIT_SECONDS:g} s") from None
    finally:
        await asyncio.wait({starting}, timeout=LIMIT_SECONDS)


async def stop(servers: Iterable[grpc.aio.Server], grace_seconds: float | None = None) -> None:
    """Stop servers, whose calls have this long to end by themselves; one that does not stop is left."""
    stopping = {asyncio.create_task(server.stop(grace_seconds)) for server in servers}
    if not stopping:
        return
    try:
        done, _ = await asyncio.wait(stopping, timeout=LIMIT_SECONDS)
    finally:
        for task in stopping:
            task.cancel()
    for task in done:
        task.result()
