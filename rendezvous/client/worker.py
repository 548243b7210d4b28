"""A worker's calls to its agent."""

import math
import os
import sys
import time
from collections.abc import Callable, Iterator

import grpc

from protos import rendezvous_pb2 as pb
from rendezvous.bootstrap import Bootstrap
from rendezvous.client.calls import CALL_SECONDS, RETRY_SECONDS, connect_to_agent, raise_final
from rendezvous.client.subscription import CLOSED, Subscription
from rendezvous.core.messages import Announce, Declared, Depart, Interrupt, Joined, OfferResize, Refuse
from rendezvous.core.model import Endpoint, Membership
from rendezvous.core.outcome import Blame
from rendezvous.core.reports import Report
from rendezvous.errors import (
    GenerationInterruptedError,
    JoinRefusedError,
    SequencerStartError,
    UnreachableError,
)
from rendezvous.wire import codec
from rendezvous.wire.notifications import Notification, Published, SequencerFailed

_FAIL_SECONDS = 1.0  # for the call of a worker that exits, which its agent notices anyway
# A worker waits longer than the start timeout, so that the server reports that; and longer than the server may be away,
# so that its agent reports that.
_MARGIN_SECONDS = 30.0


class WorkerClient:
    """A worker's connection to the rendezvous, through its agent's Unix socket; blocking.

    A background thread reads the agent's notifications for this worker. Calls that wait, in any thread, wait for what
    it reads. So the client may stay open as long as the worker lives, and interruptions arrive immediately.

    In a static job, close it when the group is formed: no more notifications are needed, and gRPC does not work in the
    child of a process that forks with an open channel, as a DataLoader with workers does.

    Args:
        bootstrap: of this worker.
        margin_seconds: how much longer than the start timeout, or the server timeout, calls wait.
    """

    def __init__(self, bootstrap: Bootstrap, *, margin_seconds: float = _MARGIN_SECONDS) -> None:
        self._worker = bootstrap.worker
        self._socket = bootstrap.socket
        limit_seconds = max(bootstrap.start_timeout_seconds, bootstrap.server_timeout_seconds)
        self._patience_seconds = limit_seconds + margin_seconds
        self._channel, self._stub = connect_to_agent(bootstrap.socket)
        self._subscription = Subscription(self._stub, self._worker, str(self._socket))
        self._deadline: float | None = None  # for connecting to the other members; None before `join`

    def join(self, after: int, report: Report | None = None) -> Membership:
        """Join, and wait for a generation newer than `after` that includes this worker.

        report: given in an elastic job. There is no limit then: a new worker, or one that waits until lost ones are
            replaced, waits as long as the job allows. Without a report, the limit is the start timeout and some
            seconds; in a job that outlives its launcher, the server timeout if that is longer.

        Raises:
            JoinRefusedError: no generation will include this worker.
            UnreachableError: no generation came within the limit, or the client was closed.
        """
        deadline = time.monotonic() + (self._patience_seconds if report is None else math.inf)
        joined = codec.encode(Joined(self._worker, after) if report is None else Joined(self._worker, after, report))
        request = pb.JoinRequest(joined=[joined], interpreter=os.fsencode(sys.executable or ""))
        self._call(lambda seconds: self._stub.Join(request, timeout=seconds, wait_for_ready=True), deadline)

        def find(notification: Notification) -> Membership | None:
            match notification:
                case Published(generation, members, key, decision) if generation > after:
                    assignment = dict(members).get(self._worker)
                    if assignment is None:
                        return None
                    return Membership(generation, assignment, key, decision)
                case Refuse(worker, reason, leaves) if worker == self._worker:
                    raise JoinRefusedError(reason, leaves=leaves)
                case _:
                    return None

        membership = self._subscription.wait(find, deadline)
        if membership is None:
            raise UnreachableError("the rendezvous", str(self._socket), "no generation was formed in time")
        self._deadline = min(deadline, time.monotonic() + self._patience_seconds)
        return membership

    def declare(self, *, needs_state: bool = False) -> None:
        """Declare that this worker has a state that it can restore: from now on lost members are replaced.

        needs_state: this worker was added later, and has not received the others' state yet, so no worker may copy from
            it. When this worker has received the state, it declares again.

        Raises:
            CallRefusedError: the job does not know this worker.
            UnreachableError: no answer came in time.
        """
        request = codec.encode(Declared(self._worker, needs_state))
        deadline = time.monotonic() + self._patience_seconds
        self._call(lambda seconds: self._stub.Declare(request, timeout=seconds, wait_for_ready=True), deadline)

    def fail(self, returncode: int, blame: Blame | None = None, *, follows: bool = False) -> None:
        """Report that this process will exit with this code, as waitpid returns it.

        The others learn of a failure early. With 0, the agent notes that the program has ended by itself.

        Args:
            returncode: the exit code.
            blame: which other part of the job made the program fail; None if that is not known.
            follows: another failure is the cause of this one, and must be reported first: so this one is reported only
                when the process has ended.

        Raises:
            CallRefusedError: the agent does not know this worker.
            UnreachableError: no answer came in time.
        """
        worker = codec.encode_worker(self._worker)
        reported = None if blame is None else codec.encode(blame)
        request = pb.FailRequest(worker=worker, returncode=returncode, blame=reported, follows=follows)
        deadline = time.monotonic() + _FAIL_SECONDS
        self._call(lambda seconds: self._stub.Fail(request, timeout=seconds), deadline)

    def follow(self) -> Iterator[Interrupt | OfferResize | Depart]:
        """Every interruption, offer and departure that holds now, then each new one, until the client is closed.

        It blocks, and is for a thread that lives as long as the worker; `close`, called by another thread, ends it.

        Raises:
            CallRefusedError: the agent refuses the subscription.
            WireError: a notification is malformed.
        """
        for notification in self._subscription.follow():
            if isinstance(notification, Interrupt | OfferResize | Depart):
                yield notification

    def await_sequencer(self, generation: int) -> Endpoint:
        """Wait until the generation has a sequencer.

        Raises:
            SequencerStartError: it could not be started; the agent of rank 0's host reports this to rank 0.
            JoinRefusedError: rank 0 has exited without one.
            GenerationInterruptedError: the generation cannot continue.
            UnreachableError: none was announced within the remaining time for joining.
        """

        def find(notification: Notification) -> Endpoint | None:
            match notification:
                case Announce(number, endpoint) if number == generation:
                    return endpoint
                case SequencerFailed(number, reason) if number == generation:
                    raise SequencerStartError(reason)
                case Depart(number, _, rank) if number == generation and rank == 0:
                    raise JoinRefusedError("rank 0 has exited before the workers were connected")
                case _:
                    return self._raise_interruption(notification, generation)

        endpoint = self._subscription.wait(find, self._find_deadline())
        if endpoint is None:
            raise UnreachableError("the sequencer", f"generation {generation}", "it was not announced in time")
        return endpoint

    def find_departed(self, generation: int, limit_seconds: float) -> int | None:
        """The rank of a member of the generation that has exited with 0; None if none is reported within the limit.

        The report travels over the server, so a peer may notice the broken connection earlier.
        """

        def find(notification: Notification) -> int | None:
            match notification:
                case Depart(number, _, rank) if number == generation:
                    return rank
            return None

        return self._subscription.wait(find, time.monotonic() + limit_seconds)

    def close(self) -> None:
        """End all calls and close the connection."""
        self._subscription.close()
        self._channel.close()

    def _find_deadline(self) -> float:
        """When the time for joining is over, on the monotonic clock."""
        if self._deadline is None:
            return time.monotonic() + self._patience_seconds
        return self._deadline

    @staticmethod
    def _raise_interruption(notification: Notification, generation: int) -> None:
        if isinstance(notification, Interrupt) and notification.generation == generation:
            raise GenerationInterruptedError(generation, notification.reason)

    def _call(self, call: Callable[[float], object], deadline: float) -> None:
        """Call until there is an answer; `call` gets the time limit of one try, in seconds."""
        while True:
            try:
                call(min(CALL_SECONDS, max(0.0, deadline - time.monotonic())))
            except grpc.RpcError as error:
                raise_final(error, str(self._socket))
                if self._subscription.is_closed.wait(RETRY_SECONDS):
                    raise UnreachableError("the agent", str(self._socket), CLOSED) from None
                if time.monotonic() > deadline:
                    raise UnreachableError("the agent", str(self._socket), str(error.details())) from None
            except ValueError:  # what gRPC raises after the client's owner has closed the channel
                if not self._subscription.is_closed.is_set():
                    raise
                raise UnreachableError("the agent", str(self._socket), CLOSED) from None
            else:
                return
