"""A worker's way to the rendezvous: what it receives, and how long it waits."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

import rendezvous.client.worker
from rendezvous.client import WorkerClient
from rendezvous.core.messages import Depart, Exited, Interrupt, Joined, OfferResize
from rendezvous.core.model import Assignment, Endpoint, Host, Membership, Policy, Slot, Worker
from rendezvous.core.reports import Action, Done, JoinReason, PendingOperation, Report
from rendezvous.errors import (
    CallRefusedError,
    GenerationInterruptedError,
    JoinRefusedError,
    SequencerStartError,
    UnreachableError,
)
from rendezvous.wire import codec
from rendezvous.wire.notifications import KEY_BYTES, Published, Topics
from tests.rendezvous.stage import (
    A0,
    A1,
    LOOPBACK,
    Stage,
    find_sockets,
    in_clean_loop,
    in_thread,
    make_bootstrap,
    open_network,
    open_stage,
    open_worker,
)
from tests.waiting import LIMIT_SECONDS, happen

PAIR = [Host("a", 2)]
LONE = [Host("a", 1)]
KEY = b"k" * KEY_BYTES
ALONE = Membership(1, Assignment(0, 1, 0, 1, 0, 1), KEY)
PATIENCE_SECONDS = 0.4


@pytest.fixture(autouse=True)
def _known_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Topics, "_make_key", lambda *_: KEY)


@contextmanager
def open_impatient(path: Path, seconds: float = PATIENCE_SECONDS) -> Iterator[WorkerClient]:
    """A worker's client that gives up soon."""
    bootstrap = make_bootstrap(path, A0, start_timeout_seconds=seconds)
    with closing(WorkerClient(bootstrap, margin_seconds=0.0)) as client:
        yield client


@asynccontextmanager
async def open_pair(
    path: Path, policy: Policy | None = None, report: Report | None = None
) -> AsyncIterator[tuple[Stage, WorkerClient, WorkerClient]]:
    """Two workers that are members of the first generation, of a static job unless the policy is another.

    Their sequencer is still to come.
    """
    async with (
        open_stage(PAIR, policy) as stage,
        stage.relay("a", path),
        open_worker(path, A0) as first,
        open_worker(path, A1) as second,
    ):
        stage.sequencing.is_slow = True
        await asyncio.gather(*(in_thread(partial(each.join, 0, report)) for each in (first, second)))
        yield stage, first, second


def open_elastic_pair(path: Path) -> AbstractAsyncContextManager[tuple[Stage, WorkerClient, WorkerClient]]:
    """The same of an elastic job."""
    return open_pair(path, Policy.elastic(1, 4, 2, lease_seconds=LIMIT_SECONDS), Report())


@in_clean_loop
async def test_a_join_that_no_generation_can_include_is_refused_with_the_reason(path: Path) -> None:
    async with open_stage(PAIR) as stage, stage.relay("a", path), open_worker(path, A0) as client:
        joining = asyncio.create_task(in_thread(lambda: client.join(0)))
        await happen(lambda: stage.server.state.waiting == 1)
        stage.server.submit(Exited(A1, 0))
        with pytest.raises(JoinRefusedError, match=r"rank 1 \(a:1\) has exited") as caught:
            await joining
        assert caught.value.reason in str(caught.value)


@in_clean_loop
async def test_a_worker_ignores_the_refusal_of_another(path: Path) -> None:
    async with open_stage(PAIR) as stage, stage.relay("a", path), open_worker(path, A0) as client:
        stage.server.topic("a").publish(
            Published(1, ((A1, Assignment(0, 1, 0, 1, 0, 1)),), KEY)
        )  # not with this worker
        stale = Worker(Slot("a", 0), 2)
        joining = asyncio.create_task(in_thread(lambda: client.join(0)))
        await happen(lambda: stage.server.state.waiting == 1)
        async with open_worker(path, stale) as other:
            with pytest.raises(CallRefusedError, match="incarnation 2 of slot a:0 was never started"):
                await in_thread(lambda: other.join(0))
        async with open_worker(path, A1) as neighbour:
            await in_thread(lambda: neighbour.join(0))
        assert await joining == Membership(1, Assignment(0, 2, 0, 2, 0, 1), KEY)


