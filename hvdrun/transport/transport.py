"""A transport: what the launcher needs of a host, and what the transports with a stream to their agent share."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Protocol

from hvdrun.transport.start import RemoteAgent, find_sentinel, last_words
from hvdrun.transport.transport_errors import AgentStartError, advise_to_try
from rendezvous.wire import codec
from rendezvous.wire.orders import AgentMessage, Order

# Logins in progress. A login takes the launcher a few milliseconds and the network the rest, so that more of them gain
# little, and a jump host counts each against its MaxStartups.
MAX_AT_ONCE = 32
START_SECONDS = 60.0  # for a login or a step of the scheduler, and for an agent on a busy host
CLOSE_SECONDS = 8.0  # more than an agent takes to clean up
_CHUNK_BYTES = 256 * 1024


class Transport(Protocol):
    """The connection with one host: starts an agent there, sends orders to it, and brings the workers' output back."""

    async def open(self) -> None:
        """Start the agent.

        Raises:
            LaunchError: it cannot be started; the sentence says why and what to do.
        """

    def send(self, order: Order) -> None:
        """Send an order, without waiting; after the agent's end it is lost."""

    def messages(self) -> AsyncIterator[AgentMessage]:
        """The agent's messages, the workers' output among them, until the agent ends."""

    async def wait(self) -> str:
        """Wait until the agent has ended; return how it ended, in half a sentence."""

    async def tunnel(self, port: int) -> int:
        """The port of that host's loopback address that leads to this machine's loopback `port`, until the end.

        Raises:
            LaunchError: no tunnel can be opened.
        """

    async def kill(self) -> None:
        """Kill a silent agent, or close the connection, which ends the agent too.

        `messages` ends with what has come from the agent until its end.
        """

    async def close(self) -> None:
        """End the agent's orders, wait for its end, and close the connection."""


class StreamTransport:
    """What the transports with a stream to their agent share; see `Transport`.

    Args:
        host: the host of the agent.
    """

    def __init__(self, host: str) -> None:
        self.host = host
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | asyncio.WriteTransport | None = None  # None after the last order, too
        self._first = b""  # of the agent's output

    def send(self, order: Order) -> None:
        """Send an order; see `Transport`."""
        self._write(codec.encode_order(order))

    def messages(self) -> AsyncIterator[AgentMessage]:
        """The agent's messages; see `Transport`."""
        return read_messages(self._read, self._first)

    def _write(self, data: bytes) -> None:
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write(data)

    async def _read(self) -> bytes:
        if self._reader is None:
            return b""
        return await self._reader.read(_CHUNK_BYTES)

    async def _read_to_end(self) -> None:
        while await self._read():
            pass


class ShellTransport(StreamTransport):
    """What the transports have in common that start their agent through a shell; see `Transport`.

    Args:
        host: its name in the job.
        way: the program that runs the shell on the host.
    """

    def __init__(self, host: str, way: str) -> None:
        super().__init__(host)
        self._way = way

    @property
    def _stderr_tail(self) -> bytes:
        """The end of what the agent has written to standard error."""
        raise NotImplementedError

    async def _wait_exit(self) -> int:
        """Wait until the agent or its shell has ended; return the exit code, or a negative number."""
        raise NotImplementedError

    async def _start_agent(self, agent: RemoteAgent) -> None:
        """Have the shell at the other end of the stream start the agent, and wait until the agent runs.

        Raises:
            LaunchError: the agent does not start.
        """
        self._write(agent.encode_start())
        before, self._first = await find_sentinel(self._read)
        if not self._first:
            raise agent.explain(self.host, await self._wait_exit(), self._stderr_tail, before, self._way)

    @asynccontextmanager
    async def _limit_start(self, seconds: float) -> AsyncIterator[None]:
        """Limit the agent's start.

        Raises:
            LaunchError: it took longer.
        """
        try:
            async with asyncio.timeout(seconds):
                yield
        except TimeoutError as error:
            how, said = f"no sign of it within {seconds:g} s", last_words(self._stderr_tail)
            raise AgentStartError(self.host, how, said, advise_to_try(self._way)) from error


async def read_messages(read: Callable[[], Awaitable[bytes]], first: bytes = b"") -> AsyncIterator[AgentMessage]:
    """An agent's messages until its output ends.

    Args:
        read: returns the next bytes of its output.
        first: the bytes that have been read before.
    """
    frames = codec.FrameReader()
    chunk = first or await read()
    while chunk:
        for data in frames.feed(chunk):
            yield codec.decode_agent_message(data)
        chunk = await read()
