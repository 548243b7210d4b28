"""The way to an agent on this machine: a child process and three pipes."""

import os
import signal
import sys
from collections.abc import AsyncIterator

from hvdrun.errors import LaunchError
from hvdrun.processes.folder import remove_orphans
from hvdrun.transport.child import Child, describe_end
from rendezvous.wire import codec
from rendezvous.wire.orders import AgentMessage, Order

_CLOSE_SECONDS = 8.0  # more than an agent takes to clear away; after that it is killed, and its watchdog does it


class LocalTransport:
    """Starts the agent with hvdrun's own interpreter."""

    def __init__(self, host: str) -> None:
        self.host = host
        self._child: Child | None = None

    async def open(self) -> None:
        """Start the agent; see `Transport`."""
        try:
            self._child = await Child.start((sys.executable, "-P", "-m", "hvdrun.agent"))
        except OSError as error:
            raise LaunchError(f"the agent on {self.host} could not be started: {error}") from error

    def send(self, order: Order) -> None:
        """Send an order; see `Transport`."""
        if self._child is not None:
            self._child.write(codec.encode_order(order))

    async def messages(self) -> AsyncIterator[AgentMessage]:
        """What the agent tells; see `Transport`."""
        frames = codec.FrameReader()
        if self._child is not None:
            while chunk := await self._child.read():
                for data in frames.feed(chunk):
                    yield codec.decode_agent_message(data)

    async def wait(self) -> str:
        """Wait for the agent's end; see `Transport`."""
        if self._child is None:
            return "it was never started"
        how = describe_end(await self._child.wait())
        last = self._child.errors.decode(errors="replace").strip().rpartition("\n")[2]
        return f"its agent ended with {how}: {last}" if last else f"its agent ended with {how}"

    async def tunnel(self, port: int) -> int:
        """The host is this machine; see `Transport`."""
        return port

    async def abandon(self) -> None:
        """Kill the agent; its watchdog clears away. See `Transport`."""
        if self._child is not None:
            self._child.signal(signal.SIGKILL, group=False)

    async def close(self) -> None:
        """End the agent; see `Transport`."""
        if self._child is None:
            return
        await self._child.close([(_CLOSE_SECONDS, signal.SIGKILL)], group=False)
        if self._child.process.returncode:  # it may have been killed, and its watchdog too
            remove_orphans(os.environ)
