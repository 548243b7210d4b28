"""A probe: one host listens on each of its addresses, another connects and asks which host it has reached.

An address alone proves nothing: 172.17.0.1 (docker0) exists on every host, and each reaches its own. So the prober asks
for one host at one address and port, and proves that it knows the token of the connectivity check. Only the listener at
that endpoint answers, with the same proof. Neither side reveals the token, and no answer fits another question.

A peer that is not a prober gets no answer and does no harm: a connection lasts a short time, and takes no more bytes
than a question has. If there are too many connections, the oldest is closed: a prober sends as soon as it is connected,
so the oldest does not send.
"""

import asyncio
import hmac
import math
import secrets
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import cast

from hvdrun.network.addresses import InterfaceAddress
from rendezvous.core.model import Endpoint
from rendezvous.wire.orders import Listening, ProbeTarget, Proof

NONCE_BYTES = 16
_MAC_BYTES = 32
QUESTION_BYTES = NONCE_BYTES + _MAC_BYTES
ANSWER_BYTES = _MAC_BYTES
SILENCE_SECONDS = 2.0  # how long a connection may take for its question
MAX_CONNECTIONS = 256  # at the same time, on all addresses together
_BACKLOG = 512  # connections that wait in the kernel: all hosts probe at the same moment
_ACCEPTED_TOGETHER = 32  # so few that their questions are read before MAX_CONNECTIONS more are accepted
PROBE_SECONDS = 2.0  # for one target: long enough for one lost packet, which is sent again after a second
CONCURRENCY = 128  # connections at the same time; a process has 1,024 descriptors at least


@dataclass(frozen=True, slots=True)
class Identity:
    """A listener of one connectivity check: its host, its address and the secret of the check."""

    token: bytes
    host: str
    endpoint: Endpoint

    def ask(self) -> bytes:
        """Build a new question for this listener."""
        nonce = secrets.token_bytes(NONCE_BYTES)
        return nonce + self._sign(b"question", nonce)

    def answer(self, question: bytes) -> bytes | None:
        """The answer of this listener; None if the question is for another listener, or lacks the secret."""
        nonce, signature = question[:NONCE_BYTES], question[NONCE_BYTES:]
        if not hmac.compare_digest(signature, self._sign(b"question", nonce)):
            return None
        return self._sign(b"answer", nonce)

    def has_answered(self, question: bytes, answer: bytes) -> bool:
        """Whether this listener has given the answer to the question."""
        return hmac.compare_digest(answer, self._sign(b"answer", question[:NONCE_BYTES]))

    def _sign(self, role: bytes, nonce: bytes) -> bytes:
        words = (role, self.host.encode(errors="surrogateescape"), str(self.endpoint).encode(), nonce)
        text = b"".join(len(word).to_bytes(4, "big") + word for word in words)
        return hmac.digest(self.token, text, "sha256")


class Listener:
    """Listens on some addresses of one host, for one connectivity check and one event loop.

    Args:
        token: the secret of this check.
        host: the name of this machine in the check.
        silence_seconds: how long a connection may be silent.
    """

    def __init__(self, token: bytes, host: str, *, silence_seconds: float = SILENCE_SECONDS) -> None:
        self._token = token
        self._host = host
        self._silence_seconds = silence_seconds
        self._servers: list[asyncio.Server] = []
        self._connections: dict[_ProbeConnection, None] = {}  # the oldest first
        self._is_closed = False

    async def open(self, addresses: Sequence[InterfaceAddress]) -> tuple[Listening, ...]:
        """Listen on a free port of each address; an address where this fails is left out."""
        opened = []
        for place in addresses:
            with suppress(OSError):  # it was just removed, or is not ready yet (IPv6 first checks for duplicates)
                endpoint = await self._listen(place.address)
                opened.append(Listening(place.interface, endpoint, place.prefix, place.speed))
        return tuple(opened)

    def close(self) -> None:
        """Stop listening and close all connections."""
        self._is_closed = True
        for server in self._servers:
            close_server(server)
        self._servers.clear()
        for connection in tuple(self._connections):
            connection.close()

    def add(self, connection: "_ProbeConnection") -> None:
        """Register a new connection; asyncio may have accepted it before this listener was closed."""
        if self._is_closed:
            connection.close()
            return
        if len(self._connections) >= MAX_CONNECTIONS:
            next(iter(self._connections)).close()
        self._connections[connection] = None

    def discard(self, connection: "_ProbeConnection") -> None:
        """Forget a connection."""
        self._connections.pop(connection, None)

    async def _listen(self, address: str) -> Endpoint:
        if ":" in address:
            family = socket.AF_INET6
        else:
            family = socket.AF_INET
        bound = socket.create_server((address, 0), family=family, backlog=_BACKLOG)
        endpoint = Endpoint(address, bound.getsockname()[1])
        identity = Identity(self._token, self._host, endpoint)
        server = await asyncio.get_running_loop().create_server(
            lambda: _ProbeConnection(self, identity, self._silence_seconds), sock=bound, backlog=_ACCEPTED_TOGETHER
        )
        bound.listen(_BACKLOG)  # asyncio has set this one to the number accepted together
        self._servers.append(server)
        return endpoint


