"""The connection of one rank to the sequencer: it sends requests and receives responses.

Sending and receiving are independent. Each is for one thread at a time, which the driver ensures. Requests are queued
until `flush`, so that a burst of small operations is one message, and is encoded together: see `messages.py`.
"""

import contextlib
import hmac
import os
import socket
import struct
import time
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Self

from worker_runtime.coordination import wire
from worker_runtime.coordination.messages import SendQueue
from worker_runtime.coordination.wire import Frame
from worker_runtime.errors import SequencerError
from worker_runtime.rendezvous import Endpoint

_CHUNK_BYTES = 256 * 1024
_RETRY_SECONDS = 0.02  # between two tries to connect
PATIENCE_SECONDS = 5.0  # how long to retry after the sequencer closes a connection before the proof
_TIMEVAL = struct.Struct("@ll")


class Link:
    """An authenticated connection; created by `connect`.

    Args:
        connection: the socket.
        rank: this worker's rank.

    queue: the frames and requests for the next `flush`.
    """

    def __init__(self, connection: socket.socket, rank: int = 0) -> None:
        self.rank = rank
        self._socket = connection
        self.queue = SendQueue()
        self._received: list[bytes] = []  # at most one received chunk that is not split yet
        self._partial = bytearray()  # the received part of an incomplete frame
        self._needed = wire.HEADER.size  # the number of bytes that it needs before the next split
        self._limit_seconds = 0.0  # the time limit of a blocking receive

    @classmethod
    def connect(cls, endpoint: Endpoint, key: bytes, generation: int, rank: int, limit: timedelta) -> Self:
        """Connect, and prove on both sides the knowledge of the generation's key.

        Raises:
            SequencerError: nothing listens there, or the listener did not prove within the limit that it knows the key.
        """
        return cls(dial(endpoint, key, generation, rank, limit), rank)

    def hand_over(self, environment: Mapping[str, str]) -> None:
        """Send the sequencer's variables from the program's environment, before any rank waits; for rank 0."""
        self.queue.put(Frame.SETTINGS, wire.encode_settings(environment))
        with contextlib.suppress(OSError):  # the next use of the connection will report it
            self.flush()

    def limit_silence(self, seconds: float) -> None:
        """Make the connection break when the sequencer's host has acknowledged nothing for this long."""
        if self._socket.family == socket.AF_UNIX:
            return  # tests use a socket pair
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(seconds * 1000))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, max(1, int(seconds / 2)))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    def flush(self) -> None:
        """Send the queue; blocks until the kernel has accepted it.

        Raises:
            OSError: the connection is broken.
        """
        data = self.queue.take()
        if data:
            self._socket.sendall(data)

    def receive(self, wait_seconds: float | None) -> Iterator[tuple[int, memoryview]]:
        """Receive frames: their types and bodies; none if none arrives in time.

        Args:
            wait_seconds: how long to wait for the first byte; None does not wait.

        Raises:
            EOFError: the sequencer has closed the connection.
            OSError: the connection is broken.
        """
        if wait_seconds is not None:
            self._limit_waiting(wait_seconds)
        flags = 0
        if wait_seconds is None:
            flags = socket.MSG_DONTWAIT
        try:
            # One C call, so that an exception of a signal's handler loses no data.
            if not self._received:
                self._received.extend(map(self._socket.recv, (_CHUNK_BYTES,), (flags,)))
        except BlockingIOError:
            return iter(())
        if not self._received[0]:
            raise EOFError
        return self._split()

    @property
    def has_received(self) -> bool:
        """Whether a received chunk is not split yet, because a signal's handler interrupted."""
        return bool(self._received)

    def fileno(self) -> int:
        """The descriptor to poll."""
        return self._socket.fileno()

    def shut_down(self) -> None:
        """Shut the connection down in both directions, after all sent data; wakes a blocking `receive`."""
        with contextlib.suppress(OSError):  # the connection is lost already
            self._socket.shutdown(socket.SHUT_RDWR)

    def leave_to_process(self) -> None:
        """Keep the connection open until the end of this process."""
        os.dup(self._socket.fileno())

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def _limit_waiting(self, seconds: float) -> None:
        if seconds != self._limit_seconds:
            microseconds = max(1, int(seconds * 1e6))
            self._socket.setsockopt(
                socket.SOL_SOCKET, socket.SO_RCVTIMEO, _TIMEVAL.pack(*divmod(microseconds, 1_000_000))
            )
            self._limit_seconds = seconds

    def _split(self) -> Iterator[tuple[int, memoryview]]:
        data = self._received.pop()
        if self._partial:
            self._partial += data
            if len(self._partial) < self._needed:
                return
            data, self._partial = bytes(self._partial), bytearray()

        view = memoryview(data)
        offset, end = 0, len(data)
        while end - offset >= wire.HEADER.size:
            length, kind = wire.HEADER.unpack_from(data, offset)
            start = offset + wire.HEADER.size
            if end - start < length:
                self._needed = wire.HEADER.size + length
                break
            offset = start + length
            yield kind, view[start:offset]
        else:
            self._needed = wire.HEADER.size
        self._partial += data[offset:]


