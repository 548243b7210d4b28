"""Imports gRPC without its log, and starts and stops its servers with a time limit.

Import this before gRPC itself. gRPC's C core writes a line for each failed handshake: to the launcher's terminal, or as
an agent's last words, which hvdrun reports. It reads GRPC_VERBOSITY once, during its import. So the variable is set for
the import only, and child processes do not inherit it. A value that the user has set is kept. Workers do not import
this: gRPC may belong to the script there.
"""

import asyncio
import contextlib
import importlib
import os
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any, TypeAlias

from rendezvous.core.messages import IllegalEventError
from rendezvous.errors import WireError

_VERBOSITY = "GRPC_VERBOSITY"
LIMIT_SECONDS = 10.0  # to start takes one turn of the loop; to stop takes as long as the calls


def _import_quietly() -> None:
    """Import gRPC, without its log unless the user has set GRPC_VERBOSITY."""
    if _VERBOSITY in os.environ:
        return
    os.environ[_VERBOSITY] = "NONE"
    try:
        importlib.import_module("grpc")
    finally:
        del os.environ[_VERBOSITY]


_import_quietly()

import grpc  # noqa: E402 - after its quiet import

Context: TypeAlias = grpc.aio.ServicerContext[Any, Any]  # of a call


@contextlib.asynccontextmanager
async def answer_errors(context: Context, fail: Callable[[BaseException], None]) -> AsyncIterator[None]:
    """Answer a faulty call with one sentence about the fault; where a relay passes calls on, with its server's error.

    fail: takes any other error, which gRPC would only log.
    """
    try:
        yield
    except IllegalEventError as error:
        await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
    except WireError as error:
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
    except grpc.aio.AioRpcError as error:
        await context.abort(error.code(), error.details() or "")
    except grpc.aio.BaseError:  # the call has been answered, or a connection is closed
        raise
    except Exception as error:  # noqa: BLE001 - `fail` raises it in the owner
        fail(error)
        await context.abort(grpc.StatusCode.INTERNAL, f"a bug in hvdrun, {type(error).__name__}, ends this service")


async def start(server: grpc.aio.Server) -> None:
    """Start a server, and complete the start if the caller is cancelled: gRPC logs an error about half a start.

    Raises:
        TimeoutError: it does not start.
    """
    starting = asyncio.create_task(server.start(), name="start a server of gRPC")
    try:
        async with asyncio.timeout(LIMIT_SECONDS):
            await asyncio.shield(starting)
    except TimeoutError:
        starting.cancel()
        raise TimeoutError(f"gRPC's server has not started within {LIMIT_SECONDS:g} s") from None
    finally:
        await asyncio.wait({starting}, timeout=LIMIT_SECONDS)


def find_reason(error: Exception) -> str:
    """What an error of gRPC says, without its advice on how to debug gRPC."""
    return str(error).partition("; set GRPC_VERBOSITY=")[0]


async def stop(servers: Iterable[grpc.aio.Server], grace_seconds: float | None = None) -> None:
    """Stop servers, whose calls may take this long to complete; a server that does not stop in time is abandoned."""
    stopping = {asyncio.create_task(server.stop(grace_seconds), name="stop a server of gRPC") for server in servers}
    if not stopping:
        return
    try:
        done, _ = await asyncio.wait(stopping, timeout=LIMIT_SECONDS)
    finally:
        for task in stopping:
            task.cancel()
    for task in done:
        task.result()
