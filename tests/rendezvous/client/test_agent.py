"""An agent's way to the server: what it is told, and how it goes on when the network does not."""

import asyncio
import socket
from contextlib import aclosing, closing
from itertools import count

import pytest

from rendezvous.authority import Authority
from rendezvous.client import AgentClient
from rendezvous.client.agent import _liveness
from rendezvous.client.calls import RETRY_SECONDS
from rendezvous.core.events import Joined
from rendezvous.core.model import Host
from rendezvous.errors import UnreachableError
from rendezvous.notices import Published
from tests.rendezvous.stage import A0, LIMIT_SECONDS, LOOPBACK, find_sockets, in_clean_loop, open_network, open_stage
from tests.waiting import happen

PATIENCE_SECONDS = 0.4
LEASE_SECONDS = 5.0
LONE = [Host("a", 1)]


@in_clean_loop
async def test_an_agents_client_that_is_closed_leaves_no_connection() -> None:
    async with open_stage(LONE) as stage:
        sockets = find_sockets()
        async with stage.agent("a") as client:
            await client.report(1, [A0], [], LIMIT_SECONDS)
            assert find_sockets() - sockets
        await happen(lambda: not find_sockets() - sockets)
        del client  # only now, or its end would have closed what close() had left


@in_clean_loop
async def test_a_server_that_is_not_there_is_given_up() -> None:
    async def expect_unreachable(port: int) -> None:
        client = AgentClient(f"{LOOPBACK}:{port}", "a", Authority("job").issue_agent("a"))
        with pytest.raises(UnreachableError, match=f"{LOOPBACK}:{port}"):
            await client.report(1, [], [], PATIENCE_SECONDS)
        await client.close()

    with closing(socket.create_server((LOOPBACK, 0))) as mute:  # accepts, and says nothing
        port = mute.getsockname()[1]
        await expect_unreachable(port)
    await expect_unreachable(port)  # refuses


@in_clean_loop
async def test_a_proxy_in_the_environment_is_not_for_us(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "grpc_proxy", "all_proxy"):
        monkeypatch.setenv(name, "http://192.0.2.1:3128")
    async with open_stage(LONE) as stage, stage.agent("a") as agent:
        await agent.report(1, [A0], [], LIMIT_SECONDS)
        assert stage.server.state.last_heard["a"] is not None


@pytest.mark.parametrize("lease_seconds", [5.0, 30.0, 600.0])
def test_silence_is_noticed_and_a_connection_tried_while_the_lease_runs(lease_seconds: float) -> None:
    options = dict(_liveness(lease_seconds))
    noticed = options["grpc.keepalive_time_ms"] + options["grpc.http2.ping_timeout_ms"]
    assert options["grpc.keepalive_timeout_ms"] == options["grpc.http2.ping_timeout_ms"]
    assert noticed + options["grpc.min_reconnect_backoff_ms"] <= 0.7 * 1000 * lease_seconds


@in_clean_loop
async def test_a_connection_that_was_forgotten_in_silence_is_replaced() -> None:
    async with (
        open_stage(LONE) as stage,
        open_network(stage.port) as network,
        stage.agent("a", address=network.address, lease_seconds=LEASE_SECONDS) as agent,
        aclosing(agent.watch()) as notices,
    ):
        watching = asyncio.ensure_future(anext(notices))  # as an agent does; else nobody would miss the connection
        await agent.report(1, [A0], [], LIMIT_SECONDS)
        network.forget()
        async with asyncio.timeout(LIMIT_SECONDS):
            await report_until_heard(agent, LEASE_SECONDS)
        stage.server.tell(Joined(A0))  # the watch has come back as well
        async with asyncio.timeout(LIMIT_SECONDS):
            assert isinstance(await watching, Published)


async def report_until_heard(agent: AgentClient, lease_seconds: float) -> None:
    for number in count(2):
        try:
            await agent.report(number, [A0], [], lease_seconds / 6)
        except UnreachableError:
            await asyncio.sleep(RETRY_SECONDS)
        else:
            break
