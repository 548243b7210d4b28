"""The generation's store: the keys and values of its members while their process groups form.

torch's own store answers every peer that reaches its port. This one answers members only, which have proved that they
know the generation's key. It also compares the connections of the members. Where one has come to a member and may pass
for another member's, but no member has the other end, an unknown peer has it.
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
    encode_comparison,
    encode_frame,
)

# Of each connection: this end's address and port, the other end's, and how many bytes that has sent where it has come
# to the group's listener.
Ends = Sequence[tuple[str, str, int | None]]

_NUMBER_BYTES = 8  # what gloo has to receive from a connection before it takes it for a member's


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
        fault, matched = match_ends({rank: ends for rank, (_, ends) in members.items()})
        for number, (member, _) in members.items():
            self._answer(member, encode_comparison(fault, matched[number]))

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


def match_ends(members: Mapping[int, Ends | None]) -> tuple[str, dict[int, list[int]]]:
    """Find the connections that lead from member to member: one has come to the listener of the other.

    A connection of another thread, or of an unknown peer that has sent too little to pass for a member, does no harm.

    Args:
        members: by rank in the group, the ends of its connections; None where a member does not know them.

    Returns:
        A sentence on a connection of an unknown peer, or on one that is missing; "" for none, as far as is known. And
        of each member, which of its connections lead to a member.
    """
    matched: dict[int, list[int]] = {rank: [] for rank in members}
    if any(ends is None for ends in members.values()):
        return "", matched
    owners: dict[tuple[str, str, bool], set[int]] = {}
    for rank, ends in members.items():
        for own, other, sent in ends or ():
            owners.setdefault((own, other, sent is not None), set()).add(rank)
    faults = []
    for rank, ends in members.items():
        peers = set()
        for index, (own, other, sent) in enumerate(ends or ()):
            if others := owners.get((other, own, sent is None), set()) - {rank}:
                matched[rank].append(index)
                peers |= others
            elif sent is not None and sent >= _NUMBER_BYTES:
                faults.append(f"the connection of member {rank} from {own} to {other} leads to no other member")
        if len(peers) != len(members) - 1:
            faults.append(f"member {rank} is connected to {len(peers)} of the {len(members) - 1} other members")
    return faults[0] if faults else "", matched
