"""The cost of the sequencer: round trips of operations whose data are sent inside the request.

    .venv/bin/python benchmarks/sequencer.py --rounds 500

Each rank is a process with a plain socket that sends prepared bytes and counts the bytes of the responses, so that only
the sequencer and the network are measured. Times are those of rank 0, from the first byte sent to the last one
received. The processor time is the sequencer's own, for each request of a rank.
"""

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from worker_runtime.coordination import wire
from worker_runtime.coordination.ordering.requests import Kind, Reduction, Signature

LOOPBACK = "127.0.0.1"
KEY = bytes(wire.KEY_BYTES)
LIMIT_SECONDS = 60
WARM_UP = 20
CHUNK_BYTES = 1024 * 1024
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Load:
    """A round of every rank: a number of requests with a number of bytes each, in one message."""

    name: str
    requests: int
    payload_bytes: int
    rounds: int


def run_rank(port: int, load: Load, rank: int) -> list[float]:
    """Connect as a rank and send requests; return the seconds of each round."""
    signature = Signature(
        Kind.ALLREDUCE, ("float32",), ((load.payload_bytes // 4,),), Reduction.SUM, payload_dtype="float32"
    )
    payload = bytes(load.payload_bytes)
    body = b"".join(
        wire.encode_request(0, 0, f"allreduce.{number}".encode(), (), len(payload)) + payload
        for number in range(load.requests)
    )
    ask = wire.encode_frame(wire.Frame.REQUESTS, body)
    seconds = []
    with socket.create_connection((LOOPBACK, port), LIMIT_SECONDS) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        greeting, proof = wire.make_greeting(KEY, 1, rank, receive(connection, wire.NONCE_BYTES), b"n" * 32)
        connection.sendall(greeting)
        if receive(connection, len(proof)) != proof:
            raise RuntimeError("the sequencer does not know the key")
        connection.sendall(wire.encode_frame(wire.Frame.SIGNATURE, wire.encode_signature(0, signature)))
        for _ in range(load.rounds + WARM_UP):
            began = time.perf_counter()
            connection.sendall(ask)
            count(connection, load.requests)
            seconds.append(time.perf_counter() - began)
        connection.sendall(wire.encode_frame(wire.Frame.LEAVE))
        connection.shutdown(socket.SHUT_WR)
        connection.recv(1)
    return seconds[WARM_UP:]


def receive(connection: socket.socket, size: int) -> bytes:
    """Exactly so many bytes."""
    data = connection.recv(size, socket.MSG_WAITALL)
    if len(data) < size:
        raise EOFError
    return data


def count(connection: socket.socket, requests: int) -> None:
    """Wait until so many were released."""
    data, offset = bytearray(), 0
    while requests:
        chunk = connection.recv(CHUNK_BYTES)
        if not chunk:
            raise EOFError
        data += chunk
        while offset + wire.HEADER.size <= len(data):
            length, _ = wire.HEADER.unpack_from(data, offset)
            start, end = offset + wire.HEADER.size, offset + wire.HEADER.size + length
            if end > len(data):
                break
            releases = wire.decode_releases(memoryview(bytes(data[start:end])), lambda _: 0)
            requests -= sum(len(released.lengths) for released in releases)
            offset = end


@contextmanager
def sequencer(size: int) -> Iterator[tuple[int, int]]:
    """A sequencer that serves a generation of this size; yields its port and process number."""
    command = [sys.executable, "-m", "worker_runtime.coordination.sequencer", LOOPBACK]
    root = Path(__file__).parent.parent
    with subprocess.Popen(command, cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        if process.stdin is None or process.stdout is None:
            raise RuntimeError("the sequencer has no pipes")
        port = json.loads(process.stdout.readline())["port"]
        process.stdin.write(json.dumps({"generation": 1, "size": size, "key": KEY.hex()}).encode() + b"\n")
        process.stdin.flush()
        yield port, process.pid
        process.stdin.close()


def read_cpu_seconds(pid: int) -> float:
    """The processor time of a process in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_SECOND


def measure(load: Load, size: int) -> str:
    """A line of the table."""
    with sequencer(size) as (port, pid), ProcessPoolExecutor(size) as pool:
        before = read_cpu_seconds(pid)
        times = sorted(next(pool.map(partial(run_rank, port, load), range(size))))
        requests = (load.rounds + WARM_UP) * load.requests * size
        each = (read_cpu_seconds(pid) - before) / requests
    median, p90 = statistics.median(times), times[len(times) * 9 // 10]
    return f"| {load.name} | {size} | {median * 1e3:.3f} | {p90 * 1e3:.3f} | {each * 1e6:.1f} |"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=500, help="of single operations; bursts take a tenth of them")
    rounds = parser.parse_args().rounds
    loads = (Load("1 x 1 KB", 1, 1024, rounds), Load("1,000 x 64 B", 1000, 64, max(10, rounds // 10)))
    print("| load | ranks | median ms | p90 ms | processor us per request |")
    print("|---|---|---|---|---|")
    for load in loads:
        for size in (2, 4):
            print(measure(load, size), flush=True)


if __name__ == "__main__":
    main()
