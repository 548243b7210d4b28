"""What the pool asks of a way to a host."""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Protocol

from rendezvous.wire import codec
from rendezvous.wire.orders import AgentMessage, Order

# Logins in progress: a login takes the launcher a few milliseconds and the network the rest, so that more at once gain
# little, and a jump host that all of them pass through counts each against its MaxStartups.
MAX_AT_ONCE = 32


class Transport(Protocol):
    """A way to one host: starts an agent there, takes orders to it and brings the workers' output back."""

    async def open(self) -> None:
        """Start the agent.

        Raises:
            LaunchError: it cannot be started; the sentence says why and what to do.
        """

    def send(self, order: Order) -> None:
        """Send an order, without waiting; to an agent that has ended it is lost."""

    def messages(self) -> AsyncIterator[AgentMessage]:
        """The workers' output and the agent's remarks, until the agent ends."""

    async def wait(self) -> str:
        """Wait until the agent has ended; how it did, in half a sentence."""

    async def tunnel(self, port: int) -> int:
        """The port of that host's loopback address that leads to this machine's loopback `port`, until the end.

        Raises:
            LaunchError: there can be none.
        """

    async def kill(self) -> None:
        """Kill an agent that has fallen silent, or close the way to it, which ends it too.

        Its messages end with what has come from it until then.
        """

    async def close(self) -> None:
        """End the agent, if it has not ended, by ending its order channel; it clears away what is its own."""


async def read_messages(read: Callable[[], Awaitable[bytes]], first: bytes = b"") -> AsyncIterator[AgentMessage]:
    """An agent's messages until its output ends.

    read: the next bytes of its output. first: those that have been read before.
    """
    frames = codec.FrameReader()
    chunk = first or await read()
    while chunk:
        for data in frames.feed(chunk):
            yield codec.decode_agent_message(data)
        chunk = await read()
