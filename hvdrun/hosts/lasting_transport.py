"""The transport to an agent that outlives its launcher: the first way, and the stream that replaces it.

The first way starts the agent: a pipe, or SSH. Once the agent is in the rendezvous, orders go by the stream where one
is open, and messages come by it. A launcher that was started again has no first way, and opens only its tunnel again.

An order may be lost: with a stream that is cut, or where there is no way. Launch and Terminate come again from the
agent's next report. Each new stream begins with the other orders that hold. A question is not asked again.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import TYPE_CHECKING

from hvdrun.hosts.lasting_tunnel import LastingTunnel
from hvdrun.processes.background import cancel_and_wait, supervise
from hvdrun.transport.transport import Transport
from hvdrun.transport.transport_errors import NoTunnelError
from rendezvous.core.outcome import TEMPORARY_FAILURE
from rendezvous.wire.orders import AgentMessage, Hold, Order, Release, Stop

if TYPE_CHECKING:
    from rendezvous.server.agent_streams import AgentStream

# For an agent whose first way has ended to open its stream again: it tries each second. Shorter than most leases, since
# it may have been killed.
RETURN_SECONDS = 5.0


class LastingTransport:
    """A `Transport` that the launcher may lose, and find again.

    Args:
        host: the host of the agent.
        first: starts the agent; None for one that a former launcher has started.
        tunnel: opens the tunnel of the first way again, where that can have one.
        proves_end: the end of the first way is the end of the agent.
        return_seconds: how long an agent whose first way has ended may be without a stream; one that never had a first
            way has its lease alone.
    """

    def __init__(
        self,
        host: str,
        first: Transport | None,
        *,
        tunnel: LastingTunnel | None = None,
        proves_end: bool = False,
        return_seconds: float = RETURN_SECONDS,
    ) -> None:
        self._host = host
        self._first = first
        self._tunnel = tunnel
        self._ports: tuple[int, int] | None = None  # of the tunnel, here and on the host
        self._proves_end = proves_end
        self._return_seconds = return_seconds
        self._has_way = first is not None
        self._stream: AgentStream | None = None
        self._holding: dict[type, Order] = {}
        # With what to call before and after the message is shown; None: the end.
        self._messages: asyncio.Queue[tuple[AgentMessage, Callable[[], None], Callable[[], None]] | None] = (
            asyncio.Queue()
        )
        self._failure: BaseException | None = None

    def attach(self, stream: "AgentStream") -> None:
        """Use this stream, whenever the agent has opened it."""
        self._stream = stream
        stream.note_closed = self._note_closed
        stream.follow(self._take, lambda: tuple(self._holding.values()))

    async def open(self) -> None:
        """Start the agent, unless a former launcher has; see `Transport`."""
        if self._first is not None:
            await self._first.open()

    def send(self, order: Order) -> None:
        """Send an order by the way that is open; see `Transport`."""
        if isinstance(order, Stop | Hold | Release):
            self._holding[type(order)] = order
        if self._stream is not None and self._stream.send(order):
            return
        if self._first is not None:
            self._first.send(order)

    async def messages(self) -> AsyncIterator[AgentMessage]:
        """The agent's messages by both ways, until the agent ends; see `Transport`."""
        reading = set()
        if self._first is not None:
            reading = {asyncio.create_task(self._read(self._first), name="read an agent's first messages")}
        try:
            for task in reading:
                supervise(task, self._fail)
            while (message_or_end := await self._messages.get()) is not None:
                message, note_taken, note_shown = message_or_end
                note_taken()
                yield message
                note_shown()
            if self._failure is not None:
                raise self._failure
        finally:
            await cancel_and_wait(reading)

    async def wait(self) -> str:
        """How the agent has ended; see `Transport`."""
        if self._first is not None:
            return await self._first.wait()
        return "its agent has ended, or was cut off"

    async def tunnel(self, port: int) -> int:
        """See `Transport`.

        Raises:
            LaunchError: there is no first way, or it has no tunnel.
        """
        if self._first is None:
            raise NoTunnelError(self._host, "hvdrun that was started again")
        remote = await self._first.tunnel(port)
        self._ports = (port, remote)
        return remote

    def reopen_tunnel(self, port: int, remote: int) -> None:
        """Open the tunnel that a former launcher had, without waiting.

        Args:
            port: of this machine's loopback address.
            remote: of the host's.
        """
        if self._tunnel is not None:
            self._tunnel.keep(port, remote, self._fail)

    async def kill(self) -> None:
        """Kill the agent, or let it end when it can be reached; see `Transport`."""
        await self._release()
        if self._first is not None:
            await self._first.kill()

    async def close(self) -> None:
        """Release the agent, and close the first way; see `Transport`."""
        await self._release()
        if self._first is not None:
            await self._first.close()

    async def _release(self) -> None:
        """Release the agent, which the end of its orders would not end, and close its tunnel."""
        if Release not in self._holding:
            self.send(Release(TEMPORARY_FAILURE))
        if self._tunnel is not None:
            await self._tunnel.close()

    async def _read(self, first: Transport) -> None:
        """Take the messages of the first way, each when the last one was shown."""
        shown = asyncio.Event()
        async for message in first.messages():
            shown.clear()
            self._messages.put_nowait((message, lambda: None, shown.set))
            await shown.wait()
        self._has_way = False
        if self._proves_end or self._stream is None:
            self._messages.put_nowait(None)
        else:
            if self._ports is not None:
                self.reopen_tunnel(*self._ports)
            self._note_closed()

    def _take(self, message: AgentMessage | None, number: int) -> None:
        stream = self._stream
        if message is None or stream is None:
            self._messages.put_nowait(None)
        else:
            self._messages.put_nowait((message, partial(stream.note_taken, number), partial(stream.note_shown, number)))

    def _note_closed(self) -> None:
        """Give the agent some time for a new stream, if no other way is open."""
        if self._first is not None and not self._has_way:
            asyncio.get_running_loop().call_later(self._return_seconds, self._end_without_stream)

    def _end_without_stream(self) -> None:
        if self._stream is not None and not self._stream.is_open:
            self._messages.put_nowait(None)

    def _fail(self, error: BaseException) -> None:
        self._failure = error
        self._messages.put_nowait(None)
