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
from rendezvous.core.effects import Announce, Depart, Effect, Publish, Refuse
from rendezvous.core.errors import IllegalEventError
from rendezvous.core.events import Event, Joined, Reported, StoreOpened, Ticked
from rendezvous.core.model import Policy
from rendezvous.core.state import State
from rendezvous.credentials import Credential, agent_identity
from rendezvous.errors import ListenError, WireError
from rendezvous.notices import Board, Departed, Published, Refused
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
        self._owner: asyncio.Task[Any] | None = None
        self._owner_was_stopped = False
        pb_grpc.add_RendezvousServicer_to_server(_Servicer(self), self._server)

    async def open(self, address: str) -> int:
        """Listen on a free port of `address`; the port is returned. The clock starts now.

        Raises:
            ListenError: the address is none of this machine's.
        """
        credential = self._credential
        credentials = grpc.ssl_server_credentials(
            [(credential.private_key, credential.certificate)], credential.authority, require_client_auth=True
        )
        host = f"[{address}]" if ":" in address else address
        try:
            port = self._server.add_secure_port(f"{host}:0", credentials)
        except RuntimeError as error:
            raise ListenError(address, str(error)) from None
        await self._server.start()
        self.tell(Ticked(time.monotonic()))
        self._clock = asyncio.create_task(self._tick())
        self._clock.add_done_callback(self._stop_owner)
        return port

    async def close(self) -> None:
        """Stop the clock and every call; what has stopped the clock before is raised."""
        if self._clock is not None:
            self._clock.cancel()
            await asyncio.wait({self._clock})
        await self._server.stop(grace=None)
        if self._clock is not None and not self._clock.cancelled():
            self._clock.result()

    async def __aenter__(self) -> Self:
        self._owner = asyncio.current_task()
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            await self.close()
        finally:
            if self._owner_was_stopped and self._owner is not None:
                self._owner.uncancel()

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
        """Take in an agent's report, unless a newer one has come already; ends come before the sign of life.

        Raises:
            WireError: the report is malformed; nothing has changed.
            IllegalEventError: it contradicts the state, or speaks for another host.
        """
        if not report.number:
            raise WireError("a report without number")
        if report.number <= self._last_reports.get(report.host, 0):
            return
        ends = [wire.decode_exited(ended) for ended in report.ended]
        running = tuple(wire.decode_worker(worker) for worker in report.running)
        for end in ends:
            if end.worker.slot.host != report.host:
                raise IllegalEventError(end, f"worker {end.worker} is not on host {report.host}")
        for end in ends:
            self.tell(end)
        self.tell(Reported(report.host, running))
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
            case Depart(generation, worker, rank):
                for board in self._boards.values():
                    board.post(Departed(generation, worker, rank))
            case Refuse(worker, reason):
                self.board(worker.slot.host).post(Refused(worker, reason))
            case _:
                self._carry_out(effect)

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_SECONDS)
            self.tell(Ticked(time.monotonic()))

    def _stop_owner(self, clock: asyncio.Task[None]) -> None:
        """A job without a clock would wait for ever: end the `async with` block, which raises what has happened."""
        if self._owner is not None and not clock.cancelled():
            self._owner_was_stopped = self._owner.cancel()


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
        async with contextlib.aclosing(self._server.board(request.host).follow()) as notices:
            async for notice in notices:
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
