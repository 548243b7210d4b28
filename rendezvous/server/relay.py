"""The rendezvous service on an agent's Unix socket: workers call here, and what must go further is passed on.

Notifications come once for each host and are handed out from a topic, so that the server hears hosts, not ranks. The
socket lies in a folder that only its user can enter. A worker needs no credential, and may know the generation's key.

On the way the relay sees when a sequencer is needed on its host, and what provides it publishes to the same topic.
"""

import contextlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, Protocol

import grpc

from protos import rendezvous_pb2 as pb
from protos import rendezvous_pb2_grpc as pb_grpc
from rendezvous.client import AgentClient, name_socket
from rendezvous.core.messages import Announce, Refuse
from rendezvous.core.model import Worker
from rendezvous.errors import ListenError, WireError
from rendezvous.server import serving
from rendezvous.wire import codec
from rendezvous.wire.notifications import Notification, Published, Topic

_GRACE_SECONDS = 0.5  # for calls to come to their end by themselves; most are those of followers


class SequencerProvider(Protocol):
    """Who provides the workers of a host with a sequencer."""

    def prepare(self, interpreter: str) -> None:
        """A worker of this host joins, which this Python runs ("": not known): one may soon be needed."""

    def activate(self, published: Published, post: Callable[[Notification], Awaitable[None]]) -> None:
        """Serve this generation if its rank 0 is on this host, and publish where, or why not, when that is known.

        It may be told of one generation several times.
        """


class Relay(pb_grpc.RendezvousServicer):
    """Serves the workers of one host.

    note_failure: is told of each worker that says how it will end, with the code.
    note_outcome: is told of each worker that has run a task, with the task's number, before anybody else is.
    """

    def __init__(
        self,
        host: str,
        client: AgentClient,
        sequencing: SequencerProvider,
        note_failure: Callable[[Worker, int], None] = lambda _worker, _returncode: None,
        note_outcome: Callable[[Worker, int], None] = lambda _worker, _number: None,
    ) -> None:
        self._host = host
        self._client = client
        self._sequencing = sequencing
        self._note_failure = note_failure
        self._note_outcome = note_outcome
        self._topic = Topic()
        self._server = grpc.aio.server()
        pb_grpc.add_RendezvousServicer_to_server(self, self._server)

    async def open(self, socket: Path) -> None:
        """Listen on the Unix socket.

        Raises:
            ListenError: it cannot be made there.
        """
        try:
            self._server.add_insecure_port(name_socket(socket))
            # Its folder keeps others out already; this is for a folder that somebody has opened.
            socket.chmod(0o600)  # noqa: ASYNC240 - takes no time
            await serving.start(self._server)
        except (RuntimeError, OSError) as error:
            raise ListenError(str(socket), str(error)) from None

    async def follow_server(self) -> None:
        """Publish what the server sends to this host, until cancelled; without this, workers hear nothing.

        Raises:
            CallRefusedError: the server refuses to tell it.
            WireError: what it tells cannot be understood.
        """
        async for notification in self._client.watch():
            self._topic.publish(notification)
            if isinstance(notification, Published):
                self._sequencing.activate(notification, self._post)

    async def _post(self, notification: Notification) -> None:
        """Publish what the sequencer's owner says; the server tells workers of other hosts of an open one."""
        self._topic.publish(notification)
        if isinstance(notification, Announce):
            await self._client.open_sequencer(notification.generation, notification.endpoint)

    async def close(self) -> None:
        """Stop serving; the socket goes with its folder.

        Who follows is told that this was all, before calls are cut off: for that, gRPC would write a line of its own to
        each worker's standard error, which is the user's.
        """
        self._topic.close()
        await serving.stop([self._server], _GRACE_SECONDS)

    async def Join(
        self, request: pb.JoinRequest, context: grpc.aio.ServicerContext[pb.JoinRequest, pb.JoinReply]
    ) -> pb.JoinReply:
        self._sequencing.prepare(os.fsdecode(request.interpreter))
        if len(request.joined) != 1:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "a worker joins for itself alone")
        async with _faults_told(context):
            return await self._client.join(request.joined[0])

    async def Declare(
        self, request: pb.Declared, context: grpc.aio.ServicerContext[pb.Declared, pb.DeclareReply]
    ) -> pb.DeclareReply:
        async with _faults_told(context):
            return await self._client.declare(request)

    async def Fail(
        self, request: pb.FailRequest, context: grpc.aio.ServicerContext[pb.FailRequest, pb.FailReply]
    ) -> pb.FailReply:
        self._note_failure(await self._decode_own(request.worker, context), request.returncode)
        return pb.FailReply()

    async def Watch(
        self, request: pb.WatchRequest, context: grpc.aio.ServicerContext[pb.WatchRequest, pb.Notification]
    ) -> AsyncIterator[pb.Notification]:
        worker = await self._decode_own(request.worker, context)
        async with contextlib.aclosing(self._topic.subscribe()) as notifications:
            async for notification in notifications:
                if not (isinstance(notification, Refuse) and notification.worker != worker):
                    yield codec.encode_notification(notification)

    async def Report(
        self, request: pb.AgentReport, context: grpc.aio.ServicerContext[pb.AgentReport, pb.ReportAck]
    ) -> pb.ReportAck:
        await context.abort(grpc.StatusCode.PERMISSION_DENIED, "only an agent reports, and to the server")

    async def OpenSequencer(
        self,
        request: pb.SequencerOpened,
        context: grpc.aio.ServicerContext[pb.SequencerOpened, pb.OpenSequencerReply],
    ) -> pb.OpenSequencerReply:
        await context.abort(grpc.StatusCode.PERMISSION_DENIED, "only an agent opens a sequencer, and tells the server")

    async def FetchTask(
        self, request: pb.FetchTaskRequest, context: grpc.aio.ServicerContext[pb.FetchTaskRequest, pb.TaskPart]
    ) -> AsyncIterator[pb.TaskPart]:
        await self._decode_own(request.worker, context)
        async with _faults_told(context), contextlib.aclosing(self._client.fetch_task(request)) as parts:
            async for part in parts:
                yield part

    async def DeliverOutcome(
        self,
        request_iterator: AsyncIterator[pb.OutcomePart],
        context: grpc.aio.ServicerContext[pb.OutcomePart, pb.DeliverOutcomeReply],
    ) -> pb.DeliverOutcomeReply:
        first = await anext(request_iterator, pb.OutcomePart())
        worker = await self._decode_own(first.head.worker, context)
        self._note_outcome(worker, first.head.number)
        async with _faults_told(context):
            return await self._client.deliver_outcome(_chain(first, request_iterator))

    async def _decode_own(self, message: pb.WorkerId, context: grpc.aio.ServicerContext[Any, Any]) -> Worker:
        """The worker that a call names, which must be one of this host."""
        async with _faults_told(context):
            worker = codec.decode_worker(message)
        if worker.slot.host != self._host:
            reason = f"worker {worker} is not on host {self._host}"
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, reason)
        return worker


async def _chain(first: pb.OutcomePart, others: AsyncIterator[pb.OutcomePart]) -> AsyncIterator[pb.OutcomePart]:
    yield first
    async for part in others:
        yield part


@contextlib.asynccontextmanager
async def _faults_told(context: grpc.aio.ServicerContext[Any, Any]) -> AsyncIterator[None]:
    """Answer a worker's call as the server has answered the relay's, and say what a message lacks."""
    try:
        yield
    except WireError as error:
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
    except grpc.aio.AioRpcError as error:
        await context.abort(error.code(), error.details() or "")
