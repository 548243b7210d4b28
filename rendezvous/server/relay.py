"""The rendezvous service on an agent's Unix socket: workers call it, and it forwards the calls that the server needs.

The server sends notifications once to each host, and the relay publishes them to its workers, so that the server serves
hosts, not ranks. The socket is in a folder that only its user can enter. So a worker needs no credential, and may
receive the generation's key.

The relay also notices when its host needs a sequencer. The sequencer's provider publishes to the same topic.
"""

import contextlib
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Protocol

import grpc

from protos import rendezvous_pb2 as pb
from protos import rendezvous_pb2_grpc as pb_grpc
from rendezvous.client import AgentClient, name_socket
from rendezvous.core.messages import Announce, Refuse
from rendezvous.core.model import Worker
from rendezvous.core.outcome import Blame
from rendezvous.errors import ListenError, WireError
from rendezvous.server import serving
from rendezvous.wire import codec
from rendezvous.wire.notifications import Notification, Published, Topic

_GRACE_SECONDS = 0.5  # for calls to complete before they are cancelled; most are subscriptions


class NoteFailure(Protocol):
    """Takes a worker's failure: its exit code, what made it fail, and whether a failure that is reported first did."""

    def __call__(self, worker: Worker, returncode: int, blame: Blame | None = None, *, follows: bool = False) -> None:
        """See `hvdrun.agent.watch.Watch.note_failure`."""


def _ignore_failure(worker: Worker, returncode: int, blame: Blame | None = None, *, follows: bool = False) -> None:
    """Drop it."""


class SequencerProvider(Protocol):
    """Starts the sequencer of a generation whose rank 0 is on this host."""

    def prepare(self, interpreter: str) -> None:
        """Prepare: a worker of this host joins, so a sequencer may soon be needed.

        interpreter: the Python that runs the worker; "" when it is not known.
        """

    def activate(self, published: Published, post: Callable[[Notification], Awaitable[None]]) -> None:
        """Start a sequencer if rank 0 of this generation is on this host, and post its endpoint, or why there is none.

        Repeated calls about one generation are allowed.
        """


