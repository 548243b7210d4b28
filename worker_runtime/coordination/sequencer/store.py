"""The generation's store: the keys and values of its members while they form process groups.

torch's store answers every peer that reaches its port. This one answers only members, which have proved that they know
the generation's key. It also compares the members' connections: a connection to a member whose other end belongs to no
member is that of an unknown peer.
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

# For each connection this end's address and port, the other end's, and the number of bytes that the other end has sent
# if it has connected to the group's listener.
Ends = Sequence[tuple[str, str, int | None]]

_NUMBER_BYTES = 8  # the bytes that gloo must receive before it accepts a connection as a member's


class KeyStore:
    """Serves the connections to the store of one generation."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}
        self._bytes = 0
        self._waiting: dict[str, list[Connection]] = {}  # the connections that wait for a key
        self._groups: dict[str, dict[int, tuple[Connection, Ends | None]]] = {}  # the groups to compare
        self._connections: set[Connection] = set()

    def admit(self, connection: Connection, proof: bytes) -> None:
        """Serve a member after its proof, and send the sequencer's proof."""
        self._connections.add(connection)
        connection.watch(partial(self._serve, connection))
        self._send(connection, proof)

    def close(self) -> None:
        """Close all connections."""
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
                raise ProtocolError(f"the store does not know frames of type {kind}")

    def _set(self, key: str, value: bytes) -> None:
        self._bytes += len(key) + len(value)
        if self._bytes > MAX_FRAME_BYTES:
            raise ProtocolError(f"the store is limited to {MAX_FRAME_BYTES} bytes")
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
        if connection in self._connections:  # it may have been closed while it waited
            self._send(connection, encode_frame(StoreFrame.RESPONSE, body))

    def _send(self, connection: Connection, data: bytes) -> None:
        try:
            connection.send(data)
        except ConnectionEndedError:
            self._drop(connection)

    def _drop(self, connection: Connection) -> None:
        self._connections.discard(connection)
        connection.close()


def match_ends(members: Mapping[int, Ends | None]) -> tuple[str, dict[int, list[int]]]:
    """Find the connections that lead from member to member: one end is at the listener of the other.

    Connections of other threads, or of unknown peers that have sent too little to be accepted, are ignored.

    Args:
        members: the ends of each member's connections by its rank in the group; None if a member does not know them.

    Returns:
        A message about a connection of an unknown peer, or a missing one; "" if none is known. And for each member the
        indices of its connections that lead to a member.
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
