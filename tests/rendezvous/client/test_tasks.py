"""Tasks on their way: server to worker, and what has become of them back, through a relay and broken connections."""

import asyncio
import io
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryFile

import grpc
import pytest

from protos import rendezvous_pb2 as pb
from rendezvous.client.tasks import TaskClient, read_pieces
from rendezvous.core.model import Worker
from rendezvous.errors import CallRefusedError
from rendezvous.wire import codec
from rendezvous.wire.tasks import OutcomeHead
from tests.rendezvous.stage import A0, B0, in_clean_loop, in_thread, make_bootstrap, open_network, open_stage
from tests.waiting import happen

PIECES = [b"a" * 1_000_000, b"b" * 3, b""]


@dataclass
class Task:
    """A task of a few pieces."""

    number: int

    def pieces(self) -> Iterator[bytes]:
        """See `rendezvous.wire.tasks.Task`."""
        return iter(PIECES)


@dataclass
class Dispatcher:
    """A `TaskDispatcher` with one task, or none."""

    task: Task | None = None
    asked: int = 0
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    taken: list[tuple[OutcomeHead, bytes]] = field(default_factory=list)

    async def next(self, after: int) -> Task | None:
        """See `TaskDispatcher`."""
        self.asked += 1
        await self.ready.wait()
        return self.task if self.task is not None and self.task.number > after else None

    async def take(self, head: OutcomeHead, pieces: AsyncIterator[bytes]) -> None:
        """See `TaskDispatcher`."""
        self.taken.append((head, b"".join([piece async for piece in pieces])))

    def is_done(self, worker: Worker) -> bool:
        """See `TaskDispatcher`."""
        return any(head.worker == worker for head, _ in self.taken)


def connect(path: Path, worker: Worker = A0) -> closing[TaskClient]:
    """A worker's client, to be closed."""
    return closing(TaskClient(make_bootstrap(path, worker)))


@in_clean_loop
async def test_a_task_is_fetched_and_its_outcome_passes_its_agent(path: Path) -> None:
    dispatcher, noted, file = Dispatcher(Task(3)), [], io.BytesIO(b"left from a former try")
    async with open_stage() as stage, stage.relay("a", path, note_outcome=lambda *outcome: noted.append(outcome)):
        stage.server.tasks = dispatcher
        with connect(path) as client:
            fetching = asyncio.create_task(in_thread(lambda: client.fetch(2, file)))
            await asyncio.sleep(0)
            dispatcher.ready.set()
            assert await fetching == 3
            assert file.getvalue() == b"".join(PIECES)
            assert await in_thread(lambda: client.fetch(3, file)) is None
            with TemporaryFile() as answer:
                answer.write(b"c" * 2_500_000)
                await in_thread(lambda: client.deliver(3, answer, failed=True, follows_another=True))
    assert noted == [(A0, 3)]
    assert dispatcher.taken == [(OutcomeHead(A0, 3, 2_500_000, failed=True, follows_another=True), b"c" * 2_500_000)]


def test_two_readers_of_one_outcome_do_not_disturb_each_other() -> None:
    outcome = bytes(range(256)) * 20_000
    with TemporaryFile() as file:
        file.write(outcome)
        broken, retry = read_pieces(file), read_pieces(file)
        first = next(broken)
        assert b"".join(retry) == outcome
        assert first + b"".join(broken) == outcome


@in_clean_loop
async def test_a_waiting_worker_does_not_notice_a_broken_connection_to_the_server(path: Path) -> None:
    dispatcher, file = Dispatcher(Task(1)), io.BytesIO()
    async with (
        open_stage() as stage,
        open_network(stage.port) as network,
        stage.relay("a", path, address=network.address),
    ):
        stage.server.tasks = dispatcher
        with connect(path) as client:
            fetching = asyncio.create_task(in_thread(lambda: client.fetch(0, file)))
            await happen(lambda: dispatcher.asked == 1)
            await network.cut()
            dispatcher.ready.set()
            await network.mend()
            assert await fetching == 1


@in_clean_loop
async def test_a_job_without_tasks_and_a_worker_of_another_host_are_refused(path: Path) -> None:
    async with open_stage() as stage, stage.relay("a", path):
        with (
            connect(path) as client,
            pytest.raises(CallRefusedError, match="this job runs a program, and has no tasks"),
        ):
            await in_thread(lambda: client.fetch(0, io.BytesIO()))
        stage.server.tasks = Dispatcher()
        with connect(path, B0) as liar:
            with pytest.raises(CallRefusedError, match="worker b:0 is not on host a"):
                await in_thread(lambda: liar.fetch(0, io.BytesIO()))
            with TemporaryFile() as empty, pytest.raises(CallRefusedError, match="worker b:0 is not on host a"):
                await in_thread(lambda: liar.deliver(1, empty, failed=False))


@in_clean_loop
async def test_one_outcome_holds_no_other() -> None:
    async def list_parts() -> AsyncIterator[pb.OutcomePart]:
        for _ in range(2):
            yield pb.OutcomePart(head=codec.encode(OutcomeHead(A0, 1, 5)))

    async with open_stage() as stage, stage.agent("a") as agent:
        stage.server.tasks = Dispatcher()
        with pytest.raises(grpc.aio.AioRpcError, match="a second head in the stream"):
            await agent.stub.DeliverOutcome(list_parts())
