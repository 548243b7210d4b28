"""The calls of agents and workers to the rendezvous server, by gRPC."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Collection

from rendezvous.server import serving  # imported before gRPC, whose log it turns off

# isort: split
import grpc

from protos import rendezvous_pb2 as pb
from protos import rendezvous_pb2_grpc as pb_grpc
from rendezvous.core.messages import Declared, Joined, SequencerOpened
from rendezvous.errors import WireError
from rendezvous.server.agent_streams import AgentStream
from rendezvous.server.state_machine import StateMachine
from rendezvous.wire import codec
from rendezvous.wire.orders import TERM, agent_identity
from rendezvous.wire.tasks import OutcomeHead, TaskDispatcher


class Servicer(pb_grpc.RendezvousServicer):
    """The calls of agents, each checked against the host that its certificate names.

    Args:
        machine: answers the calls.
    """

    def __init__(self, machine: StateMachine) -> None:
        self._machine = machine

    async def Join(self, request: pb.JoinRequest, context: serving.Context) -> pb.Ack:
        self._tell_term(context)
        for host in {joined.worker.host for joined in request.joined}:
            await self._authorize(context, host)
        async with self._answer(context):
            if not request.joined:
                raise WireError("JoinRequest without joined")
            for joined in [codec.decode(Joined, each) for each in request.joined]:
                self._machine.submit(joined)
        return pb.Ack()

    async def OpenSequencer(self, request: pb.SequencerOpened, context: serving.Context) -> pb.Ack:
        self._tell_term(context)
        if await self._admit(context, request.host):
            async with self._answer(context):
                self._machine.submit(codec.decode(SequencerOpened, request))
        return pb.Ack()

    async def Declare(self, request: pb.Declared, context: serving.Context) -> pb.Ack:
        self._tell_term(context)
        await self._authorize(context, request.worker.host)
        async with self._answer(context):
            self._machine.submit(codec.decode(Declared, request))
        return pb.Ack()

    async def Fail(self, request: pb.FailRequest, context: serving.Context) -> pb.Ack:
        await context.abort(grpc.StatusCode.PERMISSION_DENIED, "a worker reports its failure to its agent")

    async def Report(self, request: pb.AgentReport, context: serving.Context) -> pb.Ack:
        self._tell_term(context)
        if await self._admit(context, request.host):
            async with self._answer(context):
                self._machine.receive(request)
        return pb.Ack()

    async def Watch(self, request: pb.WatchRequest, context: serving.Context) -> AsyncIterator[pb.Notification]:
        self._tell_term(context)
        await context.send_initial_metadata(self._metadata)
        if not await self._admit(context, request.host):
            await asyncio.Event().wait()  # until the agent ends the call, or the server closes
        async with (
            serving.answer_errors(context, self._machine.fail),
            contextlib.aclosing(self._machine.topic(request.host).subscribe()) as notifications,
        ):
            async for notification in notifications:
                yield codec.encode_notification(notification)

    async def Obey(self, request: pb.ObeyRequest, context: serving.Context) -> AsyncIterator[pb.Order]:
        self._tell_term(context)
        await context.send_initial_metadata(self._metadata)
        stream = await self._find_stream(context, request.host)
        async with contextlib.aclosing(stream.orders()) as orders:
            async for order in orders:
                yield codec.make_order(order)

    async def Deliver(self, request: pb.Delivery, context: serving.Context) -> pb.Shown:
        self._tell_term(context)
        stream = await self._find_stream(context, request.host)
        async with serving.answer_errors(context, self._machine.fail):
            shown = await stream.receive(request.first, request.messages, is_last=request.is_last)
        return pb.Shown(number=shown)

    async def FetchTask(self, request: pb.FetchTaskRequest, context: serving.Context) -> AsyncIterator[pb.TaskPart]:
        await self._authorize(context, request.worker.host)
        async with serving.answer_errors(context, self._machine.fail):
            dispatcher = await self._find_tasks(context)
            task = await dispatcher.next(request.after)
            if task is not None:
                yield pb.TaskPart(number=task.number)
                for piece in task.pieces():
                    yield pb.TaskPart(data=piece)

    async def DeliverOutcome(self, request_iterator: AsyncIterator[pb.OutcomePart], context: serving.Context) -> pb.Ack:
        first = await anext(request_iterator, pb.OutcomePart())
        await self._authorize(context, first.head.worker.host)
        dispatcher = await self._find_tasks(context)
        async with serving.answer_errors(context, self._machine.fail):
            await dispatcher.take(codec.decode(OutcomeHead, first.head), _read_data(request_iterator))
        return pb.Ack()

    async def _find_tasks(self, context: serving.Context) -> TaskDispatcher:
        if self._machine.tasks is None:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "this job runs a program, and has no tasks")
        return self._machine.tasks

    @property
    def _metadata(self) -> tuple[tuple[str, str], ...]:
        """What each answer carries: the term of the server."""
        return ((TERM, str(self._machine.term_number)),)

    def _tell_term(self, context: serving.Context) -> None:
        """Let the end of the answer carry the term; at its beginning it would be sent on its own."""
        context.set_trailing_metadata(self._metadata)

    async def _find_stream(self, context: serving.Context, host: str) -> AgentStream:
        await self._admit(context, host)
        return self._machine.stream(host, _read_identities(context))

    @contextlib.asynccontextmanager
    async def _answer(self, context: serving.Context) -> AsyncIterator[None]:
        """Answer a call, with an error too, when the state that the answer follows from is durable."""
        async with serving.answer_errors(context, self._machine.fail):
            try:
                yield
            finally:
                await self._machine.settle()

    async def _admit(self, context: serving.Context, host: str) -> bool:
        """The caller is the agent of the host; a call of one that the job has left has no effect. Refuses others."""
        identities = _read_identities(context)
        if self._machine.expects(host, identities):
            return True
        await self._machine.settle()
        if self._machine.has_left(identities):
            return False
        await self._authorize(context, host)
        return True

    async def _authorize(self, context: serving.Context, host: str) -> None:
        identities = _read_identities(context)
        if self._machine.expects(host, identities):
            return
        await self._machine.settle()
        former_agents = range(1, self._machine.number_agent(host))
        if any(agent_identity(host, former).encode() in identities for former in former_agents):
            reason = f"host {host!r} was lost, and another agent has replaced this one"
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, reason)
        await context.abort(grpc.StatusCode.PERMISSION_DENIED, f"your certificate is not that of host {host!r}")


def _read_identities(context: serving.Context) -> Collection[bytes]:
    return tuple(context.auth_context().get("x509_subject_alternative_name", ()))


async def _read_data(parts: AsyncIterator[pb.OutcomePart]) -> AsyncIterator[bytes]:
    """The bytes of the parts after the first."""
    async for part in parts:
        if part.HasField("head"):
            raise WireError("a second head in the stream of one outcome")
        yield part.data
