"""Imports gRPC, silent, and starts and stops its servers, neither halfway nor without a limit.

To be imported before gRPC itself, whose C core writes a line for every stranger that fails a handshake: that is the
launcher's terminal, or the last line that an agent is known by. How much it may say it reads from its environment
variable, once, while it is imported; so the variable is set just for that, and what this process starts does not
inherit it. A user who has set it is obeyed. The workers' own processes are left alone: gRPC may be the script's there.
"""

import asyncio
import importlib
import os
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import grpc

_VERBOSITY = "GRPC_VERBOSITY"
LIMIT_SECONDS = 10.0  # a start takes one turn of the loop, a stop that of all calls


def _import_quietly() -> None:
    """Import gRPC, silent unless the user wants to hear it; does nothing where it has been imported before."""
    if _VERBOSITY in os.environ:
        return
    os.environ[_VERBOSITY] = "NONE"
    try:
        importlib.import_module("grpc")
    finally:
        del os.environ[_VERBOSITY]


_import_quietly()


async def start(server: "grpc.aio.Server") -> None:
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


async def stop(servers: Iterable["grpc.aio.Server"], grace_seconds: float | None = None) -> None:
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
