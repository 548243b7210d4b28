"""Carries bytes between the channels of one ssh connection and sockets of this machine.

paramiko's calls block: a send waits for the network, and so does a receive, which opens the window for more. One thread
per connection makes these calls for all of its channels, and sleeps until one of them can go on. A side that does not
take its bytes holds up the other side: the thread keeps one chunk in each direction.
"""

import asyncio
import contextlib
import os
import select
import socket
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import paramiko

_CHUNK_BYTES = 64 * 1024
_UNREAD_BYTES = 512 * 1024  # what the loop may leave unread beside the channel's own window
_CHUNKS_IN_A_ROW = 8  # then it is the other channels' turn
_ERROR_TAIL_BYTES = 16 * 1024
_JOIN_SECONDS = 5.0
_LOST = (paramiko.SSHException, OSError, EOFError)  # of a channel that has ended, or its connection


class _Bell(threading.Event):
    """paramiko sets it when a channel has something to read or has ended."""

    def __init__(self, ring: Callable[[], None]) -> None:
        super().__init__()
        self._ring = ring

    def set(self) -> None:
        self._ring()


class _Window(threading.Condition):
    """paramiko notifies it when the far end takes more."""

    def __init__(self, channel: paramiko.Channel, ring: Callable[[], None]) -> None:
        super().__init__(channel.lock)
        self._ring = ring

    def notify_all(self) -> None:
        super().notify_all()
        self._ring()


@dataclass(slots=True)
class _Direction:
    """From one end to the other; `end` passes the end of file on."""

    receive: Callable[[int], bytes]
    send: Callable[[bytes], int]
    end: Callable[[], object]
    pending: bytes = b""
    has_ended: bool = False

    def carry(self) -> bool:
        """Carry what there is and the other end takes; whether there may be more."""
        try:
            for _ in range(_CHUNKS_IN_A_ROW):
                if not self.pending:
                    self.pending = self.receive(_CHUNK_BYTES)
                if not self.pending:
                    self.has_ended = True
                    self.end()
                    return False
                self.pending = self.pending[self.send(self.pending) :]
        except (BlockingIOError, TimeoutError):  # of a socket, of a channel
            return False
        return True


class Stream:
    """The event loop's end of a channel, where a tunnel has a socket."""

    def __init__(self, ring: Callable[[], None]) -> None:
        self._ring = ring
        self._loop = asyncio.get_running_loop()
        self._arrived = asyncio.StreamReader()
        self._arrived_bytes = 0  # the thread counts these, and the loop the next: neither needs a lock
        self._read_bytes = 0
        self._outgoing: deque[bytes] = deque()

    async def read(self) -> bytes:
        """The next bytes; empty at the end."""
        data = await self._arrived.read(_CHUNK_BYTES)
        self._read_bytes += len(data)  # before the look at the other count: the thread may find it full meanwhile
        if self._arrived_bytes - self._read_bytes + len(data) >= _UNREAD_BYTES:
            self._ring()
        return data

    def write(self, data: bytes) -> None:
        """Send bytes without waiting; after the end they are lost."""
        chunks = range(0, len(data), _CHUNK_BYTES)  # the rest of a longer one would be copied with each packet
        self._outgoing.extend(data[start : start + _CHUNK_BYTES] for start in chunks)
        self._ring()

    def end_writing(self) -> None:
        """Send what is left, then the end."""
        self._outgoing.append(b"")
        self._ring()

    def recv(self, _: int) -> bytes:
        """What the loop has written. This and the next two are for the connection's thread, in a socket's place."""
        if not self._outgoing:
            raise BlockingIOError
        return self._outgoing.popleft()

    def send(self, data: bytes) -> int:
        """Give bytes to the loop, unless it has left too many unread."""
        if self._arrived_bytes - self._read_bytes >= _UNREAD_BYTES:
            raise BlockingIOError
        self._arrived_bytes += len(data)
        self._loop.call_soon_threadsafe(self._arrived.feed_data, data)
        return len(data)

    def close(self) -> None:
        """Nothing more comes."""
        with contextlib.suppress(RuntimeError):  # the loop has closed
            self._loop.call_soon_threadsafe(self._arrived.feed_eof)

    def fail(self, error: BaseException) -> None:
        """Raise this where the loop reads, now or later."""
        self._arrived.set_exception(error)  # type: ignore[arg-type]  # it takes any

    def check(self) -> None:
        """Raise what `fail` was given."""
        if (error := self._arrived.exception()) is not None:
            raise error


