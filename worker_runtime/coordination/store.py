"""The generation's store as a member uses it: a store for torch whose keys lie with the sequencer.

See `sequencer/store.py`. Each thread that uses it has a connection of its own, so that one that waits for a key holds
up no other. All of them end as soon as a process group stands: the next group opens others.
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

    Args:
        endpoint: where the sequencer listens.
        key: of the generation.
        generation: its number.
        rank: of this worker.
        limit: how long to wait for a key where the caller gives no other limit.

    All methods raise RuntimeError, as torch's stores do, where the sequencer is gone or the time is over.
    """

    def __init__(self, endpoint: Endpoint, key: bytes, generation: int, rank: int, limit: timedelta) -> None:
        super().__init__()
        self._endpoint = endpoint
        self._key = key
        self._generation = generation
        self._rank = rank
        self._limit = limit
        self._lock = threading.Lock()
        self._connections: dict[int, socket.socket] = {}  # by the thread that uses it
        self._awaited: dict[str, bytes] = {}  # values that came while a thread waited for their keys
        self._is_cancelled = False

    def set(self, key: str, value: bytes | str) -> None:
        """Set a key for all members."""
        data = value.encode() if isinstance(value, str) else value
        self._send(StoreFrame.SET, wire.encode_entry(key, data), self._limit)

    def get(self, key: str) -> bytes:
        """The value of a key, once it is set."""
        return self._awaited.pop(key, None) or self._ask(StoreFrame.GET, key.encode(), self._limit)

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """Wait until all these keys are set, for so long in all."""
        deadline = time.monotonic() + (timeout or self._limit).total_seconds()
        for key in keys:
            left = timedelta(seconds=deadline - time.monotonic())
            self._awaited[key] = self._ask(StoreFrame.GET, key.encode(), left)

    def check(self, keys: Sequence[str]) -> bool:
        """Whether all these keys are set by now."""
        return bool(self._ask(StoreFrame.CHECK, "\0".join(keys).encode(), self._limit))

    def compare(
        self, group: str, rank: int, size: int, ends: Sequence[tuple[str, str, int | None]] | None, limit: timedelta
    ) -> tuple[str, list[int]]:
        """Have this member's connections compared with those of all other members of a group; see `gloo.Compare`."""
        return wire.decode_comparison(self._ask(StoreFrame.COMPARE, wire.encode_ends(group, rank, size, ends), limit))

    def disconnect(self) -> None:
        """End the connections; calls that wait fail. A later call opens another."""
        with self._lock:
            connections, self._connections = self._connections, {}
        self._awaited.clear()
        for connection in connections.values():
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)  # wakes the thread that waits
            connection.close()

    def cancel(self) -> None:
        """As `disconnect`, for good."""
        self._is_cancelled = True
        self.disconnect()

    def _ask(self, kind: StoreFrame, body: bytes, limit: timedelta) -> bytes:
        connection = self._send(kind, body, limit)
        try:
            length, _ = wire.HEADER.unpack(receive_exactly(connection, wire.HEADER.size))
            return receive_exactly(connection, length)
        except TimeoutError:
            self._forget(connection)  # its answer may come later
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
            raise RuntimeError(f"the sequencer's store was not reached: {error}") from None
        return connection

    def _find_connection(self, limit: timedelta) -> socket.socket:
        """That of the present thread."""
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
                raise OSError("it is not wanted any more")
        return connection

    def _forget(self, connection: socket.socket) -> None:
        with self._lock:
            self._connections = {thread: each for thread, each in self._connections.items() if each is not connection}
        connection.close()
