"""A worker's subscription to its agent's notifications: a background thread reads them while the client is open."""

import math
import threading
import time
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from typing import TypeVar

import grpc

from protos import rendezvous_pb2 as pb
from protos import rendezvous_pb2_grpc as pb_grpc
from rendezvous.client.calls import RETRY_SECONDS, raise_final
from rendezvous.core.model import Worker
from rendezvous.errors import UnreachableError
from rendezvous.wire import codec
from rendezvous.wire.notifications import Notification, StandingNotifications

T = TypeVar("T")

CLOSED = "the client was closed"
_END_SECONDS = 1.0  # for the thread to end; it waits only for the call, which is cancelled


class Subscription:
    """A worker's subscription to its agent's topic; starts with the first call that waits, and ends with `close`.

    Args:
        stub: the service.
        worker: the subscriber.
        where: the agent's socket, for messages.
    """

    def __init__(self, stub: pb_grpc.RendezvousStub, worker: Worker, where: str) -> None:
        self._stub = stub
        self._worker = worker
        self._where = where
        self._changed = threading.Condition()  # guards the fields below
        self._standing = StandingNotifications()
        self._subscribers: set[SimpleQueue[Notification | None]] = set()
        self._failure: Exception | None = None
        self._call: grpc.Call | None = None
        self._thread: threading.Thread | None = None
        self.is_closed = threading.Event()

    def wait(self, find: Callable[[Notification], T | None], deadline: float) -> T | None:
        """Wait until `find` returns a value for a notification, and return it; None if the deadline passes.

        deadline: on the monotonic clock; infinity for none.

        Raises:
            CallRefusedError: the agent refuses the subscription.
            WireError: a notification is malformed.
            UnreachableError: the client was closed.
        """
        with self._changed:
            self._start()
            while True:
                for notification in self._standing:
                    if (found := find(notification)) is not None:
                        return found
                self._raise_end()
                left_seconds = deadline - time.monotonic()
                if left_seconds <= 0:
                    return None
                self._changed.wait(None if left_seconds == math.inf else left_seconds)

    def follow(self) -> Iterator[Notification]:
        """Every notification that holds now, then each new one, until this is closed.

        Raises:
            CallRefusedError: the agent refuses the subscription.
            WireError: a notification is malformed.
        """
        queue: SimpleQueue[Notification | None] = SimpleQueue()
        with self._changed:
            if self.is_closed.is_set():
                return
            self._start()
            for notification in self._standing:
                queue.put(notification)
            self._subscribers.add(queue)

        try:
            while (notification_or_end := queue.get()) is not None:
                yield notification_or_end
        finally:
            with self._changed:
                self._subscribers.discard(queue)

        with self._changed:
            if not self.is_closed.is_set():
                self._raise_end()

    def close(self) -> None:
        """End the subscription, and every call that waits for it."""
        self.is_closed.set()
        with self._changed:
            call, thread = self._call, self._thread
            self._wake_all()
        if call is not None:
            call.cancel()
        if thread is not None and thread is not threading.current_thread():
            thread.join(_END_SECONDS)

    def _start(self) -> None:
        """Start the thread unless it runs, and forget the error of a former one."""
        if self._thread is None and not self.is_closed.is_set():
            self._failure = None
            self._thread = threading.Thread(target=self._read, name="hvdrun-notices", daemon=True)
            self._thread.start()

    def _read(self) -> None:
        """Read through broken connections, until closed or refused; any other error reaches all callers, too."""
        request = pb.WatchRequest(worker=codec.encode_worker(self._worker))
        failure: Exception | None = None
        while failure is None and not self.is_closed.is_set():
            try:
                self._read_once(request)
            except Exception as error:  # noqa: BLE001 - raised in every thread that waits here
                failure = error
            else:
                self.is_closed.wait(RETRY_SECONDS)
        with self._changed:
            self._failure = failure
            self._thread = None
            self._wake_all()

    def _read_once(self, request: pb.WatchRequest) -> None:
        try:
            call = self._stub.Watch(request, wait_for_ready=True)
        except ValueError:  # what gRPC raises after the channel was closed
            return
        with self._changed:
            self._call = call
        # `close` came before there was a call to cancel.
        if self.is_closed.is_set():
            call.cancel()
        try:
            for message in call:
                self._take(codec.decode_notification(message))
        except grpc.RpcError as error:
            raise_final(error, self._where)

    def _take(self, notification: Notification) -> None:
        with self._changed:
            if self._standing.add(notification):
                for subscriber in self._subscribers:
                    subscriber.put(notification)
                self._changed.notify_all()

    def _wake_all(self) -> None:
        for subscriber in self._subscribers:
            subscriber.put(None)
        self._changed.notify_all()

    def _raise_end(self) -> None:
        if self._failure is not None:
            raise self._failure
        if self.is_closed.is_set():
            raise UnreachableError("the agent", self._where, CLOSED)