@in_clean_loop
async def test_a_worker_receives_the_sequencers_endpoint_or_why_no_sequencer_runs(path: Path) -> None:
    async with open_stage(LONE) as stage, stage.relay("a", path), open_worker(path, A0) as client:
        await in_thread(lambda: client.join(0))
        assert await in_thread(lambda: client.await_sequencer(1)) == stage.sequencing.endpoint
        stage.sequencing.failure = "on a, there is no NumPy"
        await in_thread(lambda: client.join(1))
        with pytest.raises(SequencerStartError, match="on a, there is no NumPy"):
            await in_thread(lambda: client.await_sequencer(2))


@in_clean_loop
async def test_a_peer_that_left_is_known_by_its_rank(path: Path) -> None:
    async with open_pair(path) as (stage, client, _):
        assert await in_thread(lambda: client.find_departed(1, 0.05)) is None
        stage.server.submit(Exited(A1, 0))
        assert await in_thread(lambda: client.find_departed(1, LIMIT_SECONDS)) == 1


@in_clean_loop
async def test_a_wait_for_the_sequencer_of_a_rank_0_that_has_exited_is_refused(path: Path) -> None:
    async with open_pair(path) as (stage, _, other):
        waiting = asyncio.create_task(in_thread(lambda: other.await_sequencer(1)))
        stage.server.submit(Exited(A0, 0))
        with pytest.raises(JoinRefusedError, match="rank 0 has exited"):
            await waiting


@pytest.mark.parametrize("is_mute", [False, True])
def test_calls_to_a_missing_or_silent_agent_time_out(
    path: Path, monkeypatch: pytest.MonkeyPatch, *, is_mute: bool
) -> None:
    monkeypatch.setattr(rendezvous.client.worker, "CALL_SECONDS", PATIENCE_SECONDS)
    with closing(socket.socket(socket.AF_UNIX)) as mute, open_impatient(path) as client:
        if is_mute:
            mute.bind(str(path))
            mute.listen()
        for call in (lambda: client.join(0), lambda: client.await_sequencer(1)):
            with pytest.raises(UnreachableError, match=r"the agent|the sequencer"):
                call()


@in_clean_loop
async def test_a_wait_ends_at_its_deadline(path: Path) -> None:
    async with open_stage(PAIR) as stage, stage.relay("a", path):
        with open_impatient(path, 2.0) as client:  # long enough for the call to arrive
            for call, what in (
                (lambda: client.join(0), "no generation was formed"),
                (lambda: client.await_sequencer(7), "the sequencer at generation 7"),
            ):
                with pytest.raises(UnreachableError, match=what):
                    await in_thread(call)
        assert stage.server.state.waiting == 1


@in_clean_loop
async def test_a_worker_waits_for_a_server_that_may_be_started_again_as_long_as_that_may_take(path: Path) -> None:
    patient = replace(make_bootstrap(path, A0, start_timeout_seconds=0.01), server_timeout_seconds=LIMIT_SECONDS)
    async with open_stage(PAIR) as stage, open_network(stage.port) as network:
        await network.cut()
        async with stage.relay("a", path, address=network.address):
            with closing(WorkerClient(patient, margin_seconds=0.0)) as client:
                joining = asyncio.create_task(in_thread(lambda: client.join(0)))
                await asyncio.sleep(PATIENCE_SECONDS)
                assert not joining.done()
                await network.mend()
                async with stage.agent("a") as a:
                    await happen(lambda: stage.server.state.waiting == 1)
                    await a.join(codec.encode(Joined(A1)))
                assert (await joining).generation == 1
                await network.cut()
                declaring = asyncio.create_task(in_thread(client.declare))
                await asyncio.sleep(PATIENCE_SECONDS)
                assert not declaring.done()
                await network.mend()
                await declaring


@pytest.mark.parametrize("name", ["a b", "50%25", "a#b", "a?b", "é", os.fsdecode(b"\xff")])
@in_clean_loop
async def test_the_socket_may_lie_in_a_folder_of_any_name(tmp_path: Path, name: str) -> None:
    folder = tmp_path / name
    folder.mkdir()
    path = folder / "agent.sock"
    async with open_stage(LONE) as stage, stage.relay("a", path), open_worker(path, A0) as client:
        assert path.is_socket()
        assert await in_thread(lambda: client.join(0)) == ALONE


