"""The generation's store on the side of a member: a torch store whose keys are in the sequencer.

See `sequencer/store.py`. Each thread has a separate connection, so that a thread that waits for a key blocks no other.
All connections are closed when a process group is formed; the next group opens new ones.
"""

import contextlib
import socket
import threading
import time
from collections.abc import Sequence
from datetime import timedelta

from torch._C._distributed_c10d import Store  # torch.distributed has no types for it

from worker_runtime.coordination import wire
from worker_runtime.coordination.link import dial, receive_exactly
from worker_runtime.coordination.wire import StoreFrame
from worker_runtime.errors import SequencerError
from worker_runtime.rendezvous import Endpoint


class SequencerStore(Store):
    """Keys and values of the members of one generation; for any thread. Each key is set once.

    All methods raise RuntimeError, like torch's stores, after a time limit, or if the sequencer is lost.

    Args:
        endpoint: the address and port of the sequencer.
        key: the generation's key.
        generation: its number.
        rank: this worker's rank.
        limit: the default time limit of a wait.
    """

    def __init__(self, endpoint: Endpoint, key: bytes, generation: int, rank: int, limit: timedelta) -> None:
        super().__init__()
        self._endpoint = endpoint
        self._key = key
        self._generation = generation
        self._rank = rank
        self._limit = limit
        self._lock = threading.Lock()
        self._connections: dict[int, socket.socket] = {}  # by thread
        self._awaited: dict[str, bytes] = {}  # values that `wait` has received
        self._is_cancelled = False

    def set(self, key: str, value: bytes | str) -> None:
        """Set a key for all members."""
        if isinstance(value, str):
            value = value.encode()
        self._send(StoreFrame.SET, wire.encode_entry(key, value), self._limit)

    def get(self, key: str) -> bytes:
        """Wait for a key, and return its value."""
        return self._awaited.pop(key, None) or self._ask(StoreFrame.GET, key.encode(), self._limit)

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """Wait until all keys are set; the timeout is for all together."""
        deadline = time.monotonic() + (timeout or self._limit).total_seconds()
        for key in keys:
            left = timedelta(seconds=deadline - time.monotonic())
            self._awaited[key] = self._ask(StoreFrame.GET, key.encode(), left)

    def check(self, keys: Sequence[str]) -> bool:
        """Whether all keys are set."""
        return bool(self._ask(StoreFrame.CHECK, "\0".join(keys).encode(), self._limit))

    def compare(
        self, group: str, rank: int, size: int, ends: Sequence[tuple[str, str, int | None]] | None, limit: timedelta
    ) -> tuple[str, list[int]]:
        """Compare this member's connections with those of all other members of a group; see `gloo.Compare`."""
        return wire.decode_comparison(self._ask(StoreFrame.COMPARE, wire.encode_ends(group, rank, size, ends), limit))

    def disconnect(self) -> None:
        """Close the connections, so that waiting calls fail. A later call opens a new one."""
        with self._lock:
            connections, self._connections = self._connections, {}
        self._awaited.clear()
        for connection in connections.values():
            with contextlib.suppress(OSError):  # the connection is lost already
                connection.shutdown(socket.SHUT_RDWR)  # wakes the thread that waits
            connection.close()

    def cancel(self) -> None:
        """Like `disconnect`, and later calls fail."""
        self._is_cancelled = True
        self.disconnect()

    def _ask(self, kind: StoreFrame, body: bytes, limit: timedelta) -> bytes:
        connection = self._send(kind, body, limit)
        try:
            length, _ = wire.HEADER.unpack(receive_exactly(connection, wire.HEADER.size))
            return receive_exactly(connection, length)
        except TimeoutError:
            self._forget(connection)  # its response may come later
            raise RuntimeError(f"the other members did not answer within {limit.total_seconds():.3g} s") from None
        except OSError as error:
            self._forget(connection)
            raise RuntimeError(f"the connection to the sequencer's store broke: {error}") from None

    def _send(self, kind: StoreFrame, body: bytes, limit: timedelta) -> socket.socket:
        try:
            connection = self._find_connection(limit)
            connection.settimeout(max(limit.total_seconds(), 0.001))
            connection.sendall(wire.encode_frame(kind, body))
        except (OSError, SequencerError) as error:
            raise RuntimeError(f"cannot reach the sequencer's store: {error}") from None
        return connection

    def _find_connection(self, limit: timedelta) -> socket.socket:
        """The connection of the present thread."""
        thread = threading.get_ident()
        connection = self._connections.get(thread)
        if connection is None:
            role = self._rank | wire.STORE_ROLE
            connection = dial(self._endpoint, self._key, self._generation, role, limit)
            with self._lock:
                if not self._is_cancelled:
                    self._connections[thread] = connection
            if self._is_cancelled:
                connection.close()
                raise OSError("it was cancelled")
        return connection

    def _forget(self, connection: socket.socket) -> None:
        with self._lock:
            self._connections = {thread: each for thread, each in self._connections.items() if each is not connection}
        connection.close()