class Bridge:
    """A channel and its end on this machine. The connection's thread works on it.

    errors: the end of what the channel received as standard error.
    exit_code: of the channel's command when it has ended; -1 where there is none.
    closed: set when the channel has ended in both directions.
    """

    def __init__(self, channel: paramiko.Channel, end: socket.socket | Stream, ring: Callable[[], None]) -> None:
        self.errors = b""
        self.exit_code = -1
        self.closed = asyncio.Event()
        self._was_closed = False  # before the last look at what had come
        self._is_broken = False
        self._loop = asyncio.get_running_loop()
        self._channel = channel
        self._end = end
        self._outward = _Direction(end.recv, self._send, channel.shutdown_write)
        self._inward = _Direction(channel.recv, end.send, self._end_input)
        channel.settimeout(0.0)
        channel.in_buffer.set_event(_Bell(ring))
        channel.in_stderr_buffer.set_event(_Bell(ring))
        channel.out_buffer_cv = _Window(channel, ring)

    @property
    def has_ended(self) -> bool:
        """Nothing comes or goes any more."""
        return self._was_closed and self._inward.has_ended

    def register(self, ready: select.poll) -> None:
        """Have the thread woken when the socket can go on; a stream wakes it by itself."""
        wants_input = not self._outward.pending and not self._outward.has_ended
        events = (select.POLLIN if wants_input else 0) | (select.POLLOUT if self._inward.pending else 0)
        if events and isinstance(self._end, socket.socket):  # poll tells of a hang-up even where no event is wanted
            ready.register(self._end, events)

    def work(self) -> bool:
        """Carry what can be carried; whether there may be more."""
        try:
            self._was_closed = self._channel.closed
            while self._channel.recv_stderr_ready():
                self.errors = (self.errors + self._channel.recv_stderr(_CHUNK_BYTES))[-_ERROR_TAIL_BYTES:]
            return max([way.carry() for way in (self._outward, self._inward) if not way.has_ended], default=False)
        except _LOST:  # the other channels go on
            self._was_closed = self._outward.has_ended = self._inward.has_ended = self._is_broken = True
            with contextlib.suppress(*_LOST):  # it says so to the far end
                self._channel.close()
            return False

    def finish(self) -> None:
        """Close the end here and tell the loop."""
        self._end.close()
        if not self._is_broken:  # else the far end may still say with what it has ended for it
            self.exit_code = self._channel.exit_status
        with contextlib.suppress(RuntimeError):  # the loop has closed
            self._loop.call_soon_threadsafe(self.closed.set)

    def _send(self, data: bytes) -> int:
        sent = 0 if self._channel.closed else self._channel.send(data)
        return sent or len(data)  # 0: it has ended, and what is left is lost

    def _end_input(self) -> None:
        if isinstance(self._end, socket.socket):
            self._end.shutdown(socket.SHUT_WR)
        else:
            self._end.close()


class Pump:
    """The thread of one connection: carries bytes for all of its channels.

    fail: takes an unexpected error of the thread, in the event loop.
    """

    def __init__(self, fail: Callable[[BaseException], None]) -> None:
        self._fail = fail
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._bridges: list[Bridge] = []
        self._bell = os.eventfd(0)
        self._is_rung = False
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="hvdrun-ssh-pump", daemon=True)
        self._thread.start()

    def __len__(self) -> int:
        """How many channels it serves."""
        return len(self._bridges)

    def open_stream(self, channel: paramiko.Channel) -> tuple[Stream, Bridge]:
        """Serve a channel that the event loop reads and writes."""
        stream = Stream(self._ring)
        return stream, self.add(channel, stream)

    def add(self, channel: paramiko.Channel, end: socket.socket | Stream) -> Bridge:
        """Connect a channel with a socket, which does not block, until the channel's end; the socket is closed then."""
        bridge = Bridge(channel, end, self._ring)
        with self._lock:
            self._bridges.append(bridge)
        self._ring()
        return bridge

    def stop(self) -> None:
        """End the thread; blocks for a moment. The connection must have been closed before."""
        self._stopping = True
        self._ring()
        self._thread.join(_JOIN_SECONDS)

    def _ring(self) -> None:
        with self._lock:
            if not self._is_rung:
                self._is_rung = True
                os.eventfd_write(self._bell, 1)

    def _run(self) -> None:
        try:
            more = False
            while not self._stopping:
                self._sleep(0 if more else None)
                more = self._work()
            self._work()
        except Exception as error:  # noqa: BLE001 - raised in the loop
            with contextlib.suppress(RuntimeError):  # the loop has closed
                self._loop.call_soon_threadsafe(self._fail, error)
        for bridge in self._bridges:
            bridge.finish()
        with self._lock:
            self._is_rung = True  # for good
            os.close(self._bell)

    def _sleep(self, milliseconds: int | None) -> None:
        ready = select.poll()
        ready.register(self._bell, select.POLLIN)
        for bridge in self._bridges:
            bridge.register(ready)
        ready.poll(milliseconds)
        with self._lock:
            if self._is_rung:
                self._is_rung = False
                os.eventfd_read(self._bell)

    def _work(self) -> bool:
        """Whether to come again soon."""
        with self._lock:
            bridges = list(self._bridges)
        more = max([bridge.work() for bridge in bridges], default=False)  # any() would leave some out
        for bridge in bridges:
            if bridge.has_ended:
                with self._lock:
                    self._bridges.remove(bridge)
                bridge.finish()
        return more
