"""A worker's subscription to what its agent publishes: a thread of its own reads it as long as the client is open."""

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
from rendezvous.errors import CallRefusedError, RendezvousError, UnreachableError, WireError
from rendezvous.wire import codec
from rendezvous.wire.notifications import Notification, Snapshot

T = TypeVar("T")

CLOSED = "the client was closed"
_END_SECONDS = 1.0  # for the thread to end; it waits for nothing but the call, which is cancelled


class Subscription:
    """A worker's subscription to its agent's topic; begins with the first call that waits, and ends with `close`.

    Args:
        stub: the service.
        worker: who is told.
        where: the agent's socket, for messages.
    """

    def __init__(self, stub: pb_grpc.RendezvousStub, worker: Worker, where: str) -> None:
        self._stub = stub
        self._worker = worker
        self._where = where
        self._news = threading.Condition()  # guards all that follows
        self._snapshot = Snapshot()
        self._subscribers: set[SimpleQueue[Notification | None]] = set()
        self._failure: RendezvousError | None = None
        self._call: grpc.Call | None = None
        self._thread: threading.Thread | None = None
        self.is_closed = threading.Event()

    def wait(self, find: Callable[[Notification], T | None], deadline: float) -> T | None:
        """The first that `find` finds in a notification that holds now or later; None when the deadline has passed.

        deadline: on the monotonic clock; infinity for none.

        Raises:
            CallRefusedError: the agent refuses to tell this worker.
            WireError: what it tells cannot be understood.
            UnreachableError: the client was closed.
        """
        with self._news:
            self._begin()
            while True:
                for notification in self._snapshot:
                    if (found := find(notification)) is not None:
                        return found
                self._raise_end()
                left_seconds = deadline - time.monotonic()
                if left_seconds <= 0:
                    return None
                self._news.wait(None if left_seconds == math.inf else left_seconds)

    def follow(self) -> Iterator[Notification]:
        """Every notification that holds now, then each new one, until this is closed.

        Raises:
            CallRefusedError: the agent refuses to tell this worker.
            WireError: what it tells cannot be understood.
        """
        news: SimpleQueue[Notification | None] = SimpleQueue()
        with self._news:
            if self.is_closed.is_set():
                return
            self._begin()
            for notification in self._snapshot:
                news.put(notification)
            self._subscribers.add(news)
        try:
            while (notice_or_end := news.get()) is not None:
                yield notice_or_end
        finally:
            with self._news:
                self._subscribers.discard(news)
        with self._news:
            if not self.is_closed.is_set():
                self._raise_end()

    def close(self) -> None:
        """End the subscription, and whoever waits for it."""
        self.is_closed.set()
        with self._news:
            call, thread = self._call, self._thread
            self._tell_end()
        if call is not None:
            call.cancel()
        if thread is not None and thread is not threading.current_thread():
            thread.join(_END_SECONDS)

    def _begin(self) -> None:
        """Read, if nobody does; what a former try has ended with is forgotten."""
        if self._thread is None and not self.is_closed.is_set():
            self._failure = None
            self._thread = threading.Thread(target=self._read, name="hvdrun-notices", daemon=True)
            self._thread.start()

    def _read(self) -> None:
        """Read through broken connections, until closed or refused."""
        request = pb.WatchRequest(worker=codec.encode_worker(self._worker))
        failure: RendezvousError | None = None
        while failure is None and not self.is_closed.is_set():
            try:
                self._read_once(request)
            except (CallRefusedError, WireError) as error:
                failure = error
            else:
                self.is_closed.wait(RETRY_SECONDS)
        with self._news:
            self._failure = failure
            self._thread = None
            self._tell_end()

    def _read_once(self, request: pb.WatchRequest) -> None:
        try:
            call = self._stub.Watch(request, wait_for_ready=True)
        except ValueError:  # gRPC's word for a channel that was closed
            return
        with self._news:
            self._call = call
        if self.is_closed.is_set():  # while the call was being made, and could not be cancelled
            call.cancel()
        try:
            for message in call:
                self._take(codec.decode_notification(message))
        except grpc.RpcError as error:
            raise_final(error, self._where)

    def _take(self, notification: Notification) -> None:
        with self._news:
            if self._snapshot.add(notification):
                for subscriber in self._subscribers:
                    subscriber.put(notification)
                self._news.notify_all()

    def _tell_end(self) -> None:
        for subscriber in self._subscribers:
            subscriber.put(None)
        self._news.notify_all()

    def _raise_end(self) -> None:
        if self._failure is not None:
            raise self._failure
        if self.is_closed.is_set():
            raise UnreachableError("the agent", self._where, CLOSED)
