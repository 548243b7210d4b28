"""Relays between workers and server: what breaks on the way loses nothing, and what cannot be mended is said."""

import asyncio
import os
import sys
import tempfile
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import grpc
import pytest

from protos import rendezvous_pb2 as pb
from protos import rendezvous_pb2_grpc as pb_grpc
from rendezvous.client import AgentClient, WorkerClient, name_socket
from rendezvous.core.messages import Refuse
from rendezvous.core.model import Assignment, Host, Membership, Worker
from rendezvous.core.outcome import Blame
from rendezvous.errors import CallRefusedError, ListenError
from rendezvous.server.relay import Relay
from rendezvous.wire import codec
from tests.rendezvous.stage import (
    A0,
    A1,
    B0,
    B1,
    Sequencing,
    in_clean_loop,
    in_thread,
    open_network,
    open_stage,
    open_worker,
    run,
)
from tests.waiting import LIMIT_SECONDS, happen

SEQUENCER = Sequencing().endpoint


# Follows as a worker does, in a process whose gRPC has not been silenced, until nothing more comes.
FOLLOWER = """
import sys
import grpc
from protos import rendezvous_pb2 as pb
from protos import rendezvous_pb2_grpc as pb_grpc
from rendezvous.wire import codec
from rendezvous.core.model import Slot, Worker

with grpc.insecure_channel(sys.argv[1]) as channel:
    worker = codec.encode_worker(Worker(Slot("a", 0), 1))
    for notice in pb_grpc.RendezvousStub(channel).Watch(pb.WatchRequest(worker=worker)):
        print(notice)
print("ended")
"""


async def meet(first: WorkerClient, *others: WorkerClient) -> list[Membership]:
    """All join, and find the sequencer of their generation."""
    clients = (first, *others)
    members = await asyncio.gather(*(in_thread(partial(client.join, 0)) for client in clients))
    found = await asyncio.gather(*(in_thread(partial(client.await_sequencer, 1)) for client in clients))
    assert found == [SEQUENCER] * len(clients)
    return members


@in_clean_loop
async def test_a_relay_that_was_never_opened_can_be_closed() -> None:
    async with open_stage([Host("a", 1)]) as stage, stage.agent("a") as client:
        async with asyncio.timeout(LIMIT_SECONDS):
            await Relay("a", client, stage.sequencing, fail=Mock()).close()


@in_clean_loop
async def test_workers_of_two_hosts_meet_through_their_relays(tmp_path: Path) -> None:
    on_a, on_b = tmp_path / "a", tmp_path / "b"
    async with (
        open_stage() as stage,
        stage.relay("a", on_a),
        stage.relay("b", on_b),
        open_worker(on_a, A0) as a0,
        open_worker(on_a, A1) as a1,
        open_worker(on_b, B0) as b0,
        open_worker(on_b, B1) as b1,
    ):
        members = await meet(a0, b1, b0, a1)
        assert [member.assignment for member in members] == [
            Assignment(rank=0, size=4, local_rank=0, local_size=2, cross_rank=0, cross_size=2),
            Assignment(rank=3, size=4, local_rank=1, local_size=2, cross_rank=1, cross_size=2),
            Assignment(rank=2, size=4, local_rank=0, local_size=2, cross_rank=1, cross_size=2),
            Assignment(rank=1, size=4, local_rank=1, local_size=2, cross_rank=0, cross_size=2),
        ]
        assert {(member.generation, member.key) for member in members} == {(1, stage.server._topics._make_key(1))}
        assert [len(stage.server.topic(host)._subscribers) for host in "ab"] == [1, 1]  # hosts, not ranks


@in_clean_loop
async def test_the_sequencers_provider_receives_the_interpreter(path: Path) -> None:
    async with open_stage([Host("a", 1)]) as stage, stage.relay("a", path), open_worker(path, A0) as worker:
        await in_thread(lambda: worker.join(0))
        assert stage.sequencing.interpreters == [sys.executable]
        (published,) = stage.sequencing.published
        assert (published.generation, published.key) == (1, stage.server._topics._make_key(1))
        assert published.members == ((A0, Assignment(0, 1, 0, 1, 0, 1)),)


