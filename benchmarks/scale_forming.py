"""The generation's store while many ranks form their group: one process holds all sockets, and shares the cores.

Each rank does what torch's gloo does: it sets one value, and gets the values of all ranks, one after the other. Then
the ranks compare their connections. The groups themselves are left out, with the connections between the ranks: 64
ranks would have 4,032.
"""

import socket
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from sequencer import KEY, LIMIT_SECONDS, LOOPBACK, read_cpu_seconds, receive, sequencer

from worker_runtime.coordination import wire
from worker_runtime.coordination.wire import StoreFrame

_PORT = 20_000
_HEAD_BYTES, _BYTES_EACH = 154, 8  # of the value that gloo sets, in torch 2.13: the second once for each rank


@dataclass(frozen=True, slots=True)
class Forming:
    """The costs of forming a group of a number of ranks.

    found_seconds: from the publication of the generation until each rank has the addresses of all.
    compared_seconds: from then until each rank has verified that its connections lead to members.
    own_cpu_seconds: the sequencer's; clients_cpu_seconds: that of the process with the ranks.
    """

    ranks: int
    found_seconds: float
    compared_seconds: float
    own_cpu_seconds: float
    clients_cpu_seconds: float


def measure(ranks: int) -> Forming:
    """Form a group of `ranks` ranks once."""
    comparisons = [
        wire.encode_frame(StoreFrame.COMPARE, wire.encode_ends("group", rank, ranks, _list_ends(rank, ranks)))
        for rank in range(ranks)
    ]
    with sequencer(ranks) as (port, pid), ExitStack() as stack:
        own, clients = read_cpu_seconds(pid), time.process_time()
        began = time.perf_counter()
        connections = _connect_all(port, ranks, stack)
        value = bytes(_HEAD_BYTES + _BYTES_EACH * ranks)
        for rank, connection in enumerate(connections):
            connection.sendall(wire.encode_frame(StoreFrame.SET, wire.encode_entry(f"0/{rank}", value)))
        for rank in range(ranks):
            get = wire.encode_frame(StoreFrame.GET, f"0/{rank}".encode())
            if any(answer != value for answer in _ask_all(connections, [get] * ranks)):
                raise RuntimeError("the store has mixed up its values")
        found = time.perf_counter()
        answers = _ask_all(connections, comparisons)
        compared = time.perf_counter()
        if any(wire.decode_comparison(answer)[0] for answer in answers):
            raise RuntimeError("the sequencer takes a member for a stranger")
        cpu = read_cpu_seconds(pid) - own, time.process_time() - clients
    return Forming(ranks, found - began, compared - found, *cpu)


def _connect_all(port: int, ranks: int, stack: ExitStack) -> list[socket.socket]:
    """The ranks' connections to the store, authenticated on both sides."""
    connections = [stack.enter_context(socket.create_connection((LOOPBACK, port), LIMIT_SECONDS)) for _ in range(ranks)]
    proofs = []
    for rank, connection in enumerate(connections):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        challenge = receive(connection, wire.NONCE_BYTES)
        greeting, proof = wire.make_greeting(KEY, 1, rank | wire.STORE_ROLE, challenge, b"n" * wire.NONCE_BYTES)
        connection.sendall(greeting)
        proofs.append(proof)
    if [receive(connection, len(proof)) for connection, proof in zip(connections, proofs, strict=True)] != proofs:
        raise RuntimeError("the sequencer does not know the key")
    return connections


def _ask_all(connections: Sequence[socket.socket], frames: Sequence[bytes]) -> list[bytes]:
    """Each rank's answer to its question; all questions are sent first."""
    for connection, frame in zip(connections, frames, strict=True):
        connection.sendall(frame)
    return [
        receive(connection, wire.HEADER.unpack(receive(connection, wire.HEADER.size))[0]) for connection in connections
    ]


def _list_ends(rank: int, ranks: int) -> list[tuple[str, str, int | None]]:
    """A rank's connections; those with lower ranks came through its listener."""
    return [
        (_name_end(rank, rank), _name_end(other, rank), _BYTES_EACH)
        if other < rank
        else (_name_end(rank, other), _name_end(other, other), None)
        for other in range(ranks)
        if other != rank
    ]


def _name_end(rank: int, listener: int) -> str:
    """The end at `rank` of its connection to this listener: the listener's own, or one that the rank has opened."""
    host = f"10.0.{rank // 8}.{rank % 8 + 1}"
    return f"{host}:{_PORT}" if rank == listener else f"{host}:{_PORT + 1 + listener}"
