"""A worker's and an agent's way to the rendezvous: what they are told, and how long they wait.

Long because each thing that can go wrong on the way has a story of its own.
"""

import asyncio
import os
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager, closing
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, NoReturn

import grpc
import psutil
import pytest

import rendezvous.client
from rendezvous.authority import Authority
from rendezvous.client import AgentClient, WorkerClient
from rendezvous.core.events import Exited, Joined, Stopped
from rendezvous.core.model import Assignment, Endpoint, Host, Membership, Slot, Worker
from rendezvous.errors import CallRefusedError, JoinRefusedError, SequencerStartError, UnreachableError
from rendezvous.notices import KEY_BYTES, Published
from rendezvous.server import Server
from tests.rendezvous.stage import (
    A0,
    A1,
    LIMIT_SECONDS,
    LOOPBACK,
    Stage,
    find_sockets,
    happen,
    in_thread,
    make_bootstrap,
    open_network,
    open_stage,
    open_worker,
    run,
)

STORE = Endpoint("10.0.0.1", 4711)
PAIR = [Host("a", 2)]
LONE = [Host("a", 1)]
KEY = b"k" * KEY_BYTES
ALONE = Membership(1, Assignment(0, 1, 0, 1, 0, 1), KEY)
PATIENCE_SECONDS = 0.4
SLACK_SECONDS = 2.0  # for a busy machine


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "agent.sock"


@pytest.fixture(autouse=True)
def _known_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Server, "_make_key", lambda *_: KEY)