@in_clean_loop
async def test_a_relay_that_starts_late_or_restarts_loses_no_join(path: Path) -> None:
    async with open_stage([Host("a", 2)]) as stage, open_worker(path, A0) as a0, open_worker(path, A1) as a1:
        joining = asyncio.create_task(in_thread(lambda: a0.join(0)))
        await asyncio.wait({joining}, timeout=0.2)  # the worker may have tried to connect in vain
        async with stage.relay("a", path):
            await happen(lambda: stage.server.state.waiting == 1)
        async with stage.relay("a", path):
            assert (await in_thread(lambda: a1.join(0))).assignment.rank == 1
            assert (await joining).assignment.rank == 0
        finding = asyncio.create_task(in_thread(lambda: a1.await_sequencer(1)))
        async with stage.relay("a", path):
            assert await finding == SEQUENCER


@in_clean_loop
async def test_a_broken_connection_to_the_server_loses_no_notification(tmp_path: Path) -> None:
    on_a, on_b = tmp_path / "a", tmp_path / "b"
    async with (
        open_stage([Host("a", 1), Host("b", 1)]) as stage,
        open_network(stage.port) as network,
        stage.relay("a", on_a),
        stage.relay("b", on_b, address=network.address),
        open_worker(on_a, A0) as a0,
        open_worker(on_b, B0) as b0,
    ):
        await happen(lambda: bool(stage.server.topic("b")._subscribers))
        await network.cut()
        joining = asyncio.create_task(in_thread(lambda: b0.join(0)))
        await asyncio.wait({joining}, timeout=0.2)  # the worker may have learnt that no way is open
        await network.mend()
        await happen(lambda: stage.server.state.waiting == 1)
        await network.cut()
        assert (await in_thread(lambda: a0.join(0))).assignment.rank == 0
        assert await in_thread(lambda: a0.await_sequencer(1)) == SEQUENCER
        await network.mend()
        assert (await joining).assignment.rank == 1
        assert await in_thread(lambda: b0.await_sequencer(1)) == SEQUENCER


@in_clean_loop
async def test_a_worker_receives_its_own_refusal_only(path: Path) -> None:
    async with open_stage([Host("a", 2)]) as stage, stage.relay("a", path):
        for worker in (A0, A1):
            stage.server.topic("a").publish(Refuse(worker, f"{worker} comes too late"))
        async with grpc.aio.insecure_channel(name_socket(path)) as channel, asyncio.timeout(LIMIT_SECONDS):
            stub = pb_grpc.RendezvousStub(channel)
            async for message in stub.Watch(pb.WatchRequest(worker=codec.encode_worker(A1))):
                assert codec.decode_notification(message) == Refuse(A1, "a:1 comes too late")
                break


@in_clean_loop
async def test_a_relay_refuses_the_calls_of_agents(path: Path) -> None:
    async with (
        open_stage([Host("a", 1)]) as stage,
        stage.relay("a", path),
        grpc.aio.insecure_channel(name_socket(path)) as channel,
    ):
        stub = pb_grpc.RendezvousStub(channel)
        with pytest.raises(grpc.aio.AioRpcError, match="only an agent reports") as refused:
            await stub.Report(pb.AgentReport(host="a", number=1), timeout=LIMIT_SECONDS)
        assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED
        with pytest.raises(grpc.aio.AioRpcError, match="only an agent delivers"):
            await stub.Deliver(pb.Delivery(host="a"), timeout=LIMIT_SECONDS)
        with pytest.raises(grpc.aio.AioRpcError, match="only an agent asks for orders"):
            await stub.Obey(pb.ObeyRequest(host="a"), timeout=LIMIT_SECONDS).read()
        with pytest.raises(grpc.aio.AioRpcError, match="a worker without host or incarnation") as malformed:
            await stub.Watch(pb.WatchRequest(host="a"), timeout=LIMIT_SECONDS).read()
        assert malformed.value.code() is grpc.StatusCode.INVALID_ARGUMENT


@in_clean_loop
async def test_a_relay_that_the_server_refuses_says_why_and_can_be_closed(tmp_path: Path) -> None:
    async with open_stage([Host("a", 1)]) as stage:
        client = AgentClient(stage.address, "b", stage.authority.issue_agent("a"))
        relay = Relay("b", client, stage.sequencing, fail=Mock())
        await relay.open(tmp_path / "b")
        with pytest.raises(CallRefusedError, match="is not that of host 'b'"):
            async with asyncio.timeout(LIMIT_SECONDS):
                await relay.follow_server()
        await relay.close()
        await client.close()


