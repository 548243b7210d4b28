"""How an agent passes on that its workers join."""

import asyncio
from collections.abc import Coroutine, Generator
from typing import Any, NoReturn

import grpc

from protos import rendezvous_pb2 as pb
from rendezvous.client import AgentClient
from rendezvous.core.messages import Joined
from rendezvous.core.model import Slot, Worker
from rendezvous.server.authority import Authority
from rendezvous.wire import codec
from tests.rendezvous.stage import LOOPBACK, in_clean_loop
from tests.waiting import happen


class Stub:
    """Takes calls, and answers the first when it is allowed to; `refused` is the slot that no call may name."""

    def __init__(self, refused: int | None = None) -> None:
        self.calls: list[list[int]] = []
        self.may_answer = asyncio.Event()
        self._refused = refused

    def Join(self, request: pb.JoinRequest, *, timeout: float) -> "Answer":  # noqa: D102, N802 - a method of gRPC's stub
        assert timeout > 0
        return Answer(self._join(request))

    async def _join(self, request: pb.JoinRequest) -> pb.Ack:
        slots = [joined.worker.slot for joined in request.joined]
        self.calls.append(slots)
        await self.may_answer.wait()
        if self._refused in slots:
            _refuse()
        return pb.Ack()


class Answer:
    """A call."""

    def __init__(self, answer: Coroutine[Any, Any, pb.Ack]) -> None:
        self._answer = answer

    def __await__(self) -> Generator[Any, Any, pb.Ack]:
        return self._answer.__await__()

    async def trailing_metadata(self) -> grpc.aio.Metadata:
        """What a server sends last."""
        return grpc.aio.Metadata()


def _refuse() -> NoReturn:
    metadata = grpc.aio.Metadata()
    raise grpc.aio.AioRpcError(grpc.StatusCode.FAILED_PRECONDITION, metadata, metadata, "no")


def start_joining(client: AgentClient, stub: Stub, slots: int) -> list[asyncio.Task[Any]]:
    client.stub = stub  # type: ignore[assignment]  # what goes over the network is counted
    joined = (codec.encode(Joined(Worker(Slot("a", slot), 1))) for slot in range(slots))
    return [asyncio.create_task(client.join(each)) for each in joined]


def make_client() -> AgentClient:
    return AgentClient(f"{LOOPBACK}:1", "a", Authority("j").issue_agent("a"))


@in_clean_loop
async def test_workers_that_join_during_a_call_share_the_next() -> None:
    client, stub = make_client(), Stub()
    joining = start_joining(client, stub, 8)
    await happen(lambda: bool(stub.calls))
    joining[7].cancel()
    await asyncio.wait({joining[7]})
    stub.may_answer.set()
    await asyncio.gather(*joining[:7])
    assert stub.calls == [[0], [1, 2, 3, 4, 5, 6]]
    await client.close()


@in_clean_loop
async def test_a_refused_worker_does_not_delay_the_others() -> None:
    client, stub = make_client(), Stub(refused=2)
    joining = start_joining(client, stub, 4)
    await happen(lambda: bool(stub.calls))
    stub.may_answer.set()
    answers = await asyncio.gather(*joining, return_exceptions=True)
    assert [isinstance(answer, grpc.aio.AioRpcError) for answer in answers] == [False, False, True, False]
    assert stub.calls == [[0], [1, 2, 3], [1], [2, 3], [2], [3]]
    await client.close()
