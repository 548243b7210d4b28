"""A worker's calls, to its agent."""

import math
import os
import sys
import time
from collections.abc import Callable, Iterator

import grpc

from protos import rendezvous_pb2 as pb
from protos import rendezvous_pb2_grpc as pb_grpc
from rendezvous.bootstrap import Bootstrap
from rendezvous.client.calls import CALL_SECONDS, OPTIONS, RETRY_SECONDS, name_socket, raise_final
from rendezvous.client.subscription import CLOSED, Subscription
from rendezvous.core.messages import Announce, Declared, Depart, Interrupt, Joined, OfferResize, Refuse
from rendezvous.core.model import Endpoint, Membership
from rendezvous.core.reports import Report
from rendezvous.errors import (
    GenerationInterruptedError,
    JoinRefusedError,
    SequencerStartError,
    UnreachableError,
)
from rendezvous.wire import codec
from rendezvous.wire.notifications import Notification, Published, SequencerFailed

_FAIL_SECONDS = 1.0  # for a call of one who ends, which its agent sees in any case
_MARGIN_SECONDS = 30.0  # what a worker waits beyond the start timeout, which the server watches over


class WorkerClient:
    """A worker's way to the rendezvous, through its agent's Unix socket; blocking.

    One thread of its own reads what the agent's topic holds for this worker; whoever waits, in any thread, waits for
    what it has read. So it may stay open as long as the worker lives, and an interruption is heard at once.

    In a job that cannot recover, close it as soon as the group is formed: nobody listens, and a process that forks
    with an open channel (a DataLoader with workers does) cannot rely on gRPC in the child.
    """

    def __init__(self, bootstrap: Bootstrap, *, margin_seconds: float = _MARGIN_SECONDS) -> None:
        self._worker = bootstrap.worker
        self._socket = bootstrap.socket
        self._patience_seconds = bootstrap.start_timeout_seconds + margin_seconds
        options = (*OPTIONS, ("grpc.min_reconnect_backoff_ms", 50))
        self._channel = grpc.insecure_channel(name_socket(bootstrap.socket), options=options)
        self._stub = pb_grpc.RendezvousStub(self._channel)
        self._subscription = Subscription(self._stub, self._worker, str(self._socket))
        self._deadline: float | None = None  # for what belongs to joining; None before

    def join(self, after: int, report: Report | None = None) -> Membership:
        """Tell of this worker, and wait for a generation newer than `after` with it in it.

        report: given in a job that recovers. There is no limit then: one that is to be taken in later, or that waits
            until the lost are replaced, waits as long as the job allows, and no longer than its agent lives. Without
            a report, the limit is the start timeout and some seconds.

        Raises:
            JoinRefusedError: there will never be one.
            UnreachableError: nothing came within the limit, or the client was closed.
        """
        deadline = time.monotonic() + (self._patience_seconds if report is None else math.inf)
        joined = codec.encode(Joined(self._worker, after) if report is None else Joined(self._worker, after, report))
        request = pb.JoinRequest(joined=[joined], interpreter=os.fsencode(sys.executable or ""))
        self._call(lambda seconds: self._stub.Join(request, timeout=seconds, wait_for_ready=True), deadline)

        def find(notification: Notification) -> Membership | None:
            match notification:
                case Published(generation, members, key, verdict) if generation > after:
                    assignment = dict(members).get(self._worker)
                    return None if assignment is None else Membership(generation, assignment, key, verdict)
                case Refuse(worker, reason) if worker == self._worker:
                    raise JoinRefusedError(reason)
                case _:
                    return None

        membership = self._subscription.wait(find, deadline)
        if membership is None:
            raise UnreachableError("the rendezvous", str(self._socket), "no generation was formed in time")
        self._deadline = min(deadline, time.monotonic() + self._patience_seconds)
        return membership

    def declare(self, *, needs_state: bool = False) -> None:
        """Say that this worker has state that it can begin again with: from now on a lost member is replaced.

        needs_state: it was taken in later, and has not yet received the others' state, so that nobody may copy its own;
            when it has, it declares again.

        Raises:
            CallRefusedError: the job does not know this worker.
            UnreachableError: nobody answered in time.
        """
        request = codec.encode(Declared(self._worker, needs_state))
        deadline = time.monotonic() + self._patience_seconds
        self._call(lambda seconds: self._stub.Declare(request, timeout=seconds, wait_for_ready=True), deadline)

    def fail(self, returncode: int) -> None:
        """Say that this process will end with this code, as waitpid tells it; the agent tells the others at once.

        Raises:
            CallRefusedError: the agent does not know this worker.
            UnreachableError: nobody answered in time.
        """
        request = pb.FailRequest(worker=codec.encode_worker(self._worker), returncode=returncode)
        deadline = time.monotonic() + _FAIL_SECONDS
        self._call(lambda seconds: self._stub.Fail(request, timeout=min(seconds, _FAIL_SECONDS)), deadline)

    def follow(self) -> Iterator[Interrupt | OfferResize | Depart]:
        """Every interruption, offer and departure that holds now, then each new one, until the client is closed.

        It blocks, and is for a thread that lives as long as the worker: `close`, called by another, ends it at once.

        Raises:
            CallRefusedError: the agent refuses to tell it.
            WireError: what it tells cannot be understood.
        """
        for notification in self._subscription.follow():
            if isinstance(notification, Interrupt | OfferResize | Depart):
                yield notification

    def await_sequencer(self, generation: int) -> Endpoint:
        """Wait until the generation has a sequencer.

        Raises:
            SequencerStartError: there will be none, as the agent of rank 0's host tells rank 0.
            JoinRefusedError: rank 0 has ended without one.
            GenerationInterruptedError: the generation cannot go on.
            UnreachableError: nothing was heard of it within what is left of the time for joining.
        """

        def find(notification: Notification) -> Endpoint | None:
            match notification:
                case Announce(number, endpoint) if number == generation:
                    return endpoint
                case SequencerFailed(number, reason) if number == generation:
                    raise SequencerStartError(reason)
                case Depart(number, _, rank) if number == generation and rank == 0:
                    raise JoinRefusedError("rank 0 has ended before the workers were connected")
                case _:
                    return self._raise_interruption(notification, generation)

        endpoint = self._subscription.wait(find, self._find_deadline())
        if endpoint is None:
            raise UnreachableError("the sequencer", f"generation {generation}", "it was not announced in time")
        return endpoint

    def find_departed(self, generation: int, limit_seconds: float) -> int | None:
        """The rank of a member of the generation that has ended well; None when none is heard of within the limit.

        The news travels from the agent of the departed to the server and back: a peer may notice the broken connection
        earlier.
        """

        def find(notification: Notification) -> int | None:
            match notification:
                case Depart(number, _, rank) if number == generation:
                    return rank
            return None

        return self._subscription.wait(find, time.monotonic() + limit_seconds)

    def close(self) -> None:
        """End all calls, whoever waits for them, and the connection."""
        self._subscription.close()
        self._channel.close()

    def _find_deadline(self) -> float:
        """When the time for joining is over."""
        return time.monotonic() + self._patience_seconds if self._deadline is None else self._deadline

    @staticmethod
    def _raise_interruption(notification: Notification, generation: int) -> None:
        if isinstance(notification, Interrupt) and notification.generation == generation:
            raise GenerationInterruptedError(generation, notification.reason)

    def _call(self, call: Callable[[float], object], deadline: float) -> None:
        """Call with the seconds that one try may take, until it is answered."""
        while True:
            try:
                call(min(CALL_SECONDS, max(0.0, deadline - time.monotonic())))
            except grpc.RpcError as error:
                raise_final(error, str(self._socket))
                if self._subscription.is_closed.wait(RETRY_SECONDS):
                    raise UnreachableError("the agent", str(self._socket), CLOSED) from None
                if time.monotonic() > deadline:
                    raise UnreachableError("the agent", str(self._socket), str(error.details())) from None
            except ValueError:  # gRPC's word for a channel that this client's owner has closed meanwhile
                if not self._subscription.is_closed.is_set():
                    raise
                raise UnreachableError("the agent", str(self._socket), CLOSED) from None
            else:
                return
