"""Typed calls of the rendezvous service: a worker's, to its agent, and an agent's, to the server.

Every call has a deadline. A call that finds nobody is tried again until its time is over, since an agent may still be
starting and a network may stumble; whatever else goes wrong is final and raised at once. gRPC's errors end here.

An agent's connection is asked for a sign of life all the time: where a network is cut without a word, or forgets the
connection (a firewall, a laptop that slept), a new one is made while the lease still runs.
"""

import asyncio
import os
import sys
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from pathlib import Path
from urllib.parse import quote

import grpc

from protos import rendezvous_pb2 as pb
from protos import rendezvous_pb2_grpc as pb_grpc
from rendezvous import wire
from rendezvous.bootstrap import Bootstrap
from rendezvous.core.events import Exited
from rendezvous.core.model import Endpoint, Membership, Worker
from rendezvous.credentials import SERVER_NAME, Credential
from rendezvous.errors import CallRefusedError, JoinRefusedError, SequencerStartError, UnreachableError
from rendezvous.notices import Departed, Notice, Published, Refused, SequencerFailed, SequencerOpened, StoreOpened

CALL_SECONDS = 10.0  # one call's deadline
RETRY_SECONDS = 0.1  # between two tries
_MARGIN_SECONDS = 30.0  # what a worker waits beyond the start timeout, which the server watches over
_LEASE_SECONDS = 30.0
_OPTIONS = (
    ("grpc.enable_http_proxy", 0),  # a proxy in the environment is not for us
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 1000),
)
_SILENCE_SHARE = 0.2  # of a lease: when a silent connection is asked, and how long it has for its answer, but
_LEAST_SILENCE_SECONDS = 1.0  # a busy peer may take that long
_CONNECT_SHARE = 0.25  # of a lease: how long one try to connect may take, within these limits
_CONNECT_LIMITS_SECONDS = (1.0, 5.0)  # a handshake with a busy launcher on a slow line; the lease of most jobs


class WorkerClient:
    """A worker's way to the rendezvous, through its agent's Unix socket; blocking.

    Close it as soon as the group is formed: a process that forks with an open channel (a DataLoader with workers does)
    cannot rely on gRPC in the child.
    """

    def __init__(self, bootstrap: Bootstrap) -> None:
        self._worker = bootstrap.worker
        self._socket = bootstrap.socket
        self._patience_seconds = bootstrap.start_timeout_seconds + _MARGIN_SECONDS
        options = (*_OPTIONS, ("grpc.min_reconnect_backoff_ms", 50))
        self._channel = grpc.insecure_channel(name_socket(bootstrap.socket), options=options)
        self._stub = pb_grpc.RendezvousStub(self._channel)
        self._notices: Iterator[Notice] | None = None  # since the last join
        self._told: list[Notice] = []  # of these, after the generation itself

    def join(self, after: int) -> Membership:
        """Wait for a generation newer than `after` with this worker in it.

        Raises:
            JoinRefusedError: there will never be one.
            UnreachableError: nothing came within the start timeout and some seconds.
        """
        deadline = time.monotonic() + self._patience_seconds
        request = pb.JoinRequest(
            worker=wire.encode_worker(self._worker), after=after, interpreter=os.fsencode(sys.executable or "")
        )
        self._call(lambda seconds: self._stub.Join(request, timeout=seconds, wait_for_ready=True), deadline)
        self._told.clear()
        self._notices = self._follow(deadline)
        for notice in self._notices:
            match notice:
                case Published(generation, members, key) if generation > after and self._worker in dict(members):
                    return Membership(generation, dict(members)[self._worker], key)
                case Refused(worker, reason) if worker == self._worker:
                    raise JoinRefusedError(reason)
                case _:
                    pass
        raise UnreachableError("the rendezvous", str(self._socket), "no generation was formed in time")

    def open_store(self, generation: int, endpoint: Endpoint) -> None:
        """Say where this worker, rank 0 of the generation, serves torch's store.

        Raises:
            CallRefusedError: it is not rank 0 of that generation.
            UnreachableError: nobody answered in time.
        """
        request = pb.OpenStoreRequest(
            worker=wire.encode_worker(self._worker), generation=generation, endpoint=wire.encode_endpoint(endpoint)
        )
        deadline = time.monotonic() + CALL_SECONDS
        self._call(lambda seconds: self._stub.OpenStore(request, timeout=seconds, wait_for_ready=True), deadline)

    def await_store(self, generation: int) -> Endpoint:
        """Wait until rank 0 of the generation has opened its store.

        Raises:
            JoinRefusedError: rank 0 has ended without it.
            UnreachableError: it did not, within what is left of the time for joining.
        """
        for notice in self._read():
            match notice:
                case StoreOpened(number, endpoint) if number == generation:
                    return endpoint
                case Departed(number, _, rank) if number == generation and rank == 0:
                    raise JoinRefusedError("rank 0 has ended before the workers were connected")
                case _:
                    pass
        raise UnreachableError("rank 0's store", f"generation {generation}", "it was not announced in time")

    def await_sequencer(self, generation: int) -> Endpoint:
        """Wait until the agent of this worker, rank 0 of the generation, has a sequencer for it.

        Raises:
            SequencerStartError: there will be none.
            UnreachableError: nothing was heard of it within what is left of the time for joining.
        """
        for notice in self._read():
            match notice:
                case SequencerOpened(number, endpoint) if number == generation:
                    return endpoint
                case SequencerFailed(number, reason) if number == generation:
                    raise SequencerStartError(reason)
                case _:
                    pass
        raise UnreachableError("the sequencer", f"generation {generation}", "this host's agent did not announce it")

    def find_departed(self, generation: int, limit_seconds: float) -> int | None:
        """The rank of a member of the generation that has ended well; None when none is heard of within the limit.

        The news travels from the agent of the departed to the server and back: a peer may notice the broken connection
        earlier.
        """
        for notice in self._follow(time.monotonic() + limit_seconds):
            if isinstance(notice, Departed) and notice.generation == generation:
                return notice.rank
        return None

    def close(self) -> None:
        """End all calls and the connection."""
        self._notices = None
        self._channel.close()

    def _read(self) -> Iterator[Notice]:
        """What has been told of the generation, and then what comes, until the time for joining is over."""
        yield from tuple(self._told)
        for notice in self._notices or self._follow(time.monotonic() + self._patience_seconds):
            self._told.append(notice)
            yield notice

    def _follow(self, deadline: float) -> Iterator[Notice]:
        """What the agent's board holds for this worker, through broken connections, until the deadline."""
        request = pb.WatchRequest(worker=wire.encode_worker(self._worker))
        while (left := deadline - time.monotonic()) > 0:
            try:
                for message in self._stub.Watch(request, timeout=left, wait_for_ready=True):
                    yield wire.decode_notice(message)
            except grpc.RpcError as error:
                _raise_final(error, str(self._socket))
            time.sleep(RETRY_SECONDS)

    def _call(self, call: Callable[[float], object], deadline: float) -> None:
        """Call with the seconds that one try may take, until it is answered."""
        while True:
            try:
                call(min(CALL_SECONDS, max(0.0, deadline - time.monotonic())))
            except grpc.RpcError as error:
                _raise_final(error, str(self._socket))
                if time.monotonic() > deadline:
                    raise UnreachableError("the agent", str(self._socket), str(error.details())) from None
                time.sleep(RETRY_SECONDS)
            else:
                return


