"""The rendezvous service on an agent's Unix socket: workers call here, and what must go further is passed on.

Notices come once per host and are handed out from a board, so the server hears hosts, not ranks. The socket lies in a
folder that only its user can enter, which is why a worker needs no credential.
"""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc

from protos import rendezvous_pb2 as pb
from protos import rendezvous_pb2_grpc as pb_grpc
from rendezvous import wire
from rendezvous.client import AgentClient, name_socket
from rendezvous.errors import ListenError, WireError
from rendezvous.notices import Board, Refused


class Relay(pb_grpc.RendezvousServicer):
    """Serves the workers of one host."""

    def __init__(self, host: str, client: AgentClient) -> None:
        self._host = host
        self._client = client
        self._board = Board()
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
        except (RuntimeError, OSError) as error:
            raise ListenError(str(socket), str(error)) from None
        await self._server.start()

    async def follow_server(self) -> None:
        """Hang up what the server tells this host, until cancelled; without this, workers hear nothing.

        Raises:
            CallRefusedError: the server refuses to tell it.
            WireError: what it tells cannot be understood.
        """
        async for notice in self._client.watch():
            self._board.post(notice)

    async def close(self) -> None:
        """Stop serving; the socket goes with its folder."""
        await self._server.stop(grace=None)

    async def Join(
        self, request: pb.JoinRequest, context: grpc.aio.ServicerContext[pb.JoinRequest, pb.JoinReply]
    ) -> pb.JoinReply:
        async with _faults_told(context):
            return await self._client.join(request)

    async def OpenStore(
        self, request: pb.OpenStoreRequest, context: grpc.aio.ServicerContext[pb.OpenStoreRequest, pb.OpenStoreReply]
    ) -> pb.OpenStoreReply:
        async with _faults_told(context):
            return await self._client.open_store(request)

    async def Watch(
        self, request: pb.WatchRequest, context: grpc.aio.ServicerContext[pb.WatchRequest, pb.Notice]
    ) -> AsyncIterator[pb.Notice]:
        async with _faults_told(context):
            worker = wire.decode_worker(request.worker)
        if worker.slot.host != self._host:
            reason = f"worker {worker} is not on host {self._host}"
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, reason)
        async with contextlib.aclosing(self._board.follow()) as notices:
            async for notice in notices:
                if not (isinstance(notice, Refused) and notice.worker != worker):
                    yield wire.encode_notice(notice)

    async def Report(
        self, request: pb.AgentReport, context: grpc.aio.ServicerContext[pb.AgentReport, pb.ReportAck]
    ) -> pb.ReportAck:
        await context.abort(grpc.StatusCode.PERMISSION_DENIED, "only an agent reports, and to the server")


@contextlib.asynccontextmanager
async def _faults_told(context: grpc.aio.ServicerContext[Any, Any]) -> AsyncIterator[None]:
    """Answer a worker's call as the server has answered the relay's, and say what a message lacks."""
    try:
        yield
    except WireError as error:
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
    except grpc.aio.AioRpcError as error:
        await context.abort(error.code(), error.details() or "")
