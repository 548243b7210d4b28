"""Connects the channels of one ssh connection with sockets of this machine: the agent's session, and its tunnels.

paramiko's calls block: a send waits for the network, and so does a receive, which opens the channel's window. One
thread per connection makes these calls for all of its channels, and sleeps until a channel or a socket is ready. It
holds at most one chunk in each direction, so that a receiver that pauses also pauses its sender.
"""

import asyncio
import os
import select
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import paramiko

from hvdrun.processes.background import cancel_and_wait, in_thread, supervise
from hvdrun.transport.ssh.ssh_errors import TunnelRefusedError
from rendezvous.core.model import LOOPBACK

_CHUNK_BYTES = 64 * 1024
_CHUNKS_IN_A_ROW = 8  # then the thread serves the other channels
_ERROR_TAIL_BYTES = 16 * 1024
_JOIN_SECONDS = 5.0
_LOST = (paramiko.SSHException, OSError, EOFError)  # paramiko raises these when a channel or its connection has ended


class _ReadEvent(threading.Event):
    """paramiko sets it when a channel has something to read or has ended; one serves all channels of a connection.

    Args:
        wake: called each time.
    """

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake  # paramiko calls no other methods than these, which need nothing of an Event

    def set(self) -> None:
        self._wake()

    def clear(self) -> None:
        pass


class _WindowCondition(threading.Condition):
    """paramiko notifies it when the remote side accepts more bytes.

    Args:
        channel: the channel; the condition uses its lock.
        wake: called each time.
    """

    def __init__(self, channel: paramiko.Channel, wake: Callable[[], None]) -> None:
        super().__init__(channel.lock)
        self._wake = wake

    def notify_all(self) -> None:
        super().notify_all()
        self._wake()


@dataclass(slots=True)
class _Direction:
    """Bytes from one side to the other; `end` passes the end of file on."""

    receive: Callable[[int], bytes]
    send: Callable[[bytes], int]
    end: Callable[[], object]
    pending: bytes = b""
    has_ended: bool = False

    def forward(self) -> bool:
        """Forward the bytes that are there and that the other side accepts; return whether there may be more."""
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


class ForwardedChannel:
    """A channel and the socket that it is connected with. The connection's thread works on it.

    Args:
        channel: the channel of the connection.
        end: the socket, which does not block. Its owner closes it, after `wait_closed`.
        read_event: set when the channel can be read or written.

    errors: the end of what the channel received as standard error.
    exit_code: the exit code of the channel's command, after `wait_closed`; -1 where the server reported none.
    was_cut: the channel ended without an end of file, as when the connection is lost.
    """

    def __init__(self, channel: paramiko.Channel, end: socket.socket, read_event: _ReadEvent) -> None:
        self.errors = b""
        self.exit_code = -1
        self.was_cut = False
        self._was_closed = False  # before the last read
        self._is_broken = False
        self._loop = asyncio.get_running_loop()
        self._closed = self._loop.create_future()
        self._channel = channel
        self._end = end
        self._outward = _Direction(end.recv, self._send, channel.shutdown_write)
        self._inward = _Direction(channel.recv, end.send, lambda: end.shutdown(socket.SHUT_WR))
        channel.settimeout(0.0)
        channel.in_buffer.set_event(read_event)
        channel.in_stderr_buffer.set_event(read_event)
        channel.out_buffer_cv = _WindowCondition(channel, read_event.set)

    async def wait_closed(self) -> None:
        """Wait until the channel has ended in both directions."""
        await asyncio.wait([self._closed])  # which a cancellation of this call leaves to other callers

    @property
    def has_ended(self) -> bool:
        """The channel has closed, and all that it received has been forwarded."""
        return self._was_closed and self._inward.has_ended

    def register(self, ready: select.poll) -> None:
        """Wake the thread when the socket is ready; the channel wakes the thread by its event and its condition."""
        events = 0
        if not self._outward.pending and not self._outward.has_ended:
            events |= select.POLLIN
        if self._inward.pending:
            events |= select.POLLOUT
        # Poll reports a hang-up even where no event is wanted.
        if events:
            ready.register(self._end, events)

    def work(self) -> bool:
        """Forward what can be forwarded; return whether there may be more."""
        try:
            self._was_closed = self._channel.closed
            while self._channel.recv_stderr_ready():
                self.errors = (self.errors + self._channel.recv_stderr(_CHUNK_BYTES))[-_ERROR_TAIL_BYTES:]
            return max([way.forward() for way in (self._outward, self._inward) if not way.has_ended], default=False)
        except _LOST:  # the other channels continue
            self._was_closed = self._outward.has_ended = self._inward.has_ended = self._is_broken = True
            with suppress(*_LOST):  # sends the close to the remote side
                self._channel.close()
            return False

    def finish(self) -> None:
        """End the socket's input, and let `wait_closed` return."""
        with suppress(OSError):  # the other end has closed
            self._end.shutdown(socket.SHUT_WR)
        self.was_cut = self._is_broken or not self._channel.eof_received
        # After our close the remote side may report an exit code that is not the command's.
        if not self._is_broken:
            self.exit_code = self._channel.exit_status
        with suppress(RuntimeError):  # the loop has closed
            self._loop.call_soon_threadsafe(self._closed.set_result, None)

    def _send(self, data: bytes) -> int:
        sent = 0
        if not self._channel.closed:
            sent = self._channel.send(data)
        return sent or len(data)  # 0: the channel has ended, and the rest is lost


