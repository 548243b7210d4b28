"""gRPC's servers that neither start nor stop hold nobody up."""

import asyncio
from typing import cast

import grpc
import pytest

from rendezvous.server import serving
from tests.waiting import in_loop


class Stuck:
    """A server that does what it is told for ever."""

    async def start(self) -> None:
        """See `grpc.aio.Server`."""
        await asyncio.Event().wait()

    async def stop(self, _grace: float | None) -> None:
        """See `grpc.aio.Server`."""
        await asyncio.Event().wait()


@in_loop
async def test_a_server_that_is_stuck_is_not_waited_for_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "LIMIT_SECONDS", 0.05)
    server = cast("grpc.aio.Server", Stuck())
    with pytest.raises(TimeoutError, match="has not started within"):
        await serving.start(server)
    await serving.stop([server, server])
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == {asyncio.current_task()}