@pytest.fixture
def impatience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let workers give up early."""
    monkeypatch.setattr(rendezvous.client, "_MARGIN_SECONDS", 0.0)


def assert_gives_up(call: Callable[[], object], limit_seconds: float) -> UnreachableError:
    started = time.monotonic()
    with pytest.raises(UnreachableError) as caught:
        call()
    assert 0.5 * limit_seconds < time.monotonic() - started < limit_seconds + SLACK_SECONDS
    return caught.value


def test_a_worker_joins_and_is_told_its_numbers_and_the_store(path: Path) -> None:
    async def story() -> None:
        async with (
            open_stage(PAIR) as stage,
            stage.relay("a", path),
            open_worker(path, A0) as first,
            open_worker(path, A1) as second,
        ):
            joining = asyncio.create_task(in_thread(lambda: first.join(0)))
            assert await in_thread(lambda: second.join(0)) == Membership(1, Assignment(1, 2, 1, 2, 0, 1), KEY)
            assert await joining == Membership(1, Assignment(0, 2, 0, 2, 0, 1), KEY)
            finding = asyncio.create_task(in_thread(lambda: second.await_store(1)))
            await in_thread(lambda: first.open_store(1, STORE))
            assert await in_thread(lambda: first.await_store(1)) == STORE
            assert await finding == STORE

    run(story())


def test_a_worker_that_joins_again_waits_for_a_newer_generation(path: Path) -> None:
    async def story() -> None:
        async with open_stage(LONE) as stage, stage.relay("a", path):
            for after in range(3):
                async with open_worker(path, A0) as client:
                    membership = await in_thread(partial(client.join, after))
                    assert membership == Membership(after + 1, ALONE.assignment, KEY)
                    moved = Endpoint(LOOPBACK, 4711 + after)
                    await in_thread(partial(client.open_store, after + 1, moved))
                    assert await in_thread(partial(client.await_store, after + 1)) == moved

    run(story())


def test_a_worker_may_repeat_all_it_says(path: Path) -> None:
    async def story() -> None:
        async with open_stage(LONE) as stage, stage.relay("a", path), open_worker(path, A0) as client:
            for _ in range(2):
                assert await in_thread(lambda: client.join(0)) == ALONE
                await in_thread(lambda: client.open_store(1, STORE))
                assert await in_thread(lambda: client.await_store(1)) == STORE
            assert stage.server.state.number == 1

    run(story())


def test_a_join_that_can_never_be_met_is_refused_with_its_reason(path: Path) -> None:
    async def story() -> None:
        async with open_stage(PAIR) as stage, stage.relay("a", path), open_worker(path, A0) as client:
            joining = asyncio.create_task(in_thread(lambda: client.join(0)))
            await happen(lambda: stage.server.state.waiting == 1)
            stage.server.tell(Exited(A1, 0))
            with pytest.raises(JoinRefusedError, match=r"rank 1 \(a:1\) has ended") as caught:
                await joining
            assert caught.value.reason in str(caught.value)

    run(story())


def test_a_late_join_is_told_that_the_job_is_over(path: Path) -> None:
    async def story() -> None:
        async with open_stage(LONE) as stage, stage.relay("a", path), open_worker(path, A0) as client:
            stage.server.tell(Stopped(130, "somebody pressed Ctrl-C", at_once=True))
            with pytest.raises(JoinRefusedError, match="somebody pressed Ctrl-C"):
                await in_thread(lambda: client.join(0))

    run(story())


def test_the_refusal_of_one_worker_is_no_other_workers(path: Path) -> None:
    async def story() -> None:
        async with open_stage(PAIR) as stage, stage.relay("a", path), open_worker(path, A0) as client:
            stage.server.board("a").post(
                Published(1, ((A1, Assignment(0, 1, 0, 1, 0, 1)),), KEY)
            )  # not with this worker
            stale = Worker(Slot("a", 0), 2)
            joining = asyncio.create_task(in_thread(lambda: client.join(0)))
            await happen(lambda: stage.server.state.waiting == 1)
            async with open_worker(path, stale) as other:
                with pytest.raises(CallRefusedError, match="incarnation 2 of slot a:0 was never intended"):
                    await in_thread(lambda: other.join(0))
            async with open_worker(path, A1) as neighbour:
                await in_thread(lambda: neighbour.join(0))
            assert await joining == Membership(1, Assignment(0, 2, 0, 2, 0, 1), KEY)

    run(story())


def test_a_worker_is_told_at_once_what_contradicts_the_state(path: Path) -> None:
    async def story() -> None:
        async with open_stage(PAIR) as stage, stage.relay("a", path), open_worker(path, A1) as client:
            with pytest.raises(CallRefusedError, match="generation 5 has not been published"):
                await in_thread(lambda: client.join(5))
            async with open_worker(path, A0) as other:
                await asyncio.gather(in_thread(lambda: other.join(0)), in_thread(lambda: client.join(0)))
            with pytest.raises(CallRefusedError, match="only rank 0"):
                await in_thread(lambda: client.open_store(1, STORE))

    run(story())


def test_a_worker_is_told_where_the_sequencer_is_or_why_there_is_none(path: Path) -> None:
    async def story() -> None:
        async with open_stage(LONE) as stage, stage.relay("a", path), open_worker(path, A0) as client:
            await in_thread(lambda: client.join(0))
            assert await in_thread(lambda: client.await_sequencer(1)) == stage.sequencing.endpoint
            stage.sequencing.failure = "on a, there is no NumPy"
            await in_thread(lambda: client.join(1))
            with pytest.raises(SequencerStartError, match="on a, there is no NumPy"):
                await in_thread(lambda: client.await_sequencer(2))

    run(story())


def test_who_has_waited_for_a_sequencer_still_finds_the_store(path: Path) -> None:
    async def story() -> None:
        async with open_stage(LONE) as stage, stage.relay("a", path), open_worker(path, A0) as client:
            await in_thread(lambda: client.join(0))
            assert await in_thread(lambda: client.await_sequencer(1)) == stage.sequencing.endpoint
            await in_thread(lambda: client.open_store(1, STORE))
            assert await in_thread(lambda: client.await_store(1)) == STORE

    run(story())


@pytest.mark.usefixtures("impatience")
def test_a_sequencer_of_which_nothing_is_heard_is_given_up_within_the_limit(path: Path) -> None:
    async def story() -> None:
        bootstrap = make_bootstrap(path, A0, start_timeout_seconds=PATIENCE_SECONDS)
        async with open_stage(LONE) as stage, stage.relay("a", path):
            with closing(WorkerClient(bootstrap)) as client:
                await in_thread(lambda: client.join(0))
                error = await in_thread(lambda: assert_gives_up(lambda: client.await_sequencer(7), PATIENCE_SECONDS))
                assert "the sequencer at generation 7" in str(error)

    run(story())


def test_a_peer_that_left_is_known_by_its_rank(path: Path) -> None:
    async def story() -> None:
        async with open_stage(PAIR) as stage, stage.relay("a", path), open_worker(path, A0) as client:
            async with open_worker(path, A1) as other:
                await asyncio.gather(in_thread(lambda: client.join(0)), in_thread(lambda: other.join(0)))
            assert await in_thread(lambda: client.find_departed(1, 0.05)) is None
            stage.server.tell(Exited(A1, 0))
            assert await in_thread(lambda: client.find_departed(1, LIMIT_SECONDS)) == 1

    run(story())


def test_who_waits_for_the_store_of_a_rank_0_that_has_ended_is_told(path: Path) -> None:
    async def story() -> None:
        async with (
            open_stage(PAIR) as stage,
            stage.relay("a", path),
            open_worker(path, A0) as client,
            open_worker(path, A1) as other,
        ):
            await asyncio.gather(in_thread(lambda: client.join(0)), in_thread(lambda: other.join(0)))
            waiting = asyncio.create_task(in_thread(lambda: other.await_store(1)))
            stage.server.tell(Exited(A0, 0))
            with pytest.raises(JoinRefusedError, match="rank 0 has ended"):
                await waiting

    run(story())


@pytest.mark.usefixtures("impatience")
def test_an_agent_that_is_not_there_is_given_up_within_the_limit(path: Path) -> None:
    bootstrap = make_bootstrap(path, A0, start_timeout_seconds=PATIENCE_SECONDS)
    with closing(WorkerClient(bootstrap)) as client:
        error = assert_gives_up(lambda: client.join(0), PATIENCE_SECONDS)
        assert str(path) in str(error)
        assert_gives_up(lambda: client.await_store(1), PATIENCE_SECONDS)


def test_a_store_cannot_be_announced_to_nobody(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendezvous.client, "CALL_SECONDS", PATIENCE_SECONDS)
    with closing(WorkerClient(make_bootstrap(path, A0))) as client:
        assert_gives_up(lambda: client.open_store(1, STORE), PATIENCE_SECONDS)


@pytest.mark.usefixtures("impatience")
def test_an_agent_that_does_not_answer_is_given_up_within_the_limit(path: Path) -> None:
    with closing(socket.socket(socket.AF_UNIX)) as mute:
        mute.bind(str(path))
        mute.listen()
        bootstrap = make_bootstrap(path, A0, start_timeout_seconds=PATIENCE_SECONDS)
        with closing(WorkerClient(bootstrap)) as client:
            assert_gives_up(lambda: client.join(0), PATIENCE_SECONDS)


@pytest.mark.usefixtures("impatience")
def test_peers_that_do_not_come_are_given_up_within_the_limit(path: Path) -> None:
    async def story() -> None:
        bootstrap = make_bootstrap(path, A0, start_timeout_seconds=PATIENCE_SECONDS)
        async with open_stage(PAIR) as stage, stage.relay("a", path):
            with closing(WorkerClient(bootstrap)) as client:
                await in_thread(lambda: assert_gives_up(lambda: client.join(0), PATIENCE_SECONDS))
            assert stage.server.state.waiting == 1

    run(story())


@pytest.mark.usefixtures("impatience")
def test_a_store_that_is_not_opened_is_given_up_within_the_limit(path: Path) -> None:
    async def story() -> None:
        bootstrap = make_bootstrap(path, A0, start_timeout_seconds=PATIENCE_SECONDS)
        async with open_stage(LONE) as stage, stage.relay("a", path):
            with closing(WorkerClient(bootstrap)) as client:
                await in_thread(lambda: client.join(0))
                error = await in_thread(lambda: assert_gives_up(lambda: client.await_store(1), PATIENCE_SECONDS))
                assert "rank 0's store" in str(error)

    run(story())


def test_a_worker_waits_for_an_agent_that_is_just_starting(path: Path) -> None:
    async def story() -> None:
        async with open_stage(LONE) as stage, open_worker(path, A0) as client:
            joining = asyncio.create_task(in_thread(lambda: client.join(0)))
            await asyncio.wait({joining}, timeout=0.2)  # it may have knocked in vain
            async with stage.relay("a", path):
                assert await joining == ALONE

    run(story())


@pytest.mark.parametrize("name", ["a b", "50%25", "a#b", "a?b", "é", os.fsdecode(b"\xff")])
def test_the_socket_may_lie_in_a_folder_of_any_name(tmp_path: Path, name: str) -> None:
    async def story() -> None:
        folder = tmp_path / name
        folder.mkdir()
        path = folder / "agent.sock"
        async with open_stage(LONE) as stage, stage.relay("a", path), open_worker(path, A0) as client:
            assert path.is_socket()
            assert await in_thread(lambda: client.join(0)) == ALONE

    run(story())


def test_a_workers_client_that_is_closed_leaves_neither_thread_nor_connection(path: Path) -> None:
    async def story() -> None:
        async with open_stage(LONE) as stage, stage.relay("a", path):
            threads = set(threading.enumerate())
            with closing(WorkerClient(make_bootstrap(path, A0))) as client:
                await in_thread(partial(client.join, 0))
                assert _working(threads)
                assert _count_connections(path) == 1
            await happen(lambda: not _working(threads) and not _count_connections(path))
            del client  # only now, or its end would have closed what close() had left

    run(story())


def test_an_agents_client_that_is_closed_leaves_no_connection() -> None:
    async def story() -> None:
        async with open_stage(LONE) as stage:
            sockets = find_sockets()
            async with stage.agent("a") as client:
                await client.report(1, [A0], [], LIMIT_SECONDS)
                assert find_sockets() - sockets
            await happen(lambda: not find_sockets() - sockets)
            del client  # only now, see above

    run(story())


def test_a_generation_that_the_worker_has_left_is_not_told_again(path: Path) -> None:
    async def story() -> None:
        async with (
            open_stage(PAIR) as stage,
            stage.relay("a", path),
            open_worker(path, A0) as first,
            open_worker(path, A1) as second,
        ):
            for generation in (1, 2):
                joining = asyncio.create_task(in_thread(partial(first.join, generation - 1)))
                await happen(lambda: stage.server.state.waiting == 1)
                assert (await in_thread(partial(second.join, generation - 1))).generation == generation
                assert (await joining).generation == generation

    run(story())


def _count_connections(path: Path) -> int:
    return sum(str(found.laddr) == str(path) for found in psutil.Process().net_connections("unix")) - 1  # one listens


def _working(before: set[threading.Thread]) -> list[threading.Thread]:
    """Threads that have come and are not of the pool in which these tests wait."""
    return [thread for thread in set(threading.enumerate()) - before if not thread.name.startswith("asyncio_")]


def test_a_server_that_is_not_there_is_given_up_within_the_limit() -> None:
    async def story() -> None:
        with closing(socket.create_server((LOOPBACK, 0))) as mute:  # accepts, and says nothing
            port = mute.getsockname()[1]
            await expect_unreachable(port)
        await expect_unreachable(port)  # refuses

    async def expect_unreachable(port: int) -> None:
        client = AgentClient(f"{LOOPBACK}:{port}", "a", Authority("job").issue_agent("a"))
        started = time.monotonic()
        with pytest.raises(UnreachableError, match=f"{LOOPBACK}:{port}"):
            await client.report(1, [], [], PATIENCE_SECONDS)
        assert time.monotonic() - started < PATIENCE_SECONDS + SLACK_SECONDS
        await client.close()

    run(story())


def test_a_proxy_in_the_environment_is_not_for_us(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "grpc_proxy", "all_proxy"):
        monkeypatch.setenv(name, "http://192.0.2.1:3128")

    async def story() -> None:
        async with open_stage(LONE) as stage, stage.agent("a") as agent:
            await agent.report(1, [A0], [], LIMIT_SECONDS)
            assert stage.server.state.last_heard["a"] is not None

    run(story())


def test_a_report_goes_through_once_the_network_is_mended() -> None:
    async def story() -> None:
        async with (
            open_stage(LONE) as stage,
            open_network(stage.port) as network,
            stage.agent("a", address=network.address) as agent,
        ):
            await agent.report(1, [A0], [], LIMIT_SECONDS)
            await network.cut()
            with pytest.raises(UnreachableError):
                await agent.report(2, [A0], [Exited(A0, 0)], PATIENCE_SECONDS)
            await network.mend()
            number = 2
            async with asyncio.timeout(LIMIT_SECONDS):
                while not stage.server.state.ended:
                    number += 1
                    try:
                        await agent.report(number, [], [Exited(A0, 0)], PATIENCE_SECONDS)
                    except UnreachableError:
                        await asyncio.sleep(rendezvous.client.RETRY_SECONDS)
            assert network.made > 1

    run(story())


def test_a_watch_that_is_refused_says_so() -> None:
    async def story() -> None:
        async with open_stage(LONE) as stage:
            client = AgentClient(stage.address, "b", stage.authority.issue_agent("a"))
            with pytest.raises(CallRefusedError, match=stage.address):
                async with asyncio.timeout(LIMIT_SECONDS), aclosing(client.watch()) as notices:
                    await anext(notices)
            await client.close()

    run(story())


LEASE_SECONDS = 5.0


def test_a_connection_that_was_forgotten_in_silence_is_replaced_while_the_lease_runs() -> None:
    async def story() -> None:
        async with (
            open_stage(LONE) as stage,
            open_network(stage.port) as network,
            make_agent(stage, network.address, LEASE_SECONDS) as agent,
            aclosing(agent.watch()) as notices,
        ):
            watching = asyncio.ensure_future(anext(notices))  # as an agent does; else nobody would miss the connection
            await agent.report(1, [A0], [], LIMIT_SECONDS)
            network.forget()
            started = time.monotonic()
            async with asyncio.timeout(LIMIT_SECONDS):
                await report_until_heard(agent, LEASE_SECONDS)
            assert time.monotonic() - started < LEASE_SECONDS
            stage.server.tell(Joined(A0))  # the watch has come back as well
            async with asyncio.timeout(LIMIT_SECONDS):
                assert isinstance(await watching, Published)

    run(story())


@asynccontextmanager
async def make_agent(stage: Stage, address: str, lease_seconds: float) -> AsyncIterator[AgentClient]:
    client = AgentClient(address, "a", stage.authority.issue_agent("a"), lease_seconds)
    try:
        yield client
    finally:
        await client.close()


async def report_until_heard(agent: AgentClient, lease_seconds: float) -> None:
    for number in count(2):
        try:
            await agent.report(number, [A0], [], lease_seconds / 6)
        except UnreachableError:
            await asyncio.sleep(rendezvous.client.RETRY_SECONDS)
        else:
            break


@pytest.mark.parametrize(
    ("code", "is_final"),
    [
        (grpc.StatusCode.UNAVAILABLE, False),
        (grpc.StatusCode.DEADLINE_EXCEEDED, False),
        (grpc.StatusCode.CANCELLED, False),
        (grpc.StatusCode.INTERNAL, True),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, True),
        (grpc.StatusCode.PERMISSION_DENIED, True),
        (grpc.StatusCode.UNIMPLEMENTED, True),
    ],
)
def test_only_a_broken_way_is_tried_again(path: Path, code: grpc.StatusCode, *, is_final: bool) -> None:
    answers = [(code, "not in the mood"), (grpc.StatusCode.FAILED_PRECONDITION, "enough")]

    async def answer(_: bytes, context: grpc.aio.ServicerContext[Any, Any]) -> NoReturn:
        await context.abort(*answers.pop(0))

    async def story() -> None:
        server = grpc.aio.server()
        methods: dict[str, grpc.RpcMethodHandler[Any, Any]] = {"Join": grpc.unary_unary_rpc_method_handler(answer)}
        service = grpc.method_handlers_generic_handler("hvdrun.rendezvous.v1.Rendezvous", methods)
        server.add_generic_rpc_handlers((service,))
        server.add_insecure_port(rendezvous.client.name_socket(path))
        await server.start()
        async with open_worker(path, A0) as client:
            with pytest.raises(CallRefusedError, match="not in the mood" if is_final else "enough"):
                await in_thread(lambda: client.join(0))
        await server.stop(None)

    run(story())
