"""The sequencer with many ranks and the buckets of a step: one process holds all sockets, and shares the cores.

A rank's request about a bucket carries no data, as in training, where the process groups send them. The buckets are
submitted together, or each after the previous one was released to all, which is the slowest case.
"""

import socket
import statistics
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from sequencer import CHUNK_BYTES, KEY, LIMIT_SECONDS, LOOPBACK, read_cpu_seconds, receive, sequencer

from worker_runtime.coordination import wire
from worker_runtime.coordination.ordering.requests import Kind, Reduction, Signature

WARM_UP = 3


@dataclass(frozen=True, slots=True)
class Step:
    """The costs of the buckets of a step.

    seconds: the median, from the first rank's request to the last rank's release.
    own_cpu_seconds: the sequencer's, of each step; clients_cpu_seconds: that of the process with the ranks.
    """

    ranks: int
    buckets: int
    at_once: bool
    seconds: float
    own_cpu_seconds: float
    clients_cpu_seconds: float


def measure(ranks: int, buckets: int, steps: int, *, at_once: bool) -> Step:
    """Run steps with a number of ranks."""
    requests = [wire.encode_request(0, 0, f"bucket.{number}".encode(), (), 0) for number in range(buckets)]
    bodies = [b"".join(requests)] if at_once else requests
    with sequencer(ranks) as (port, pid), ExitStack() as stack:
        connections = [stack.enter_context(_connect(port, rank)) for rank in range(ranks)]
        frames = [wire.encode_frame(wire.Frame.REQUESTS, body) for body in bodies]
        for _ in range(WARM_UP):
            _take_step(connections, frames, buckets // len(frames))
        before, own = time.process_time(), read_cpu_seconds(pid)
        seconds = [_take_step(connections, frames, buckets // len(frames)) for _ in range(steps)]
        own_cpu, clients_cpu = read_cpu_seconds(pid) - own, time.process_time() - before
        for connection in connections:
            connection.sendall(wire.encode_frame(wire.Frame.LEAVE))
    return Step(ranks, buckets, at_once, statistics.median(seconds), own_cpu / steps, clients_cpu / steps)


def _connect(port: int, rank: int) -> socket.socket:
    connection = socket.create_connection((LOOPBACK, port), LIMIT_SECONDS)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    greeting, proof = wire.make_greeting(KEY, 1, rank, receive(connection, wire.NONCE_BYTES), b"n" * 32)
    connection.sendall(greeting)
    if receive(connection, len(proof)) != proof:
        raise RuntimeError("the sequencer does not know the key")
    signature = Signature(Kind.ALLREDUCE, ("float32",), ((1024,),), Reduction.SUM)
    connection.sendall(wire.encode_frame(wire.Frame.SIGNATURE, wire.encode_signature(0, signature)))
    return connection


def _take_step(connections: Sequence[socket.socket], frames: Sequence[bytes], releases: int) -> float:
    """Send each frame and read its releases, one after the other; return the seconds."""
    began = time.perf_counter()
    for frame in frames:
        for connection in connections:
            connection.sendall(frame)
        for connection in connections:
            _count(connection, releases)
    return time.perf_counter() - began


def _count(connection: socket.socket, releases: int) -> None:
    """Read until a number of requests were released."""
    data = b""
    while releases:
        chunk = connection.recv(CHUNK_BYTES)
        if not chunk:
            raise EOFError("the sequencer has ended")
        data += chunk
        offset = 0
        while offset + wire.HEADER.size <= len(data):
            length, _ = wire.HEADER.unpack_from(data, offset)
            start, end = offset + wire.HEADER.size, offset + wire.HEADER.size + length
            if end > len(data):
                break
            released = wire.decode_releases(memoryview(data)[start:end], lambda _: 0)
            releases -= sum(len(each.lengths) for each in released)
            offset = end
        data = data[offset:]