class Forwarder:
    """The thread of one connection, which serves all of its channels.

    Args:
        fail: gets an unexpected error of the thread, in the event loop.
    """

    def __init__(self, fail: Callable[[BaseException], None]) -> None:
        self._fail = fail
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._channels: list[ForwardedChannel] = []
        self._wakeup = os.eventfd(0)
        self._is_woken = False
        self._is_stopping = False
        self._read_event = _ReadEvent(self._wake)
        self._thread = threading.Thread(target=self._run, name="hvdrun-ssh-forwarder", daemon=True)
        self._thread.start()

    def add(self, channel: paramiko.Channel, end: socket.socket) -> ForwardedChannel:
        """Connect a channel with a socket, which does not block, until the channel's end."""
        forwarded = ForwardedChannel(channel, end, self._read_event)
        with self._lock:
            self._channels.append(forwarded)
        self._wake()
        return forwarded

    def stop(self) -> None:
        """Stop the thread, and wait for its end. Close the connection first."""
        self._is_stopping = True
        self._wake()
        self._thread.join(_JOIN_SECONDS)

    def _wake(self) -> None:
        with self._lock:
            if not self._is_woken:
                self._is_woken = True
                os.eventfd_write(self._wakeup, 1)

    def _run(self) -> None:
        try:
            more = False
            while not self._is_stopping:
                self._sleep(0 if more else None)
                more = self._work()
            self._work()
        except Exception as error:  # noqa: BLE001 - raised in the loop
            with suppress(RuntimeError):  # the loop has closed
                self._loop.call_soon_threadsafe(self._fail, error)
        for channel in self._channels:
            channel.finish()
        with self._lock:
            self._is_woken = True  # for good
            os.close(self._wakeup)

    def _sleep(self, milliseconds: int | None) -> None:
        ready = select.poll()
        ready.register(self._wakeup, select.POLLIN)
        for channel in self._channels:
            channel.register(ready)
        ready.poll(milliseconds)
        with self._lock:
            if self._is_woken:
                self._is_woken = False
                os.eventfd_read(self._wakeup)

    def _work(self) -> bool:
        """Serve each channel once; return whether one may have more."""
        with self._lock:
            channels = list(self._channels)
        more = max([channel.work() for channel in channels], default=False)  # any() would leave some out
        for channel in channels:
            if channel.has_ended:
                with self._lock:
                    self._channels.remove(channel)
                channel.finish()
        return more


_MAX_TUNNEL_CONNECTIONS = 64  # an agent needs a few; a stranger on its host must not use up this process' descriptors
_REQUEST_SECONDS = 15.0


class Tunnels:
    """Ports of the host's loopback that lead to ports of this machine's loopback.

    Agents use them that cannot connect to the launcher, for example because it is behind network address translation.

    Args:
        host: its name in the job.
        client: the connection.
        forwarder: copies between channels and sockets.
        fail: gets an unexpected error of a task.
    """

    def __init__(
        self, host: str, client: paramiko.Transport, forwarder: Forwarder, fail: Callable[[BaseException], None]
    ) -> None:
        self._fail = fail
        self._host = host
        self._client = client
        self._forwarder = forwarder
        self._loop = asyncio.get_running_loop()
        self._targets: dict[int, int] = {}  # port of the host -> port of this machine
        self._connections: set[asyncio.Task[None]] = set()
        self._requesting = asyncio.Lock()  # paramiko keeps one answer at a time

    async def open(self, port: int, remote: int = 0) -> int:
        """Open a tunnel to this port; returns the port of the host.

        Args:
            port: of this machine.
            remote: the port of the host; 0 for one that the server chooses.

        Raises:
            TunnelRefusedError: the server opens none.
        """
        try:
            async with self._requesting, asyncio.timeout(_REQUEST_SECONDS):
                remote = await in_thread(lambda: self._client.request_port_forward(LOOPBACK, remote, self._accept))
        except TimeoutError as error:
            raise TunnelRefusedError(self._host, f"no answer within {_REQUEST_SECONDS:g} s", remote) from error
        except _LOST as error:
            # Paramiko's reader may notice the end later than a write that fails.
            is_denied = isinstance(error, paramiko.SSHException) and self._client.is_active()
            reason = "it denied the request" if is_denied else "the connection has ended"
            raise TunnelRefusedError(self._host, reason, remote) from error
        self._targets[remote] = port
        return remote

    async def close(self) -> None:
        """Close all connections. Stop the forwarder first."""
        await cancel_and_wait(self._connections)

    def _accept(self, channel: paramiko.Channel, origin: tuple[str, int], server: tuple[str, int]) -> None:
        """Accept a connection. paramiko's thread calls this."""
        del origin
        try:
            self._loop.call_soon_threadsafe(self._start, channel, server[1])
        except RuntimeError:  # the loop has closed
            channel.close()

    def _start(self, channel: paramiko.Channel, remote: int) -> None:
        task = asyncio.create_task(self._serve(channel, self._targets.get(remote)), name="serve a tunnel's connection")
        self._connections.add(supervise(task, self._fail))
        task.add_done_callback(self._connections.discard)

    async def _serve(self, channel: paramiko.Channel, port: int | None) -> None:
        """Connect a channel with the port, until its end; close it where nothing listens, or no socket is available."""
        if port is not None and len(self._connections) <= _MAX_TUNNEL_CONNECTIONS:
            with (
                suppress(OSError),  # nothing listens, or no descriptor is left
                socket.socket(type=socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as end,
            ):
                await self._loop.sock_connect(end, (LOOPBACK, port))
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                await self._forwarder.add(channel, end).wait_closed()
                return
        await in_thread(channel.close)
