"""Answers the probes of the other hosts, on each of this host's addresses.

Whoever is no prober of this survey gets no answer, and can do no harm: a connection lives for a short time, and takes
no more bytes than a question has. When there are too many, the oldest goes: a prober speaks as soon as it is connected,
so the oldest is one that does not speak.
"""

import asyncio
import socket
from collections.abc import Sequence
from contextlib import suppress
from typing import cast

from hvdrun.network.handshake import QUESTION_BYTES, Identity
from hvdrun.network.interfaces import InterfaceAddress
from rendezvous.core.model import Endpoint
from rendezvous.wire.orders import Listening

SILENCE_SECONDS = 2.0  # how long a connection may take for its question
MAX_VISITORS = 256  # at the same time, on all addresses together
_BACKLOG = 512  # connections that the kernel makes before they are let in: all hosts probe at the same moment
_ADMITTED_AT_ONCE = 32  # so few that what they say is heard before MAX_VISITORS more have come


class Listener:
    """Listens on some addresses of one host, for one survey; belongs to one event loop."""

    def __init__(self, token: bytes, host: str, *, silence_seconds: float = SILENCE_SECONDS) -> None:
        self._token = token
        self._host = host
        self._silence_seconds = silence_seconds
        self._servers: list[asyncio.Server] = []
        self._visitors: dict[_Visitor, None] = {}  # the oldest first

    async def open(self, addresses: Sequence[InterfaceAddress]) -> tuple[Listening, ...]:
        """Listen on a free port of each address; an address where that is impossible is left out."""
        opened = []
        for place in addresses:
            with suppress(OSError):  # it has just gone, or is not ready yet (IPv6 looks for duplicates first)
                endpoint = await self._listen(place.address)
                opened.append(Listening(place.interface, endpoint, place.prefix, place.speed))
        return tuple(opened)

    def close(self) -> None:
        """Listen no more, and let go whoever is there."""
        for server in self._servers:
            server.close()
        self._servers.clear()
        for visitor in tuple(self._visitors):
            visitor.leave()

    def admit(self, visitor: "_Visitor") -> None:
        """Somebody has connected."""
        if len(self._visitors) >= MAX_VISITORS:
            next(iter(self._visitors)).leave()
        self._visitors[visitor] = None

    def dismiss(self, visitor: "_Visitor") -> None:
        """Somebody has gone."""
        self._visitors.pop(visitor, None)

    async def _listen(self, address: str) -> Endpoint:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        bound = socket.create_server((address, 0), family=family, backlog=_BACKLOG)
        endpoint = Endpoint(address, bound.getsockname()[1])
        identity = Identity(self._token, self._host, endpoint)
        server = await asyncio.get_running_loop().create_server(
            lambda: _Visitor(self, identity, self._silence_seconds), sock=bound, backlog=_ADMITTED_AT_ONCE
        )
        bound.listen(_BACKLOG)  # asyncio has set the other as both
        self._servers.append(server)
        return endpoint


class _Visitor(asyncio.Protocol):
    """One connection: a question comes, and an answer goes."""

    def __init__(self, listener: Listener, identity: Identity, silence_seconds: float) -> None:
        self._listener = listener
        self._identity = identity
        self._silence_seconds = silence_seconds
        self._question = b""
        self._transport: asyncio.Transport
        self._timer: asyncio.TimerHandle

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """It has come."""
        self._transport = cast("asyncio.Transport", transport)
        self._timer = asyncio.get_running_loop().call_later(self._silence_seconds, self.leave)
        self._listener.admit(self)

    def data_received(self, data: bytes) -> None:
        """It speaks."""
        self._question += data
        if len(self._question) < QUESTION_BYTES:
            return
        answer = self._identity.answer(self._question)
        if answer is None:
            self.leave()
        else:
            self._transport.write(answer)
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        """It has gone."""
        self._timer.cancel()
        self._listener.dismiss(self)

    def leave(self) -> None:
        """End it, without a word."""
        self._timer.cancel()
        self._listener.dismiss(self)
        self._transport.abort()