@in_clean_loop
async def test_a_workers_client_that_is_closed_leaves_no_connection(path: Path) -> None:
    async with open_stage(LONE) as stage, stage.relay("a", path):
        await happen(lambda: bool(stage.server.topic("a")._subscribers))  # the relay has its own connection
        sockets = find_sockets()
        with closing(WorkerClient(make_bootstrap(path, A0))) as client:
            await in_thread(partial(client.join, 0))
            assert find_sockets() - sockets
        await happen(lambda: not find_sockets() - sockets)
        del client  # only now, or its end would have closed what close() had left


@in_clean_loop
async def test_a_worker_that_joins_again_waits_for_a_newer_generation_and_its_sequencer(path: Path) -> None:
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
            assert await in_thread(partial(second.await_sequencer, generation)) == stage.sequencing.endpoint
            stage.sequencing.endpoint = Endpoint(LOOPBACK, 4710 + generation)


@in_clean_loop
async def test_an_interruption_leads_to_reports_and_a_decision(path: Path) -> None:
    async with open_elastic_pair(path) as (stage, client, _):
        heard: list[Interrupt | OfferResize | Depart] = []
        following = asyncio.create_task(asyncio.to_thread(lambda: heard.extend(client.follow())))
        await happen(lambda: bool(client._subscription._subscribers))
        stage.server.submit(Exited(A1, -9))
        await happen(lambda: bool(heard))
        assert heard == [Interrupt(1, "rank 1 (a:1) was killed by SIGKILL (signal 9)")]
        pending = PendingOperation((0, 1), "commit.1", "the commit", 7)
        report = Report(JoinReason.CONTINUE, has_state=True, pending=(pending,))
        membership = await in_thread(partial(client.join, 1, report))
        assert membership.assignment == Assignment(0, 1, 0, 1, 0, 1)
        assert membership.decision.action is Action.RETRY
        assert membership.decision.survivors == (0,)
        assert membership.decision.done == (Done((0, 1), 7),)
        await in_thread(client.close)
        await following


@in_clean_loop
async def test_a_late_wait_raises_the_interruption(path: Path) -> None:
    async with open_elastic_pair(path) as (stage, client, _):
        stage.server.submit(Exited(A1, 1))
        async with open_worker(path, A0) as late:
            notices = late.follow()
            assert await in_thread(lambda: next(notices)) == Interrupt(1, "rank 1 (a:1) failed with exit code 1")
            with pytest.raises(GenerationInterruptedError, match="generation 1 was interrupted: rank 1"):
                await in_thread(partial(client.await_sequencer, 1))


@in_clean_loop
async def test_a_new_worker_is_offered_and_added_and_the_one_it_replaced_is_refused(path: Path) -> None:
    async with open_elastic_pair(path) as (stage, first, second):
        await in_thread(first.declare)
        await in_thread(second.declare)
        stage.server.submit(Exited(A1, 1))
        assert (await in_thread(partial(first.join, 1, Report(JoinReason.CONTINUE, has_state=True)))).generation == 2
        replacement = Worker(A1.slot, 2)
        async with open_worker(path, replacement) as newcomer:
            joining = asyncio.create_task(in_thread(partial(newcomer.join, 0, Report())))
            notices = first.follow()
            assert await in_thread(lambda: next(notices)) == OfferResize(2, 1, adds=True, removes=False)
            membership = await in_thread(partial(first.join, 2, Report(JoinReason.RESIZE, has_state=True)))
            assert (await joining).decision == membership.decision
            assert membership.decision.action is Action.RESIZE
            assert membership.assignment.size == 2
            await in_thread(partial(newcomer.declare, needs_state=True))
            assert stage.server.state.workers[A1.slot].needs_state
            await in_thread(newcomer.declare)
            assert not stage.server.state.workers[A1.slot].needs_state
        with pytest.raises(JoinRefusedError, match="a:1 was replaced by incarnation 2"):
            await in_thread(partial(second.join, 1, Report(JoinReason.CONTINUE)))


@in_clean_loop
async def test_a_join_ends_when_its_client_is_closed(path: Path) -> None:
    async with (
        open_stage(PAIR, Policy.elastic(1, 4, 2)) as stage,
        stage.relay("a", path),
        open_worker(path, A0) as client,
    ):
        joining = asyncio.create_task(in_thread(partial(client.join, 0, Report())))
        await happen(lambda: stage.server.state.waiting == 1)
        await in_thread(client.close)
        with pytest.raises(UnreachableError, match="the client was closed"):
            await joining
        with pytest.raises(UnreachableError):
            await in_thread(client.declare)
