"""Strangers at a port: whatever somebody who can reach it, but has no certificate of the job, might send there.

Every stranger is seeded. They count what they did, so that a test can tell that there was a fire at all.
"""

import asyncio
import random
import ssl
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from rendezvous.authority import Authority
from rendezvous.credentials import Credential

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"  # what an HTTP/2 client says first
_PATIENCE_SECONDS = 0.3  # how long a stranger waits for an answer before it comes as another
_CHUNK_BYTES = 65_536
_HUGE_BYTES = 2 * 1024 * 1024


class Fire:
    """Strangers that come to one port again and again, until they are stopped."""

    def __init__(self, address: str, port: int, seed: int) -> None:
        self._address = address
        self._port = port
        self._chance = random.Random(seed)  # noqa: S311 - a story, not a secret
        self._credential = Authority("another job").issue_agent("a")
        self.done: Counter[str] = Counter()

    async def burn(self) -> None:
        """One stranger after the other, each as one of these kinds, until cancelled."""
        kinds = (
            self.make_noise,
            self.speak_http2,
            self.stall_in_the_handshake,
            self.say_hello_and_no_more,
            self.come_without_certificate,
            self.come_from_another_job,
        )
        while True:
            kind = self._chance.choice(kinds)
            with suppress(OSError, EOFError):  # TimeoutError and SSLError are OSErrors
                await kind()
            self.done[kind.__name__] += 1

    async def make_noise(self) -> None:
        """Random bytes, a few or very many."""
        await self._send(self._chance.randbytes(self._chance.choice([1, 5, 300, 70_000, _HUGE_BYTES])))

    async def speak_http2(self) -> None:
        """Frames in plain text, of all kinds and of none, with lengths that are true or not."""
        await self._send(PREFACE + b"".join(self._make_frame() for _ in range(20)))

    async def stall_in_the_handshake(self) -> None:
        """A part of what a client says first, and then nothing; or one bit of it is wrong."""
        hello = bytearray(make_hello())
        if self._chance.getrandbits(1):
            hello[self._chance.randrange(len(hello))] ^= 1 << self._chance.randrange(8)
        await self._send(bytes(hello[: self._chance.randrange(1, len(hello))]))

    async def say_hello_and_no_more(self) -> None:
        """Have the server sign something, which costs it most, and never answer."""
        await self._send(make_hello())

    async def come_without_certificate(self) -> None:
        """Go as far as TLS lets one who has no certificate, and speak as if one had."""
        await self._send(PREFACE + self._chance.randbytes(self._chance.choice([10, _HUGE_BYTES])), make_context())

    async def come_from_another_job(self) -> None:
        """The same, with a certificate that another job's authority has issued."""
        await self._send(PREFACE + self._make_frame(), make_context(self._credential))

    async def _send(self, data: bytes, context: ssl.SSLContext | None = None) -> None:
        """Connect, send, and read what comes, until the server hangs up or patience ends."""
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

    def _make_frame(self) -> bytes:
        payload = self._chance.randbytes(self._chance.randrange(200))
        length = self._chance.choice([len(payload), self._chance.randrange(1 << 24)])
        kind = self._chance.randrange(12)
        return (
            length.to_bytes(3, "big")
            + bytes([kind, self._chance.randrange(256)])
            + self._chance.randrange(1 << 32).to_bytes(4, "big")
            + payload
        )


@asynccontextmanager
async def burning(address: str, port: int, *, seed: int, strangers: int, idle: int) -> AsyncIterator[Fire]:
    """So many strangers at a time, and besides them so many connections on which nothing is ever said."""
    fire = Fire(address, port, seed)
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
