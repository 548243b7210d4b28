"""An agent's calls to the server.

The connection is pinged: if it breaks silently (a cut network, a firewall, a laptop that slept), a new one is opened
before the lease runs out.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import Any, TypeVar

import grpc

from protos import rendezvous_pb2 as pb
from protos import rendezvous_pb2_grpc as pb_grpc
from rendezvous.client.calls import CALL_SECONDS, OPTIONS, RETRY_SECONDS, Pauses, may_be_retried, raise_final
from rendezvous.client.terms import Terms
from rendezvous.core.messages import Exited, SequencerOpened
from rendezvous.core.model import DEFAULT_LEASE_SECONDS, Endpoint, Worker
from rendezvous.errors import UnreachableError
from rendezvous.wire import codec
from rendezvous.wire.notifications import Notification
from rendezvous.wire.orders import SERVER_NAME, Credential, Order

T = TypeVar("T")

_SILENCE_SHARE = 0.2  # of a lease: when a silent connection is pinged, and how long the answer may take
_LEAST_SILENCE_SECONDS = 1.0  # at least, since a busy peer may take as long
_CONNECT_SHARE = 0.25  # of a lease: how long one try to connect may take
_CONNECT_LIMITS_SECONDS = (1.0, 5.0)  # at least, since a busy launcher may take as long; and at most


class AgentClient:
    """An agent's connection to the server, over mutual TLS; asynchronous.

    Args:
        server: the server's address and port.
        host: the agent's host, by its name in the job.
        credential: the agent's certificate and key.
        lease_seconds: how long a host may be silent.
        is_patient: the job outlives its server, which may be started again.

    stub: the service, for calls of workers that the agent forwards as they are.
    """

    def __init__(
        self,
        server: str,
        host: str,
        credential: Credential,
        lease_seconds: float = DEFAULT_LEASE_SECONDS,
        *,
        is_patient: bool = False,
    ) -> None:
        self._server = server
        self._host = host
        credentials = grpc.ssl_channel_credentials(credential.authority, credential.private_key, credential.certificate)
        options = (*OPTIONS, *_liveness(lease_seconds), ("grpc.ssl_target_name_override", SERVER_NAME))
        self._channel = grpc.aio.secure_channel(server, credentials, options=options)
        self.stub = pb_grpc.RendezvousStub(self._channel)
        self._is_patient = is_patient
        self._terms = Terms(is_patient=is_patient)
        self._joining: list[pb.Joined] = []  # joins that have not been sent
        self._sending = asyncio.Lock()

    async def report(
        self,
        number: int,
        running: Sequence[Worker],
        ended: Sequence[Exited],
        limit_seconds: float,
        *,
        is_noticed: bool = False,
        signal: int = 0,
        has_world: bool = False,
        sequencer_end: str = "",
    ) -> None:
        """Report once.

        is_noticed: a stop notice has come to this host.
        signal: that ends the agent; 0: none.
        has_world: a process of rank 0, on this host, listens at the port of its round.
        sequencer_end: how the sequencer of this host ended unexpectedly; "" if it has not.

        Raises:
            UnreachableError: no acknowledgement came within the limit.
            CallRefusedError: the server refused it.
        """
        report = pb.AgentReport(
            host=self._host,
            number=number,
            running=[codec.encode_worker(worker) for worker in running],
            exited=[codec.encode(event) for event in ended],
            noticed=is_noticed,
            signal=signal,
            has_world=has_world,
            sequencer_end=sequencer_end,
        )
        try:
            await self._terms.answer(self.stub.Report(report, timeout=limit_seconds))
        except grpc.aio.AioRpcError as error:
            raise_final(error, self._server)
            raise UnreachableError("the rendezvous server", self._server, str(error.details())) from None

    async def join(self, joined: pb.Joined) -> pb.Ack:
        """Forward a worker's join, in one call with those that came while the last call was in progress.

        A host's workers join at the same time, when the server of a large job is busy: it gets about two calls from
        each host, not one from each worker.
        """
        self._joining.append(joined)
        try:
            async with self._sending:
                # If none is, another worker's call has sent it.
                if any(each is joined for each in self._joining):
                    await self._send_joins(joined)
        finally:
            self._joining = [each for each in self._joining if each is not joined]
        return pb.Ack()

    async def _send_joins(self, joined: pb.Joined) -> None:
        sent = tuple(self._joining)
        try:
            await self._terms.answer(self.stub.Join(pb.JoinRequest(joined=sent), timeout=CALL_SECONDS))
        except grpc.aio.AioRpcError as error:
            if len(sent) == 1 or may_be_retried(error):
                raise
            # The refusal may be due to another worker's join.
            await self._terms.answer(self.stub.Join(pb.JoinRequest(joined=[joined]), timeout=CALL_SECONDS))
        else:
            self._joining = [each for each in self._joining if not any(each is one for one in sent)]

    async def declare(self, declared: pb.Declared) -> pb.Ack:
        """Forward a worker's declaration."""
        return await self._terms.answer(self.stub.Declare(declared, timeout=CALL_SECONDS))

    async def open_sequencer(self, generation: int, endpoint: Endpoint) -> None:
        """Report where the generation's sequencer listens; retries through broken connections until cancelled.

        Raises:
            CallRefusedError: rank 0 of that generation is not on this host.
        """
        request = codec.encode(SequencerOpened(self._host, generation, endpoint))
        while True:
            try:
                await self._terms.answer(self.stub.OpenSequencer(request, timeout=CALL_SECONDS))
            except grpc.aio.AioRpcError as error:
                raise_final(error, self._server)
            else:
                return
            await asyncio.sleep(RETRY_SECONDS)

    async def watch(self) -> AsyncGenerator[Notification, None]:
        """The notifications of the server for this host; retries through broken connections until cancelled."""
        stream = self._follow(lambda: self.stub.Watch(pb.WatchRequest(host=self._host)))
        async with aclosing(stream) as messages:
            async for message in messages:
                yield codec.decode_notification(message)

    async def obey(self, note_open: Callable[[], None] = lambda: None) -> AsyncGenerator[Order, None]:
        """The launcher's orders to this agent; retries through broken connections until cancelled.

        note_open: is called each time when the launcher has answered, before its orders.

        Raises:
            CallRefusedError: another agent has replaced this one.
        """
        stream = self._follow(lambda: self.stub.Obey(pb.ObeyRequest(host=self._host)), note_open)
        async with aclosing(stream) as messages:
            async for message in messages:
                yield codec.read_order(message)

    async def deliver(self, first: int, messages: Sequence[bytes], *, is_last: bool = False) -> int:
        """Deliver messages once; returns the number up to which all have been shown.

        first: the number of the first.
        is_last: this agent has nothing more to say.

        Raises:
            UnreachableError: no answer came.
            CallRefusedError: another agent has replaced this one.
        """
        delivery = pb.Delivery(host=self._host, first=first, messages=messages, is_last=is_last)
        try:
            shown: pb.Shown = await self._terms.answer(self.stub.Deliver(delivery, timeout=CALL_SECONDS))
        except grpc.aio.AioRpcError as error:
            raise_final(error, self._server)
            raise UnreachableError("the rendezvous server", self._server, str(error.details())) from None
        return int(shown.number)

    async def _follow(
        self, call: "Callable[[], grpc.aio.UnaryStreamCall[Any, T]]", note_open: Callable[[], None] = lambda: None
    ) -> AsyncGenerator[T, None]:
        """The messages of a stream, which is opened again and again; those of a former server are dropped."""
        pauses = Pauses(is_patient=self._is_patient)
        while True:
            stream = call()
            try:
                term = self._terms.note(await stream.initial_metadata())
                if term:
                    pauses.reset()
                    note_open()
                async for message in stream:
                    if term < self._terms.latest:
                        break
                    yield message
            except grpc.aio.AioRpcError as error:
                raise_final(self._terms.judge(error), self._server)
            finally:
                stream.cancel()
            await asyncio.sleep(pauses.next())

    async def close(self) -> None:
        """End all calls and the connection."""
        await self._channel.close()


def _liveness(lease_seconds: float) -> tuple[tuple[str, int], ...]:
    """GRPC's options for pings and connecting, in milliseconds."""
    silence = int(1000 * max(_LEAST_SILENCE_SECONDS, _SILENCE_SHARE * lease_seconds))
    least, most = _CONNECT_LIMITS_SECONDS
    return (
        ("grpc.keepalive_time_ms", silence),
        ("grpc.keepalive_timeout_ms", silence),
        ("grpc.http2.ping_timeout_ms", silence),  # 60 s by default; while a ping is pending, this limit counts
        ("grpc.http2.max_pings_without_data", 0),  # no limit: the watch may be silent for days
        # Despite its name, this limits one try to connect.
        ("grpc.min_reconnect_backoff_ms", int(1000 * min(most, max(least, _CONNECT_SHARE * lease_seconds)))),
    )
