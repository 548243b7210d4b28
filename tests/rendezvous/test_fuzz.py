"""The server's port under fire: strangers get nowhere, and the job joins, continues and ends well meanwhile."""

import asyncio
import os
import random
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest

import rendezvous.server.server
from rendezvous.core.messages import Exited, Finish
from rendezvous.core.model import Host
from rendezvous.errors import CallRefusedError, UnreachableError
from rendezvous.server.server import MAX_MESSAGE_BYTES
from rendezvous.wire.orders import SERVER_NAME
from tests.rendezvous.fire import burning, holding, make_hello
from tests.rendezvous.stage import A0, A1, LOOPBACK, in_clean_loop, in_thread, open_stage, open_worker
from tests.waiting import LIMIT_SECONDS

SEED = int(os.environ.get("HVDRUN_FUZZ_SEED", "1"))
IDLE = 1000
STRANGERS = 12
GENERATIONS = 5
KINDS_OF_STRANGERS = 6  # of strangers
OF_EACH_KIND = 3
METHODS = ("Join", "OpenSequencer", "Declare", "Report", "Watch")


@in_clean_loop
async def test_a_job_succeeds_while_random_bytes_reach_its_ports(path: Path) -> None:
    async with (
        open_stage([Host("a", 2)]) as stage,
        burning(LOOPBACK, stage.port, seed=SEED, strangers=STRANGERS, idle=IDLE) as fire,
        stage.agent("a") as agent,
        stage.relay("a", path),
        open_worker(path, A0) as a0,
        open_worker(path, A1) as a1,
    ):
        generation = 0
        while generation < GENERATIONS or len(fire.done) < KINDS_OF_STRANGERS or min(fire.done.values()) < OF_EACH_KIND:
            first, second = await asyncio.gather(*(in_thread(partial(client.join, generation)) for client in (a0, a1)))
            generation += 1
            assert first.generation == second.generation == generation
            assert await in_thread(partial(a1.await_sequencer, generation)) == stage.sequencing.endpoint
            await agent.report(generation, [A0, A1], [], LIMIT_SECONDS)
        await agent.report(generation + 1, [], [Exited(A0, 0), Exited(A1, 0)], LIMIT_SECONDS)
        finish = stage.effects[-1]
        assert isinstance(finish, Finish)
        assert finish.outcome.exit_code == 0


@in_clean_loop
async def test_malformed_messages_of_one_host_do_not_harm_the_others() -> None:
    chance = random.Random(SEED)  # noqa: S311 - a story, not a secret
    async with open_stage() as stage, stage.agent("a") as agent:
        credential = stage.authority.issue_agent("b")
        shown = grpc.ssl_channel_credentials(credential.authority, credential.private_key, credential.certificate)
        options = (("grpc.ssl_target_name_override", SERVER_NAME),)
        async with grpc.aio.secure_channel(stage.address, shown, options=options) as channel:
            before = stage.server.state
            for size in (0, 1, 10, 1000, 100_000, MAX_MESSAGE_BYTES + 1):
                for method in METHODS:
                    await expect_refusal(channel, method, chance.randbytes(size))
            await expect_refusal(channel, "NoSuchMethod", b"")
        assert (stage.server.state.workers, stage.server.state.phase) == (before.workers, before.phase)
        await agent.report(1, [A0, A1], [], LIMIT_SECONDS)
        assert stage.server.state.last_heard["a"] is not None
        assert stage.server.state.last_heard["b"] is None


async def expect_refusal(channel: grpc.aio.Channel, method: str, data: bytes) -> None:
    name = f"/hvdrun.rendezvous.v1.Rendezvous/{method}"
    call: Any = channel.unary_stream(name) if method == "Watch" else channel.unary_unary(name)
    async with asyncio.timeout(LIMIT_SECONDS):
        answering = call(data)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await (answering.read() if method == "Watch" else answering)
    assert caught.value.code() is not grpc.StatusCode.UNAVAILABLE


@in_clean_loop
async def test_a_message_that_is_too_large_is_refused_and_not_retried() -> None:
    async with open_stage() as stage, stage.agent("a") as agent:
        with pytest.raises(CallRefusedError, match="larger than max"):
            await agent.report(1, [], [Exited(A0, 127, "x" * MAX_MESSAGE_BYTES)], LIMIT_SECONDS)


def shorten_handshakes(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    options = dict(rendezvous.server.server._OPTIONS) | {"grpc.server_handshake_timeout_ms": int(1000 * seconds)}
    monkeypatch.setattr(rendezvous.server.server, "_OPTIONS", tuple(options.items()))


@in_clean_loop
async def test_a_connection_without_a_handshake_is_closed_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    shorten_handshakes(monkeypatch, 0.2)
    async with open_stage() as stage, asyncio.timeout(LIMIT_SECONDS):
        for said in (b"", make_hello()):
            reader, writer = await asyncio.open_connection(LOOPBACK, stage.port)
            writer.write(said)
            with suppress(ConnectionResetError):
                await reader.read()  # to the end
            writer.transport.abort()


@in_clean_loop
async def test_idle_connections_keep_agents_out_for_one_handshake_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shorten_handshakes(monkeypatch, 2.0)
    monkeypatch.setattr(rendezvous.server.server, "count_connections", lambda: 20)
    async with open_stage() as stage, holding(LOOPBACK, stage.port, 30), stage.agent("a") as agent:
        with pytest.raises(UnreachableError):
            await agent.report(1, [A0], [], 0.1)
        async with asyncio.timeout(LIMIT_SECONDS):
            while stage.server.state.last_heard["a"] is None:
                with suppress(UnreachableError):
                    await agent.report(2, [A0], [], LIMIT_SECONDS)
                await asyncio.sleep(0.05)
