"""A non-blocking connection with bounded buffers, and its poller."""

import select
import socket
from collections import deque
from collections.abc import Callable

from worker_runtime.coordination.wire import HEADER, MAX_FRAME_BYTES, ProtocolError

READ = select.EPOLLIN
WRITE = select.EPOLLOUT
HANG_UP = select.EPOLLRDHUP  # the other side has closed the connection; its data stay unread

Callback = Callable[[int], None]  # gets the events as epoll's bits


class Poller:
    """Calls callbacks when descriptors are ready; for one thread."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._callbacks: dict[int, Callback] = {}

    def watch(self, descriptor: int, events: int, callback: Callback) -> None:
        """Call `callback` on these events of a descriptor; replaces an earlier callback."""
        if descriptor in self._callbacks:
            self._epoll.modify(descriptor, events)
        else:
            self._epoll.register(descriptor, events)
        self._callbacks[descriptor] = callback

    def change(self, descriptor: int, events: int) -> None:
        """Wait for other events of a watched descriptor."""
        self._epoll.modify(descriptor, events)

    def forget(self, descriptor: int) -> None:
        """Stop watching a descriptor; call this before closing it."""
        if self._callbacks.pop(descriptor, None) is not None:
            self._epoll.unregister(descriptor)

    def wait(self, limit_seconds: float | None) -> None:
        """Wait until a descriptor is ready, or for the limit, and call the callbacks.

        No callback may open a descriptor: it could get the number, and so the events, of one that was closed in the
        same round.
        """
        callbacks = self._callbacks
        for descriptor, events in self._epoll.poll(limit_seconds):
            callback = callbacks.get(descriptor)  # None: forgotten by another callback
            if callback is not None:
                callback(events)

    def close(self) -> None:
        """Close the epoll descriptor."""
        self._callbacks.clear()
        self._epoll.close()


MAX_UNSENT_BYTES = 256 * 1024 * 1024
_CHUNK_BYTES = 256 * 1024

Frame = tuple[int, bytes, int, int]  # the type, and the body as bytes with its start and end


class ConnectionEndedError(Exception):
    """The connection was closed or broke. The message continues "its connection to the sequencer"."""


class Connection:
    """A connected socket with its poller, the received part of an incomplete frame, and unsent data.

    Args:
        connected: the socket.
        poller: reports when it can be read or written.
    """

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
        """Call `callback` when data have arrived, or unsent data can be sent."""
        self._poller.watch(self.descriptor, READ | (WRITE if self._unsent else 0), callback)

    def watch_end(self, callback: Callback) -> None:
        """Call `callback` when the other side closes the connection; leave its data unread."""
        self._poller.watch(self.descriptor, HANG_UP, callback)

    def receive_bytes(self, count: int) -> bytes:
        """Receive up to `count` bytes without waiting; empty if none have arrived.

        Raises:
            ConnectionEndedError: the connection has ended.
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
        """Receive once, so that no connection blocks the others, and return the complete frames.

        Raises:
            ConnectionEndedError: the connection has ended.
            ProtocolError: the next frame is too long.
        """
        data = self.receive_bytes(_CHUNK_BYTES)
        if self._chunks:
            self._chunks.append(data)
            self._missing -= len(data)
            if self._missing > 0:
                return []
            data = b"".join(self._chunks)  # once for each long frame
            self._chunks.clear()
        return self._split(data)

    def send(self, data: bytes) -> None:
        """Send without waiting; keep the rest until the socket is writable.

        Raises:
            ConnectionEndedError: the connection is broken, or the other side reads too slowly.
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
            raise ConnectionEndedError(f"was closed: it left {self._unsent_bytes} bytes of responses unread")

    def send_more(self) -> None:
        """Send more of the unsent data.

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
        """Close the connection; unsent data are lost."""
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