def test_a_relay_that_closes_ends_its_workers_subscriptions_without_a_line_of_grpc(path: Path) -> None:
    async def story() -> tuple[bytes, bytes]:
        async with open_stage([Host("a", 1)]) as stage, stage.agent("a") as client:
            relay = Relay("a", client, stage.sequencing, fail=Mock())
            await relay.open(path)
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-c", FOLLOWER, name_socket(path)),
                env={name: value for name, value in os.environ.items() if not name.startswith("GRPC_")},
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )
            try:
                await happen(lambda: len(relay._topic._subscribers) == 1)
                await relay.close()
                await happen(lambda: not relay._topic._subscribers)
                return await asyncio.wait_for(process.communicate(), LIMIT_SECONDS)
            finally:
                if process.returncode is None:
                    process.kill()
                    await process.wait()

    assert run(story()) == (b"ended\n", b"")
    assert not path.exists()


@pytest.mark.parametrize("steps", range(1, 4))
@in_clean_loop
async def test_a_relay_whose_opening_is_cancelled_at_any_step_closes_silently(tmp_path: Path, steps: int) -> None:
    async with open_stage([Host("a", 1)]) as stage, stage.agent("a") as client:
        relay = Relay("a", client, stage.sequencing, fail=Mock())
        opening = asyncio.create_task(relay.open(tmp_path / "a"))
        for _ in range(steps):
            await asyncio.sleep(0)
        opening.cancel()
        await asyncio.wait({opening}, timeout=LIMIT_SECONDS)
        await relay.close()


@in_clean_loop
async def test_a_socket_that_cannot_be_created_gets_a_reason_without_advice_of_grpc(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / ("long" * 40)
    async with open_stage([Host("a", 1)]) as stage, stage.agent("a") as client:
        relay = Relay("a", client, stage.sequencing, fail=Mock())
        with pytest.raises(OSError, match="AF_UNIX path too long"):
            await relay.open(path)
        refused = Mock(side_effect=RuntimeError("no; set GRPC_VERBOSITY=debug to see more"))
        monkeypatch.setattr(relay._server, "add_insecure_port", refused)
        with pytest.raises(ListenError, match=r"a: no$"):
            await relay.open(tmp_path / "a")
        await relay.close()


@in_clean_loop
async def test_a_worker_of_one_host_cannot_act_for_a_worker_of_another(path: Path) -> None:
    async with open_stage() as stage, stage.relay("a", path), open_worker(path, B0) as liar:
        with pytest.raises(CallRefusedError, match="is not that of host 'b'"):
            await in_thread(lambda: liar.join(0))
        with pytest.raises(CallRefusedError, match="worker b:0 is not on host a"):
            await in_thread(lambda: liar.await_sequencer(1))
        with pytest.raises(CallRefusedError, match="worker b:0 is not on host a"):
            await in_thread(lambda: liar.fail(3))
        assert stage.server.state.waiting == 0


@in_clean_loop
async def test_a_worker_reports_its_failure_to_its_agent_only(path: Path) -> None:
    heard: list[tuple[Worker, int, Blame | None, bool]] = []

    def note(worker: Worker, returncode: int, blame: Blame | None = None, *, follows: bool = False) -> None:
        heard.append((worker, returncode, blame, follows))

    blame = Blame("rank 1 was cut off", (1,))
    async with open_stage() as stage, stage.relay("a", path, note), open_worker(path, A0) as worker:
        await in_thread(lambda: worker.fail(-2))
        await in_thread(lambda: worker.fail(1, blame, follows=True))
    assert heard == [(A0, -2, None, False), (A0, 1, blame, True)]


# Not the first argument, but a pipe that says when to try: `python -c PROGRAM SOCKET`, as another user.
KNOCKS = """
import os, socket, sys
os.setgid(65534)
os.setuid(65534)
try:
    socket.socket(socket.AF_UNIX).connect(sys.argv[1])
except OSError as error:
    print(type(error).__name__)
else:
    print("connected")
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
@pytest.mark.parametrize("mode", [0o700, 0o777], ids=["the agent's folder", "a folder that was opened"])
def test_only_the_user_can_open_the_socket(mode: int) -> None:
    async def knock(path: Path) -> str:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-S", "-E", "-c", KNOCKS, str(path), stdout=asyncio.subprocess.PIPE
        )
        output, _ = await process.communicate()
        return output.decode().strip()

    async def story(path: Path) -> None:
        async with open_stage([Host("a", 1)]) as stage, stage.relay("a", path), open_worker(path, A0) as own:
            assert await knock(path) == "PermissionError"
            assert (await in_thread(lambda: own.join(0))).generation == 1

    with tempfile.TemporaryDirectory() as around:  # pytest's own folders are closed to others already
        Path(around).chmod(0o755)
        folder = Path(around, "hvdrun")
        folder.mkdir()
        folder.chmod(mode)
        run(story(folder / "agent.sock"))
