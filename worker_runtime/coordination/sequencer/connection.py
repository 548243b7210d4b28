"""One connection as bytes: never blocks, and nothing in it grows without a bound."""

import select
import socket
from collections import deque
from collections.abc import Callable

from worker_runtime.coordination.wire import HEADER, MAX_FRAME_BYTES, ProtocolError

READ = select.EPOLLIN
WRITE = select.EPOLLOUT
HANG_UP = select.EPOLLRDHUP  # the other side sends nothing more; what it has sent stays unread

Callback = Callable[[int], None]  # takes the events, as epoll's bits


class Poller:
    """Descriptors, and what is called when they are ready; owned and used by one thread."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._callbacks: dict[int, Callback] = {}

    def watch(self, descriptor: int, events: int, callback: Callback) -> None:
        """Call `callback` when one of the events has come, in place of what was called before."""
        if descriptor in self._callbacks:
            self._epoll.modify(descriptor, events)
        else:
            self._epoll.register(descriptor, events)
        self._callbacks[descriptor] = callback

    def change(self, descriptor: int, events: int) -> None:
        """Wait for other events of a watched descriptor."""
        self._epoll.modify(descriptor, events)

    def forget(self, descriptor: int) -> None:
        """Watch it no more; to be called before it is closed."""
        if self._callbacks.pop(descriptor, None) is not None:
            self._epoll.unregister(descriptor)

    def wait(self, limit_seconds: float | None) -> None:
        """Wait until something is ready, or so long, and call whom it concerns.

        No callback may open a descriptor: it could get the number of one that was closed in the same round,
        and then that one's events.
        """
        callbacks = self._callbacks
        for descriptor, events in self._epoll.poll(limit_seconds):
            callback = callbacks.get(descriptor)  # None: forgotten meanwhile, by another that was called
            if callback is not None:
                callback(events)

    def close(self) -> None:
        """Release the epoll's own descriptor."""
        self._callbacks.clear()
        self._epoll.close()


MAX_UNSENT_BYTES = 256 * 1024 * 1024
_CHUNK_BYTES = 256 * 1024

Frame = tuple[int, bytes, int, int]  # type, and where its body is: within these bytes, from and to


class ConnectionEndedError(Exception):
    """The other side has ended the connection, or it broke; says how, to follow "its connection to the sequencer"."""


class Connection:
    """A connected socket with its poller, what has come of an incomplete frame, and what could not be sent yet."""

    __slots__ = ("_chunks", "_missing", "_poller", "_socket", "_unsent", "_unsent_bytes", "descriptor")

    def __init__(self, connected: socket.socket, poller: Poller) -> None:
        connected.settimeout(0)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = connected
        self._poller = poller
        self._chunks: list[bytes] = []
        self._missing = 0
        self._unsent: deque[memoryview] = deque()
        self._unsent_bytes = 0
        self.descriptor = connected.fileno()

    def watch(self, callback: Callback) -> None:
        """Call `callback` when something has come, or can be sent on."""
        self._poller.watch(self.descriptor, READ | (WRITE if self._unsent else 0), callback)

    def watch_end(self, callback: Callback) -> None:
        """Call `callback` when the other side ends the connection; what it sends is left unread."""
        self._poller.watch(self.descriptor, HANG_UP, callback)

    def receive_bytes(self, count: int) -> bytes:
        """At most so many bytes of those that have come; none when nothing has come after all.

        Raises:
            ConnectionEndedError: there is nothing left to come.
        """
        try:
            data = self._socket.recv(count)
        except BlockingIOError:
            return b""
        except OSError as error:
            raise ConnectionEndedError(f"broke: {error.strerror or error}") from None
        if not data:
            raise ConnectionEndedError("ended" + (" in the middle of a message" if self._chunks else ""))
        return data

    def receive(self) -> list[Frame]:
        """The frames that are complete now; reads once, so that no connection keeps the others waiting.

        Raises:
            ConnectionEndedError: there is nothing left to come.
            ProtocolError: the next frame would be too long.
        """
        data = self.receive_bytes(_CHUNK_BYTES)
        if self._chunks:
            self._chunks.append(data)
            self._missing -= len(data)
            if self._missing > 0:
                return []
            data = b"".join(self._chunks)  # once for each long frame, however many pieces it came in
            self._chunks.clear()
        return self._split(data)

    def send(self, data: bytes) -> None:
        """Send now what the network takes, and the rest when it takes more.

        Raises:
            ConnectionEndedError: the connection is broken, or its other side reads too slowly.
        """
        view = memoryview(data)
        if not self._unsent:
            view = view[self._send_some(view) :]
            if not view:
                return
            self._poller.change(self.descriptor, READ | WRITE)
        self._unsent.append(view)
        self._unsent_bytes += len(view)
        if self._unsent_bytes > MAX_UNSENT_BYTES:
            raise ConnectionEndedError(f"was closed: it left {self._unsent_bytes} bytes of answers unread")

    def send_more(self) -> None:
        """Send on what was left.

        Raises:
            ConnectionEndedError: the connection is broken.
        """
        while self._unsent:
            count = self._send_some(self._unsent[0])
            self._unsent_bytes -= count
            if count < len(self._unsent[0]):
                self._unsent[0] = self._unsent[0][count:]
                return
            self._unsent.popleft()
        self._poller.change(self.descriptor, READ)

    def close(self) -> None:
        """End it; what was not sent is lost."""
        self._poller.forget(self.descriptor)
        self._socket.close()
        self._unsent.clear()
        self._chunks.clear()

    def _send_some(self, view: memoryview) -> int:
        try:
            return self._socket.send(view)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise ConnectionEndedError(f"broke: {error.strerror or error}") from None

    def _split(self, data: bytes) -> list[Frame]:
        frames: list[Frame] = []
        offset, end = 0, len(data)
        needed = HEADER.size
        while end - offset >= HEADER.size:
            length, kind = HEADER.unpack_from(data, offset)
            if length > MAX_FRAME_BYTES:
                raise ProtocolError(f"a frame of {length} bytes is longer than {MAX_FRAME_BYTES}")
            start = offset + HEADER.size
            if end - start < length:
                needed = HEADER.size + length
                break
            offset = start + length
            frames.append((kind, data, start, offset))
        if offset < end:
            self._chunks.append(data[offset:])
            self._missing = needed - (end - offset)
        return frames
