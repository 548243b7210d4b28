"""The rendezvous server: agents reach the state machine of the job by gRPC, at one port or more. It owns the clock.

Any program that reaches a port can connect. Without the job's certificate it gets no further than the handshake, which
has a time limit. It costs one connection, and nothing is printed.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Self

from rendezvous.server import serving  # imported before gRPC, whose log it turns off

# isort: split
import grpc

from protos import rendezvous_pb2_grpc as pb_grpc
from rendezvous.core.messages import Effect, Ticked
from rendezvous.core.model import Policy
from rendezvous.errors import ListenError
from rendezvous.server.file_limit import count_connections
from rendezvous.server.servicer import Servicer
from rendezvous.server.state_machine import NoteStep, StateMachine, Term
from rendezvous.wire.orders import Credential
from rendezvous.wire.tasks import TaskDispatcher

TICK_SECONDS = 0.25
HANDSHAKE_SECONDS = 10.0  # for a caller to show its certificate: a busy host on a slow line needs one or two
# The largest message is the report of a host on which no command was found, each with the PATH that was searched: 4 KB
# for each of 1,000 slots.
MAX_MESSAGE_BYTES = 4 * 1024 * 1024
# Calls that have arrived and have not started. By default gRPC refuses some beyond 1,000 and all beyond 3,000, and a
# job's workers join at the same moment. A call needs a certificate.
_MOST_PENDING_CALLS = 1_000_000
_KEEPALIVE_SECONDS = 10.0  # an agent that vanished keeps its connection for twice this; the core counts its lease
_OPTIONS = (
    ("grpc.so_reuseport", 0),  # else a second server could bind the same port unnoticed
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.server.max_pending_requests", _MOST_PENDING_CALLS),
    ("grpc.server.max_pending_requests_hard_limit", _MOST_PENDING_CALLS),
    ("grpc.server_handshake_timeout_ms", int(HANDSHAKE_SECONDS * 1000)),
    ("grpc.keepalive_time_ms", int(_KEEPALIVE_SECONDS * 1000)),
    ("grpc.keepalive_timeout_ms", int(_KEEPALIVE_SECONDS * 1000)),
    ("grpc.http2.ping_timeout_ms", int(_KEEPALIVE_SECONDS * 1000)),  # counts as well, and is 60 s else
    ("grpc.http2.max_ping_strikes", 0),  # agents ping as often as their lease needs, and have a certificate
)


class Server(StateMachine):
    """Serves one job's membership; an asynchronous context manager, which closes its ports and stops its clock.

    Args:
        policy, carry_out, tasks, note_step, term: see `StateMachine`.
        credential: the server's certificate and key.
    """

    def __init__(
        self,
        policy: Policy,
        carry_out: Callable[[Effect], None],
        credential: Credential,
        tasks: TaskDispatcher | None = None,
        note_step: NoteStep | None = None,
        *,
        term: Term | None = None,
    ) -> None:
        super().__init__(policy, carry_out, tasks, note_step, term or Term())
        self._servicer = Servicer(self)
        self._credential = credential
        self._listeners: list[grpc.aio.Server] = []
        self._clock: asyncio.Task[None] | None = None

    async def open(self, address: str, port: int = 0) -> int:
        """Listen on one more address, and return the port: this one, or a free one. The first call starts the clock.

        Raises:
            ListenError: this machine does not have the address, the port is taken, or gRPC does not start.
        """
        await self.resume()
        credential = self._credential
        credentials = grpc.ssl_server_credentials(
            [(credential.private_key, credential.certificate)], credential.authority, require_client_auth=True
        )

        host = address
        if ":" in address:
            host = f"[{address}]"
        listener = grpc.aio.server(options=(*_OPTIONS, ("grpc.max_allowed_incoming_connections", count_connections())))
        self._listeners.append(listener)
        pb_grpc.add_RendezvousServicer_to_server(self._servicer, listener)

        try:
            port = listener.add_secure_port(f"{host}:{port}", credentials)
            await serving.start(listener)
        except (RuntimeError, TimeoutError) as error:
            raise ListenError(address, serving.find_reason(error)) from None

        if self._clock is None:
            self.submit(Ticked(time.monotonic()))
            self._clock = asyncio.create_task(self._tick(), name="tick")
            self._clock.add_done_callback(self._fail_with_clock)
        return port

    async def close(self) -> None:
        """Stop the clock and every call, then raise the error that `fail` has recorded."""
        if self._clock is not None:
            self._clock.cancel()
            await asyncio.wait({self._clock})
        if self._commits is not None:
            await self._commits.close()
        await serving.stop(self._listeners)
        if self._failure is not None:
            raise self._failure

    async def __aenter__(self) -> Self:
        self._owner = asyncio.current_task()
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            await self.close()
        finally:
            if self._owner_was_stopped and self._owner is not None:
                self._owner.uncancel()

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_SECONDS)
            self.submit(Ticked(time.monotonic()))

    def _fail_with_clock(self, clock: asyncio.Task[None]) -> None:
        if not clock.cancelled() and (error := clock.exception()) is not None:
            self.fail(error)
