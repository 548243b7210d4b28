"""The channels of one ssh connection as the event loop sees them: read, write, end.

paramiko's calls block: a write waits for the network, and so does a read, which opens the window for more. One thread
per connection makes these calls for all of its channels. When the loop does not read, the thread does not either; the
channel's window fills, and the far end waits.
"""

import asyncio
import contextlib
import socket
import threading
from collections import deque
from collections.abc import Callable

import paramiko

_CHUNK_BYTES = 64 * 1024
_UNREAD_BYTES = 512 * 1024  # what the loop may leave unread beside the channel's own window
_UNSENT_BYTES = 512 * 1024  # from here on `drain` waits
_ERROR_TAIL_BYTES = 16 * 1024
_POLL_SECONDS = 0.02  # no event tells that the far end has opened its window, or that an ended channel has closed
_JOIN_SECONDS = 5.0


class _Bell(threading.Event):
    """What paramiko sets when a channel has something to read or has ended."""

    def __init__(self, ring: Callable[[], None]) -> None:
        super().__init__()
        self._ring = ring

    def set(self) -> None:
        self._ring()


class Stream:
    """One channel, on the side of the event loop.

    All of it belongs to the loop, but for `work`, which the connection's thread calls.
    """

    def __init__(self, channel: paramiko.Channel, ring: Callable[[], None]) -> None:
        self.errors = b""
        self.exit_code: int | None = None
        self._channel = channel
        self._ring = ring
        self._loop = asyncio.get_running_loop()
        self._arrived: deque[bytes] = deque()
        self._changed = asyncio.Event()  # something arrived or was sent, or an end was reached
        self._read_to_end = False
        self._closed = False
        self._lock = threading.Lock()  # guards the five below
        self._unread = 0
        self._outgoing: deque[bytes] = deque()
        self._unsent = 0
        self._end_wanted = False
        self._abandoned = False
        self._output_ended = False  # these belong to the thread
        self._errors_ended = False
        channel.settimeout(0.0)
        bell = _Bell(ring)
        channel.in_buffer.set_event(bell)
        channel.in_stderr_buffer.set_event(bell)

    async def read(self) -> bytes:
        """The next bytes; empty at the end. For one reader at a time."""
        while not self._arrived and not self._read_to_end:
            await self._wait()
        if not self._arrived:
            return b""
        data = self._arrived.popleft()
        with self._lock:
            was_full = self._unread >= _UNREAD_BYTES
            self._unread -= len(data)
        if was_full:
            self._ring()
        return data

    def write(self, data: bytes) -> None:
        """Send bytes without waiting; after the end they are lost."""
        if not self._closed:
            with self._lock:
                self._outgoing.append(data)
                self._unsent += len(data)
            self._ring()

    def end_writing(self) -> None:
        """Send what is left, then the end."""
        with self._lock:
            self._end_wanted = True
        self._ring()

    def abandon(self) -> None:
        """End it in both directions, whatever is on its way."""
        with self._lock:
            self._abandoned = True
        self._ring()

    async def drain(self) -> None:
        """Wait until not much is left to be sent."""
        while not self._closed and self._unsent >= _UNSENT_BYTES:
            await self._wait()

    async def flush(self) -> None:
        """Wait until all that was written is sent, the end too."""
        while not self._closed and self._has_unsent():
            await self._wait()

    async def wait_closed(self) -> None:
        """Wait until the channel has ended in both directions; meanwhile somebody must read it."""
        while not self._closed:
            await self._wait()

    def work(self) -> bool:
        """Send and receive what can be; whether to come again soon. For the connection's thread.

        The channel has ended when `has_ended`.
        """
        try:
            if self._is_abandoned():
                self._channel.close()
            blocked = self._send()
            self._receive()
        except Exception:  # noqa: BLE001 - whatever has befallen one channel, the others go on
            self._output_ended = self._errors_ended = True
            self._close()
            blocked = False
        return blocked or (self._output_ended and self._errors_ended and not self.has_ended)

    @property
    def has_ended(self) -> bool:
        """Nothing comes or goes any more."""
        return self._output_ended and self._errors_ended and self._channel.closed

    def finish(self) -> None:
        """Tell the loop that the channel has ended. For the connection's thread."""
        self._call(self._end, self._channel.exit_status)  # -1 where there was none

    def _send(self) -> bool:
        """Send what the far end takes; whether there is more."""
        while data := self._next_outgoing():
            try:
                sent = self._channel.send(data) or len(data)  # 0: it has ended, and what is left is lost
            except TimeoutError:  # the far end takes nothing at present
                sent = 0
            with self._lock:
                self._unsent -= sent
                if sent < len(data):
                    self._outgoing.appendleft(data[sent:])
            if sent == 0:
                return True
            self._call(self._changed.set)
        if self._end_wanted:
            self._channel.shutdown_write()
            with self._lock:
                self._end_wanted = False
            self._call(self._changed.set)
        return False

    def _next_outgoing(self) -> bytes | None:
        with self._lock:
            return self._outgoing.popleft() if self._outgoing else None

    def _receive(self) -> None:
        while not self._errors_ended and (data := self._take(self._channel.recv_stderr)) is not None:
            self._errors_ended = not data
            self._call(self._keep_errors, data)
        while not self._output_ended and self._has_room():
            data = self._take(self._channel.recv)
            if data is None:
                return
            self._output_ended = not data
            with self._lock:
                self._unread += len(data)
            self._call(self._arrive, data)

    def _take(self, receive: Callable[[int], bytes]) -> bytes | None:
        try:
            return receive(_CHUNK_BYTES)
        except socket.timeout:  # noqa: UP041 - what paramiko raises, by its name
            return None

    def _is_abandoned(self) -> bool:
        with self._lock:
            return self._abandoned

    def _has_room(self) -> bool:
        with self._lock:
            return self._unread < _UNREAD_BYTES or self._abandoned

    def _has_unsent(self) -> bool:
        with self._lock:
            return self._unsent > 0 or self._end_wanted

    def _arrive(self, data: bytes) -> None:
        if data:
            self._arrived.append(data)
        else:
            self._read_to_end = True
        self._changed.set()

    def _keep_errors(self, data: bytes) -> None:
        self.errors = (self.errors + data)[-_ERROR_TAIL_BYTES:]

    def _end(self, exit_code: int) -> None:
        self.exit_code = exit_code
        self._read_to_end = self._closed = True
        self._changed.set()

    async def _wait(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    def _call(self, function: Callable[..., None], *arguments: object) -> None:
        try:
            self._loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError:  # the loop has closed: nobody listens any more
            self._close()

    def _close(self) -> None:
        with contextlib.suppress(Exception):  # it says so to the far end, and the connection may be lost
            self._channel.close()


class Pump:
    """The thread of one connection: sends and receives for all of its channels."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._streams: list[Stream] = []
        self._rung = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="hvdrun-ssh-pump", daemon=True)
        self._thread.start()

    def add(self, channel: paramiko.Channel) -> Stream:
        """Serve a channel until its end."""
        stream = Stream(channel, self._rung.set)
        with self._lock:
            self._streams.append(stream)
        self._rung.set()
        return stream

    def stop(self) -> None:
        """End the thread; blocks for a moment. The connection must have been closed before."""
        self._stopping = True
        self._rung.set()
        self._thread.join(_JOIN_SECONDS)

    def _run(self) -> None:
        soon = False
        while not self._stopping:
            self._rung.wait(_POLL_SECONDS if soon else None)
            self._rung.clear()
            with self._lock:
                streams = list(self._streams)
            soon = max([stream.work() for stream in streams], default=False)  # any() would leave some out
            ended = [stream for stream in streams if stream.has_ended]
            with self._lock:
                self._streams = [stream for stream in self._streams if stream not in ended]
            for stream in ended:
                stream.finish()
        with self._lock:
            streams = list(self._streams)
        for stream in streams:
            stream.finish()
