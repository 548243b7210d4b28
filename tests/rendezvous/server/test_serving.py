"""gRPC's servers that neither start nor stop hold no caller up, and strangers that fail a handshake cost no line."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import cast

import grpc
import pytest

from rendezvous.client import WorkerClient
from rendezvous.core.model import Host
from rendezvous.errors import CallRefusedError
from rendezvous.server import serving
from tests.rendezvous.stage import A0, in_clean_loop, in_thread, open_stage, open_worker
from tests.waiting import in_loop


class Stuck:
    """A server that obeys for ever."""

    async def start(self) -> None:
        """See `grpc.aio.Server`."""
        await asyncio.Event().wait()

    async def stop(self, _grace: float | None) -> None:
        """See `grpc.aio.Server`."""
        await asyncio.Event().wait()


@in_loop
async def test_the_stop_of_a_server_that_hangs_has_a_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "LIMIT_SECONDS", 0.05)
    server = cast("grpc.aio.Server", Stuck())
    with pytest.raises(TimeoutError, match="has not started within"):
        await serving.start(server)
    await serving.stop([server, server])
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == {asyncio.current_task()}


# Fails a handshake, which gRPC itself would report on standard error, and shows what its own children would inherit.
STRANGER = """
import os
import {module}
import grpc
from rendezvous.server.authority import Authority
import asyncio
from rendezvous.core.model import Policy
from rendezvous.server.server import Server

async def main():
    async with Server(Policy.static(1), lambda _: None, Authority("job").issue_server()) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", await server.open("127.0.0.1"))
        writer.write(b"not a word of TLS")
        assert await reader.read() != b"never"
        writer.close()

asyncio.run(main())
print(os.environ.get("GRPC_VERBOSITY"))
"""


def start_stranger(module: str, **variables: str) -> tuple[str, str]:
    """Standard output and error of a process that has met a stranger."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GRPC_")}
    command = [sys.executable, "-c", STRANGER.format(module=module)]
    run = subprocess.run(command, env=kept | variables, capture_output=True, text=True, timeout=50, check=True)
    return run.stdout.strip(), run.stderr


@pytest.mark.parametrize("module", ["rendezvous.server.serving", "rendezvous.server.server", "hvdrun.agent.session"])
def test_a_failed_handshake_prints_nothing_to_standard_error(module: str) -> None:
    assert start_stranger(module) == ("None", "")


def test_a_users_grpc_verbosity_is_kept() -> None:
    output, errors = start_stranger("rendezvous.server.serving", GRPC_VERBOSITY="INFO")
    assert output == "INFO"
    assert "handshake failed" in errors.lower()


@pytest.mark.parametrize("call", [lambda worker: worker.join(0), lambda worker: worker.fail(1)], ids=["join", "fail"])
@in_clean_loop
async def test_an_unexpected_error_of_a_call_is_reported(path: Path, call: Callable[[WorkerClient], object]) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    async with open_stage([Host("a", 1)]) as stage:
        stage.sequencing.prepare = fail  # type: ignore[method-assign]  # it takes any argument
        async with stage.relay("a", path, fail, bugs=[ZeroDivisionError]), open_worker(path, A0) as worker:
            with pytest.raises(CallRefusedError, match="a bug in hvdrun, ZeroDivisionError"):
                await in_thread(partial(call, worker))