class Relay(pb_grpc.RendezvousServicer):
    """Serves the workers of one host.

    Args:
        host: the host's name in the job.
        client: the agent's connection to the server.
        sequencing: provides the sequencers on this host.
        note_failure: takes what each worker reports of its failure.
        note_outcome: is called with each worker that delivers an outcome, and the task's number, before the outcome is
            forwarded.
        fail: takes an unexpected error of a call.
    """

    def __init__(
        self,
        host: str,
        client: AgentClient,
        sequencing: SequencerProvider,
        note_failure: NoteFailure = _ignore_failure,
        note_outcome: Callable[[Worker, int], None] = lambda _worker, _number: None,
        *,
        fail: Callable[[BaseException], None],
    ) -> None:
        self._host = host
        self._client = client
        self._sequencing = sequencing
        self._fail = fail
        self._note_failure = note_failure
        self._note_outcome = note_outcome
        self._topic = Topic()
        self._server = grpc.aio.server()
        pb_grpc.add_RendezvousServicer_to_server(self, self._server)

    async def open(self, path: Path) -> None:
        """Listen on the Unix socket.

        Raises:
            OSError: it cannot be created there.
            ListenError: gRPC cannot listen on it.
        """
        _check_socket(path)
        try:
            self._server.add_insecure_port(name_socket(path))
            # The folder already keeps other users out; this holds where someone has changed the folder's mode.
            path.chmod(0o600)  # noqa: ASYNC240 - takes no time
            await serving.start(self._server)
        except (RuntimeError, OSError) as error:
            raise ListenError(str(path), serving.find_reason(error)) from None

    async def follow_server(self) -> None:
        """Publish what the server sends to this host, until cancelled. Workers receive nothing without it.

        Raises:
            CallRefusedError: the server refuses the subscription.
            WireError: a notification is malformed.
        """
        async for notification in self._client.watch():
            self._topic.publish(notification)
            if isinstance(notification, Published):
                self._sequencing.activate(notification, self._post)

    async def _post(self, notification: Notification) -> None:
        """Publish a notification of the sequencer's provider; the server announces an endpoint to the other hosts."""
        self._topic.publish(notification)
        if isinstance(notification, Announce):
            await self._client.open_sequencer(notification.generation, notification.endpoint)

    async def close(self) -> None:
        """Stop serving; the socket is deleted with its folder.

        Subscriptions are closed before calls are cancelled: gRPC writes a line to the standard error of each worker
        whose call is cancelled.
        """
        self._topic.close()
        await serving.stop([self._server], _GRACE_SECONDS)

    async def Join(self, request: pb.JoinRequest, context: serving.Context) -> pb.Ack:
        async with serving.answer_errors(context, self._fail):
            self._sequencing.prepare(os.fsdecode(request.interpreter))
            if len(request.joined) != 1:
                raise WireError("a worker joins for itself alone")
            return await self._client.join(request.joined[0])

    async def Declare(self, request: pb.Declared, context: serving.Context) -> pb.Ack:
        async with serving.answer_errors(context, self._fail):
            return await self._client.declare(request)

    async def Fail(self, request: pb.FailRequest, context: serving.Context) -> pb.Ack:
        async with serving.answer_errors(context, self._fail):
            worker = await self._decode_own(request.worker, context)
            blame = codec.decode(Blame, request.blame) if request.HasField("blame") else None
            self._note_failure(worker, request.returncode, blame, follows=request.follows)
        return pb.Ack()

    async def Watch(self, request: pb.WatchRequest, context: serving.Context) -> AsyncIterator[pb.Notification]:
        async with (
            serving.answer_errors(context, self._fail),
            contextlib.aclosing(self._topic.subscribe()) as notifications,
        ):
            worker = await self._decode_own(request.worker, context)
            async for notification in notifications:
                if not (isinstance(notification, Refuse) and notification.worker != worker):
                    yield codec.encode_notification(notification)

    async def Report(self, request: pb.AgentReport, context: serving.Context) -> pb.Ack:
        await context.abort(grpc.StatusCode.PERMISSION_DENIED, "only an agent reports, to the server")

    async def OpenSequencer(self, request: pb.SequencerOpened, context: serving.Context) -> pb.Ack:
        await context.abort(grpc.StatusCode.PERMISSION_DENIED, "only an agent opens a sequencer, at the server")

    async def Obey(self, request: pb.ObeyRequest, context: serving.Context) -> AsyncIterator[pb.Order]:
        for _ in ():
            yield pb.Order()  # which makes this a stream
        await context.abort(grpc.StatusCode.PERMISSION_DENIED, "only an agent asks for orders, at the server")

    async def Deliver(self, request: pb.Delivery, context: serving.Context) -> pb.Shown:
        await context.abort(grpc.StatusCode.PERMISSION_DENIED, "only an agent delivers messages, to the server")

    async def FetchTask(self, request: pb.FetchTaskRequest, context: serving.Context) -> AsyncIterator[pb.TaskPart]:
        async with serving.answer_errors(context, self._fail):
            await self._decode_own(request.worker, context)
            async for part in self._client.stub.FetchTask(request):
                yield part

    async def DeliverOutcome(self, request_iterator: AsyncIterator[pb.OutcomePart], context: serving.Context) -> pb.Ack:
        async with serving.answer_errors(context, self._fail):
            first = await anext(request_iterator, pb.OutcomePart())
            worker = await self._decode_own(first.head.worker, context)
            self._note_outcome(worker, first.head.number)
            return await self._client.stub.DeliverOutcome(_chain(first, request_iterator))

    async def _decode_own(self, message: pb.WorkerId, context: serving.Context) -> Worker:
        """The worker that a call names; any other than this host's is refused."""
        worker = codec.decode_worker(message)
        if worker.slot.host != self._host:
            reason = f"worker {worker} is not on host {self._host}"
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, reason)
        return worker


def _check_socket(path: Path) -> None:
    """Create a socket there, and remove it: unlike gRPC, the operating system gives the reason of a failure."""
    with socket.socket(socket.AF_UNIX) as created:
        created.bind(os.fspath(path))
    path.unlink()


async def _chain(first: pb.OutcomePart, others: AsyncIterator[pb.OutcomePart]) -> AsyncIterator[pb.OutcomePart]:
    yield first
    async for part in others:
        yield part