def dial(endpoint: Endpoint, key: bytes, generation: int, role: int, limit: timedelta) -> socket.socket:
    """Connect, and prove on both sides the knowledge of the generation's key.

    Args:
        endpoint: the sequencer's address and port.
        key: the generation's key.
        generation: its number.
        role: the rank, plus `wire.STORE_ROLE` for a connection to the store.
        limit: how long to try.

    Raises:
        SequencerError: nothing listens there, or the listener did not prove within the limit that it knows the key.
    """
    deadline = time.monotonic() + limit.total_seconds()
    patience = min(deadline, time.monotonic() + PATIENCE_SECONDS)
    failure: SequencerError | None = None

    while failure is None:
        connection: socket.socket | None = None
        try:
            connection = _connect(endpoint, deadline)
            _prove(connection, key, generation, role, deadline)
        except OSError as error:
            if connection is not None:
                connection.close()
            # Under a flood of connections the sequencer closes the oldest unproven ones, perhaps this rank's.
            if connection is None or not isinstance(error, _EndedError) or time.monotonic() > patience:
                has_ended = isinstance(error, ConnectionRefusedError | ConnectionResetError)
                failure = SequencerError(endpoint, str(error) or type(error).__name__, has_ended=has_ended)
            else:
                time.sleep(_RETRY_SECONDS)
        else:
            return connection
    raise failure  # without the context, whose frames would hold the caller's group


def _connect(endpoint: Endpoint, deadline: float) -> socket.socket:
    while True:
        try:
            return socket.create_connection((endpoint.address, endpoint.port), max(0.1, deadline - time.monotonic()))
        except ConnectionRefusedError:
            raise  # the sequencer has ended: it listened before, and another generation has another one
        except OSError:
            if time.monotonic() + _RETRY_SECONDS > deadline:
                raise
            time.sleep(_RETRY_SECONDS)


class _EndedError(OSError):
    """The sequencer has closed the connection before the proof."""


def _prove(connection: socket.socket, key: bytes, generation: int, role: int, deadline: float) -> None:
    """Prove that this rank knows the key, and check the other side's proof."""
    connection.settimeout(max(0.1, deadline - time.monotonic()))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    challenge = receive_exactly(connection, wire.NONCE_BYTES)
    greeting, expected = wire.make_greeting(key, generation, role, challenge, os.urandom(wire.NONCE_BYTES))
    connection.sendall(greeting)
    if not hmac.compare_digest(receive_exactly(connection, wire.PROOF_BYTES), expected):
        raise OSError("it does not know the key of this generation")
    connection.settimeout(None)


def receive_exactly(connection: socket.socket, count: int) -> bytes:
    """Receive this number of bytes; raises OSError if the connection is closed before."""
    data = b""
    while len(data) < count:
        chunk = connection.recv(count - len(data))
        if not chunk:
            raise _EndedError("it closed the connection")
        data += chunk
    return data