def name_socket(path: Path) -> str:
    """How gRPC names a Unix socket: in a URI, in which a path's odd characters are escaped."""
    return f"unix:{quote(os.fsencode(path))}"


class AgentClient:
    """An agent's way to the server, over mutual TLS; asynchronous.

    A connection that has died in silence is replaced so early that the rest of the lease is left for the new one.
    """

    def __init__(self, server: str, host: str, credential: Credential, lease_seconds: float = _LEASE_SECONDS) -> None:
        self._server = server
        self._host = host
        credentials = grpc.ssl_channel_credentials(credential.authority, credential.private_key, credential.certificate)
        options = (*_OPTIONS, *_liveness(lease_seconds), ("grpc.ssl_target_name_override", SERVER_NAME))
        self._channel = grpc.aio.secure_channel(server, credentials, options=options)
        self._stub = pb_grpc.RendezvousStub(self._channel)

    async def report(
        self, number: int, running: Sequence[Worker], ended: Sequence[Exited], limit_seconds: float
    ) -> None:
        """Report once.

        Raises:
            UnreachableError: no acknowledgement came within the limit.
            CallRefusedError: the server refused it.
        """
        report = pb.AgentReport(
            host=self._host,
            number=number,
            running=[wire.encode_worker(worker) for worker in running],
            ended=[wire.encode_exited(event) for event in ended],
        )
        try:
            await self._stub.Report(report, timeout=limit_seconds)
        except grpc.aio.AioRpcError as error:
            _raise_final(error, self._server)
            raise UnreachableError("the rendezvous server", self._server, str(error.details())) from None

    async def join(self, request: pb.JoinRequest) -> pb.JoinReply:
        """Pass a worker's wish on."""
        return await self._stub.Join(request, timeout=CALL_SECONDS)

    async def open_store(self, request: pb.OpenStoreRequest) -> pb.OpenStoreReply:
        """Pass on where a worker's store listens."""
        return await self._stub.OpenStore(request, timeout=CALL_SECONDS)

    async def watch(self) -> AsyncGenerator[Notice, None]:
        """What the server's board holds for this host, through broken connections, until cancelled."""
        while True:
            try:
                async for message in self._stub.Watch(pb.WatchRequest(host=self._host)):
                    yield wire.decode_notice(message)
            except grpc.aio.AioRpcError as error:
                _raise_final(error, self._server)
            await asyncio.sleep(RETRY_SECONDS)

    async def close(self) -> None:
        """End all calls and the connection."""
        await self._channel.close()


def _liveness(lease_seconds: float) -> tuple[tuple[str, int], ...]:
    """Options for a connection that is known to be alive, in milliseconds."""
    silence = int(1000 * max(_LEAST_SILENCE_SECONDS, _SILENCE_SHARE * lease_seconds))
    least, most = _CONNECT_LIMITS_SECONDS
    return (
        ("grpc.keepalive_time_ms", silence),
        ("grpc.keepalive_timeout_ms", silence),
        ("grpc.http2.ping_timeout_ms", silence),  # 60 s, else, and the former changes nothing while a ping is under way
        ("grpc.http2.max_pings_without_data", 0),  # as many as it takes: the watch may be silent for days
        # Despite its name, this is how long one try to connect may take.
        ("grpc.min_reconnect_backoff_ms", int(1000 * min(most, max(least, _CONNECT_SHARE * lease_seconds)))),
    )


# A path that is broken, or a peer that ends or is late. Whatever else a call ends with, it would end with again: the
# peer refuses it, does not know it, or cannot read it (INTERNAL), or it is too large (RESOURCE_EXHAUSTED).
_RETRIED = frozenset({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED})


def _raise_final(error: grpc.RpcError, where: str) -> None:
    """Raise what no further try can mend."""
    if error.code() not in _RETRIED:
        raise CallRefusedError(where, str(error.details())) from None
