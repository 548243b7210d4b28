"""Strangers at a port: whatever a program without a certificate of the job might send there.

Every stranger is seeded. They count what they did, so that a test sees that there was a fire at all.
"""

import asyncio
import random
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from rendezvous.server.authority import Authority
from rendezvous.wire.orders import Credential

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"  # what an HTTP/2 client says first
_PATIENCE_SECONDS = 0.3  # how long a stranger waits for an answer before it comes as another
_PAUSE_SECONDS = 0.01
_CHUNK_BYTES = 65_536
_HUGE_BYTES = 2 * 1024 * 1024


class Fire:
    """Strangers that come to one port again and again, until they are stopped."""

    def __init__(self, address: str, port: int, seed: int) -> None:
        self._address = address
        self._port = port
        self.chance = random.Random(seed)  # noqa: S311 - a story, not a secret
        self.done: Counter[str] = Counter()
        # What each kind sends, and how it is known to TLS where it gets so far.
        self._anonymous, self._foreign = make_context(), make_context(Authority("another job").issue_agent("a"))
        self.kinds: dict[str, Callable[[], tuple[bytes, ssl.SSLContext | None]]] = {
            "noise": lambda: (self.chance.randbytes(self.chance.choice([1, 5, 300, 70_000, _HUGE_BYTES])), None),
            "frames in plain text": lambda: (PREFACE + b"".join(self._make_frame() for _ in range(20)), None),
            "a part of a hello": lambda: (self._make_part_of_hello(), None),
            "a hello and no more": lambda: (make_hello(), None),  # the server signs something, which costs it most
            "no certificate": lambda: (
                PREFACE + self.chance.randbytes(self.chance.choice([10, _HUGE_BYTES])),
                self._anonymous,
            ),
            "another job's certificate": lambda: (PREFACE + self._make_frame(), self._foreign),
        }

    async def burn(self) -> None:
        """One stranger after the other, each as one of these kinds, until cancelled."""
        while True:
            kind = self.chance.choice(list(self.kinds))
            try:
                await self.visit(kind)
            except ConnectionRefusedError:  # no listener is left
                await asyncio.sleep(_PAUSE_SECONDS)
                continue
            except (OSError, EOFError):  # TimeoutError and SSLError are OSErrors
                pass
            self.done[kind] += 1

    async def visit(self, kind: str) -> None:
        """Connect, send, and read what comes, until the server hangs up or patience ends."""
        data, context = self.kinds[kind]()
        patience_seconds = None if context is None else _PATIENCE_SECONDS
        reader, writer = await asyncio.open_connection(
            self._address, self._port, ssl=context, ssl_handshake_timeout=patience_seconds
        )
        try:
            async with asyncio.timeout(_PATIENCE_SECONDS):
                writer.write(data)
                await writer.drain()
                while await reader.read(_CHUNK_BYTES):
                    pass
        finally:
            writer.transport.abort()

    def _make_part_of_hello(self) -> bytes:
        """With one bit of it wrong, or not."""
        hello = make_hello()
        if self.chance.getrandbits(1):
            hello = flip(hello, self.chance)
        return hello[: self.chance.randrange(1, len(hello))]

    def _make_frame(self) -> bytes:
        """Of any kind or of none, with a length that is true or not."""
        payload = self.chance.randbytes(self.chance.randrange(200))
        length = self.chance.choice([len(payload), self.chance.randrange(1 << 24)])
        kind, flags = self.chance.randrange(12), self.chance.randrange(256)
        return length.to_bytes(3, "big") + bytes([kind, flags]) + self.chance.randbytes(4) + payload


def flip(data: bytes, chance: random.Random) -> bytes:
    """One bit is another."""
    changed = bytearray(data)
    changed[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    return bytes(changed)


@asynccontextmanager
async def burning(
    address: str, port: int, *, seed: int, strangers: int, idle: int, kind: type[Fire] = Fire
) -> AsyncIterator[Fire]:
    """So many strangers at a time, and besides them so many connections on which nothing is ever said."""
    fire = kind(address, port, seed)
    async with holding(address, port, idle):
        burning = [asyncio.create_task(fire.burn()) for _ in range(strangers)]
        try:
            yield fire
        finally:
            for task in burning:
                task.cancel()
            results = await asyncio.gather(*burning, return_exceptions=True)
    failures = [result for result in results if not isinstance(result, asyncio.CancelledError)]
    assert failures == []


@asynccontextmanager
async def holding(address: str, port: int, count: int) -> AsyncIterator[None]:
    """Connections that are made and left alone; whatever the server does about them."""
    connections = []
    try:
        for _ in range(count):
            with suppress(OSError):
                connections.append(await asyncio.open_connection(address, port))
        assert len(connections) > count * 0.9, "too few connections to mean anything"
        yield
    finally:
        for _, writer in connections:
            writer.transport.abort()
        await asyncio.sleep(0)  # for the transports to close their sockets


def make_context(credential: Credential | None = None) -> ssl.SSLContext:
    """A client that believes every server."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    if credential is not None:
        with TemporaryDirectory() as folder:
            path = Path(folder, "both.pem")
            path.write_bytes(credential.certificate + credential.private_key)
            context.load_cert_chain(path)
    return context


def make_hello() -> bytes:
    """What a client of TLS says first."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = make_context().wrap_bio(incoming, outgoing)
    with suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()
