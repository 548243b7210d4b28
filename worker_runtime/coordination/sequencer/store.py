"""The generation's store: what its members tell each other while their process groups form.

torch's own store answers everybody who reaches its port. This one answers members, who have proved that they know the
generation's key. It also compares the connections that the members have made: a connection of which no member has the
other end leads to a stranger.
"""

from collections.abc import Mapping, Sequence
from functools import partial

from worker_runtime.coordination.sequencer.connection import WRITE, Connection, ConnectionEndedError
from worker_runtime.coordination.wire import (
    MAX_FRAME_BYTES,
    ProtocolError,
    StoreFrame,
    decode_ends,
    decode_entry,
    encode_frame,
)

Ends = Sequence[tuple[str, str]]  # of each connection: this end's address and port, and the other end's


class KeyStore:
    """Serves the connections to the store of one generation."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}
        self._bytes = 0
        self._waiting: dict[str, list[Connection]] = {}  # for a key
        self._groups: dict[str, dict[int, tuple[Connection, Ends | None]]] = {}  # whose connections are compared
        self._connections: set[Connection] = set()

    def admit(self, connection: Connection, proof: bytes) -> None:
        """Serve a member that has proved itself; `proof` is the sequencer's own, which it waits for."""
        self._connections.add(connection)
        connection.watch(partial(self._serve, connection))
        self._send(connection, proof)

    def close(self) -> None:
        """End all connections."""
        for connection in self._connections:
            connection.close()
        self._connections.clear()

    def _serve(self, connection: Connection, events: int) -> None:
        try:
            if events & WRITE:
                connection.send_more()
            if events & ~WRITE:
                for kind, data, start, end in connection.receive():
                    self._take(connection, kind, data[start:end])
        except (ProtocolError, ConnectionEndedError):
            self._drop(connection)

    def _take(self, connection: Connection, kind: int, body: bytes) -> None:
        match kind:
            case StoreFrame.SET:
                self._set(*decode_entry(body))
            case StoreFrame.GET:
                key = body.decode(errors="replace")
                if key in self._values:
                    self._answer(connection, self._values[key])
                else:
                    self._waiting.setdefault(key, []).append(connection)
            case StoreFrame.CHECK:
                keys = body.decode(errors="replace").split("\0")
                self._answer(connection, b"1" if all(key in self._values for key in keys) else b"")
            case StoreFrame.COMPARE:
                self._compare(connection, *decode_ends(body))
            case _:
                raise ProtocolError(f"the store knows no frame of type {kind}")

    def _set(self, key: str, value: bytes) -> None:
        self._bytes += len(key) + len(value)
        if self._bytes > MAX_FRAME_BYTES:
            raise ProtocolError(f"the store holds {MAX_FRAME_BYTES} bytes at most")
        self._values[key] = value
        for connection in self._waiting.pop(key, ()):
            self._answer(connection, value)

    def _compare(self, connection: Connection, group: str, rank: int, size: int, ends: Ends | None) -> None:
        members = self._groups.setdefault(group, {})
        members[rank] = connection, ends
        if len(members) < size:
            return
        del self._groups[group]
        verdict = find_stranger({rank: ends for rank, (_, ends) in members.items()}).encode()
        for member, _ in members.values():
            self._answer(member, verdict)

    def _answer(self, connection: Connection, body: bytes) -> None:
        if connection in self._connections:  # it may have ended while it waited
            self._send(connection, encode_frame(StoreFrame.ANSWER, body))

    def _send(self, connection: Connection, data: bytes) -> None:
        try:
            connection.send(data)
        except ConnectionEndedError:
            self._drop(connection)

    def _drop(self, connection: Connection) -> None:
        self._connections.discard(connection)
        connection.close()


def find_stranger(members: Mapping[int, Ends | None]) -> str:
    """A sentence on a connection that does not lead to another member; "" where each does, as far as that is known.

    Args:
        members: by rank in the group, the ends of its connections; None where a member does not know them.
    """
    if any(ends is None for ends in members.values()):
        return ""
    owners = {end: rank for rank, ends in members.items() for end in ends or ()}
    for rank, ends in members.items():
        peers = {owners.get((other, own)) for own, other in ends or ()} - {rank, None}
        for own, other in ends or ():
            if owners.get((other, own), rank) == rank:
                return (
                    f"the connection of member {rank} from {own} to {other} leads to none of the {len(members)} members"
                )
        if len(peers) != len(members) - 1:
            return f"member {rank} is connected to {len(peers)} of the {len(members) - 1} other members"
    return ""