def close_server(server: asyncio.Server) -> None:
    """Stop accepting connections; its protocols still get those that were accepted before, and have to close them.

    `Server.close` alone leaves these open, without an owner, up to Python 3.12.
    """
    loop = asyncio.get_running_loop()
    for listening in server.sockets:
        loop.remove_reader(listening)
    loop.call_soon(server.close)


class _ProbeConnection(asyncio.Protocol):
    """One connection of a prober: it sends a question and receives an answer.

    Args:
        listener: accepted it.
        identity: what the answer proves.
        silence_seconds: how long the prober may be silent.
    """

    def __init__(self, listener: Listener, identity: Identity, silence_seconds: float) -> None:
        self._listener = listener
        self._identity = identity
        self._silence_seconds = silence_seconds
        self._question = b""
        self._transport: asyncio.Transport
        self._timer: asyncio.TimerHandle

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Limit the time of the connection."""
        self._transport = cast("asyncio.Transport", transport)
        self._timer = asyncio.get_running_loop().call_later(self._silence_seconds, self.close)
        self._listener.add(self)

    def data_received(self, data: bytes) -> None:
        """Answer a complete question."""
        self._question += data
        if len(self._question) < QUESTION_BYTES:
            return
        answer = self._identity.answer(self._question)
        if answer is None:
            self.close()
        else:
            self._transport.write(answer)
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        """Forget the connection."""
        self._timer.cancel()
        self._listener.discard(self)

    def close(self) -> None:
        """Abort the connection without an answer."""
        self._timer.cancel()
        self._listener.discard(self)
        self._transport.abort()


async def probe(
    token: bytes, targets: Sequence[ProbeTarget], *, limit_seconds: float = PROBE_SECONDS
) -> tuple[Proof, ...]:
    """Probe the targets, at most `CONCURRENCY` at a time; returns the proofs of those that answered, in their order.

    Args:
        token: the secret of the connectivity check.
        targets: the hosts and the addresses at which they listen.
        limit_seconds: the time limit for each probe.
    """
    places = asyncio.Semaphore(CONCURRENCY)

    async def prove(target: ProbeTarget) -> Proof | None:
        async with places:
            try:
                async with asyncio.timeout(limit_seconds):
                    return await _prove(Identity(token, target.host, target.endpoint))
            except (OSError, EOFError):  # a TimeoutError is an OSError
                return None

    return tuple(proof for proof in await asyncio.gather(*map(prove, targets)) if proof is not None)


def bound_seconds(count: int, limit_seconds: float = PROBE_SECONDS) -> float:
    """How long so many targets can take at most."""
    return math.ceil(count / CONCURRENCY) * limit_seconds


async def _prove(identity: Identity) -> Proof | None:
    address, port = identity.endpoint.address, identity.endpoint.port
    began = time.perf_counter()
    reader, writer = await asyncio.open_connection(address, port)
    milliseconds = (time.perf_counter() - began) * 1000
    try:
        question = identity.ask()
        writer.write(question)
        if not identity.has_answered(question, await reader.readexactly(ANSWER_BYTES)):
            return None
        return Proof(identity.host, address, str(writer.get_extra_info("sockname")[0]), milliseconds)
    finally:
        writer.transport.abort()
