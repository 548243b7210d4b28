"""The rendezvous server: call -> event -> step -> effects. It owns the clock, the state and the order of events.

Everything happens on one event loop, which is the lock. What the core decides about membership is told to the agents
through boards; what it decides about processes is handed to `carry_out`, the launcher's part.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from typing import Any, Self

import grpc

from protos import rendezvous_pb2 as pb
from protos import rendezvous_pb2_grpc as pb_grpc
from rendezvous import wire
from rendezvous.core import membership
from rendezvous.core.effects import Announce, Effect, Publish, Refuse
from rendezvous.core.errors import IllegalEventError
from rendezvous.core.events import Event, Joined, Reported, StoreOpened, Ticked
from rendezvous.core.model import Policy
from rendezvous.core.state import State
from rendezvous.credentials import Credential, agent_identity
from rendezvous.errors import WireError
from rendezvous.notices import Board, Published, Refused
from rendezvous.notices import StoreOpened as StoreOpenedNotice

TICK_SECONDS = 0.25
_OPTIONS = (
    ("grpc.so_reuseport", 0),  # else a second server could bind the same port unnoticed
    ("grpc.max_receive_message_length", wire.MAX_FRAME_BYTES),
)


class Server:
    """Serves one job's membership; an asynchronous context manager, so that its port and clock end with it."""

    def __init__(self, policy: Policy, carry_out: Callable[[Effect], None], credential: Credential) -> None:
        self.state: State = membership.begin(policy)
        self._carry_out = carry_out
        self._credential = credential
        self._boards: dict[str, Board] = {}
        self._last_reports: dict[str, int] = {}
        self._server = grpc.aio.server(options=_OPTIONS)
        self._clock: asyncio.Task[None] | None = None
        pb_grpc.add_RendezvousServicer_to_server(_Servicer(self), self._server)

    async def open(self, address: str) -> int:
        """Listen on a free port of `address`; the port is returned. The clock starts now."""
        credential = self._credential
        credentials = grpc.ssl_server_credentials(
            [(credential.private_key, credential.certificate)], credential.authority, require_client_auth=True
        )
        host = f"[{address}]" if ":" in address else address
        port = self._server.add_secure_port(f"{host}:0", credentials)
        await self._server.start()
        self.tell(Ticked(time.monotonic()))
        self._clock = asyncio.create_task(self._tick())
        return port

    async def close(self) -> None:
        """Stop the clock and every call."""
        if self._clock is not None:
            self._clock.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._clock
        await self._server.stop(grace=None)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def tell(self, event: Event) -> None:
        """Let an event happen and carry out what follows.

        Raises:
            IllegalEventError: the event contradicts the state; nothing has changed.
        """
        self.state, effects = membership.step(self.state, event)
        for effect in effects:
            self._perform(effect)

    def board(self, host: str) -> Board:
        """The notices for the members on one host."""
        return self._boards.setdefault(host, Board())

    def receive(self, report: pb.AgentReport) -> None:
        """Take in an agent's report, unless a newer one has come already; ends come before the sign of life."""
        if report.number <= self._last_reports.get(report.host, 0):
            return
        for ended in report.ended:
            self.tell(wire.decode_exited(ended))
        self.tell(Reported(report.host, tuple(wire.decode_worker(worker) for worker in report.running)))
        self._last_reports[report.host] = report.number

    def _perform(self, effect: Effect) -> None:
        match effect:
            case Publish(generation, assignments):
                ranked = tuple(zip(generation.members, assignments, strict=True))
                for host in dict.fromkeys(worker.slot.host for worker, _ in ranked):
                    members = tuple(member for member in ranked if member[0].slot.host == host)
                    self.board(host).post(Published(generation.number, members))
            case Announce(generation, endpoint):
                for board in self._boards.values():
                    board.post(StoreOpenedNotice(generation, endpoint))
            case Refuse(worker, reason):
                self.board(worker.slot.host).post(Refused(worker, reason))
            case _:
                self._carry_out(effect)

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_SECONDS)
            self.tell(Ticked(time.monotonic()))


class _Servicer(pb_grpc.RendezvousServicer):
    """The calls of agents, each checked against the host that its certificate names."""

    def __init__(self, server: Server) -> None:
        self._server = server

    async def Join(
        self, request: pb.JoinRequest, context: grpc.aio.ServicerContext[pb.JoinRequest, pb.JoinReply]
    ) -> pb.JoinReply:
        await _authorize(context, request.worker.host)
        async with _faults_told(context):
            self._server.tell(Joined(wire.decode_worker(request.worker), request.after))
        return pb.JoinReply()

    async def OpenStore(
        self, request: pb.OpenStoreRequest, context: grpc.aio.ServicerContext[pb.OpenStoreRequest, pb.OpenStoreReply]
    ) -> pb.OpenStoreReply:
        await _authorize(context, request.worker.host)
        async with _faults_told(context):
            endpoint = wire.decode_endpoint(request.endpoint)
            self._server.tell(StoreOpened(wire.decode_worker(request.worker), request.generation, endpoint))
        return pb.OpenStoreReply()

    async def Report(
        self, request: pb.AgentReport, context: grpc.aio.ServicerContext[pb.AgentReport, pb.ReportAck]
    ) -> pb.ReportAck:
        await _authorize(context, request.host)
        async with _faults_told(context):
            self._server.receive(request)
        return pb.ReportAck(number=request.number)

    async def Watch(
        self, request: pb.WatchRequest, context: grpc.aio.ServicerContext[pb.WatchRequest, pb.Notice]
    ) -> AsyncIterator[pb.Notice]:
        await _authorize(context, request.host)
        async for notice in self._server.board(request.host).follow():
            yield wire.encode_notice(notice)


async def _authorize(context: grpc.aio.ServicerContext[Any, Any], host: str) -> None:
    identities = context.auth_context().get("x509_subject_alternative_name", ())
    if agent_identity(host).encode() not in identities:
        await context.abort(grpc.StatusCode.PERMISSION_DENIED, f"your certificate does not speak for host {host!r}")


@contextlib.asynccontextmanager
async def _faults_told(context: grpc.aio.ServicerContext[Any, Any]) -> AsyncIterator[None]:
    """Tell the caller in one sentence what its message contradicts."""
    try:
        yield
    except IllegalEventError as error:
        await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
    except WireError as error:
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
