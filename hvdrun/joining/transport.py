"""The way to an agent that has come by itself: the connection that it has made."""

import asyncio
from collections.abc import AsyncIterator

from hvdrun.errors import LaunchError
from hvdrun.joining.channel import Channel
from hvdrun.joining.roster import Roster
from rendezvous import wire
from rendezvous.orders import Order, Telling

_CHUNK_BYTES = 256 * 1024
_CLOSE_SECONDS = 5.0  # for what was sent to leave


class JoinedTransport:
    """Takes an agent from the roster; see `Transport`."""

    def __init__(self, host: str, roster: Roster, patience_seconds: float) -> None:
        self.host = host
        self._roster = roster
        self._patience_seconds = patience_seconds
        self._channel: Channel | None = None

    async def open(self) -> None:
        """Take the agent, which runs; see `Transport`."""
        self._channel = self._roster.take(self.host, self._patience_seconds)
        if self._channel is None:
            raise LaunchError(f"the agent of the host {self.host!r} has gone: start it again there.")

    def send(self, order: Order) -> None:
        """Send an order; see `Transport`."""
        if self._channel is not None and not self._channel.transport.is_closing():
            self._channel.transport.write(wire.encode_order(order))

    async def tellings(self) -> AsyncIterator[Telling]:
        """What the agent tells; see `Transport`."""
        frames = wire.FrameReader()
        if self._channel is not None:
            while chunk := await self._channel.reader.read(_CHUNK_BYTES):
                for data in frames.feed(chunk):
                    yield wire.decode_telling(data)

    async def wait(self) -> str:
        """Wait for the end of the connection; see `Transport`."""
        if self._channel is None:
            return "it was never taken"
        await asyncio.wait({self._channel.closed})
        return "the connection of its agent ended"

    async def tunnel(self, port: int) -> int:
        """It begins where the agent listens, and leads through the launcher's door; see `Transport`."""
        found = self._roster.open_tunnel(self.host, port)
        if found is None:
            raise LaunchError(f"the agent of the host {self.host!r} has gone: start it again there.")
        return found

    async def abandon(self) -> None:
        """Close the connection; see `Transport`."""
        if self._channel is not None:
            self._channel.abort()

    async def close(self) -> None:
        """End the agent, if it has not ended; see `Transport`."""
        if self._channel is not None:
            self._channel.transport.close()
            await asyncio.wait({self._channel.closed}, timeout=_CLOSE_SECONDS)
            self._channel.abort()
