"""Connects to the listeners of other hosts, and tells which of them are what they should be."""

import asyncio
import math
import socket
import time
from collections.abc import Sequence

from hvdrun.network.handshake import ANSWER_BYTES, Identity
from rendezvous.wire.orders import ProbeTarget, Proof

PROBE_SECONDS = 2.0  # for one target: long enough for one lost packet, which is sent again after a second
CONCURRENCY = 128  # connections at the same time; a process has 1,024 descriptors at least


async def probe(
    token: bytes, targets: Sequence[ProbeTarget], *, limit_seconds: float = PROBE_SECONDS
) -> tuple[Proof, ...]:
    """Try all targets at once, `CONCURRENCY` at most at the same time; only what was proven comes back, in their order.

    Args:
        token: the survey's secret.
        targets: who listens where.
        limit_seconds: for each of them.
    """
    places = asyncio.Semaphore(CONCURRENCY)

    async def prove(target: ProbeTarget) -> Proof | None:
        async with places:
            try:
                async with asyncio.timeout(limit_seconds):
                    return await _prove(Identity(token, target.host, target.endpoint))
            except OSError:  # a TimeoutError is one
                return None

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(prove(target)) for target in targets]
    return tuple(proof for task in tasks if (proof := task.result()) is not None)


def bound_seconds(count: int, limit_seconds: float = PROBE_SECONDS) -> float:
    """How long so many targets can take at most."""
    return math.ceil(count / CONCURRENCY) * limit_seconds


async def _prove(identity: Identity) -> Proof | None:
    address, port = identity.endpoint.address, identity.endpoint.port
    loop = asyncio.get_running_loop()
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as connection:
        connection.settimeout(0)
        began = time.perf_counter()
        await loop.sock_connect(connection, (address, port))
        milliseconds = (time.perf_counter() - began) * 1000
        question = identity.ask()
        await loop.sock_sendall(connection, question)
        answer = await _receive(connection)
        if not identity.has_answered(question, answer):
            return None
        return Proof(identity.host, address, str(connection.getsockname()[0]), milliseconds)


async def _receive(connection: socket.socket) -> bytes:
    """As many bytes as an answer has, or fewer where the peer says no more."""
    received = b""
    while len(received) < ANSWER_BYTES:
        chunk = await asyncio.get_running_loop().sock_recv(connection, ANSWER_BYTES - len(received))
        if not chunk:
            break
        received += chunk
    return received
