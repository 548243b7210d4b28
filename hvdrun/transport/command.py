"""The way to an agent behind a command: srun, an ssh of the user's choice, a shell on this machine.

The command is a child process whose standard input and output are those of the shell that it starts on the host.
"""

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path

from hvdrun.transport import start
from hvdrun.transport.child import Child, describe_end
from hvdrun.transport.failures import AgentStartError, NoTunnelError
from hvdrun.transport.start import RemoteAgent
from hvdrun.transport.transport import MAX_AT_ONCE
from rendezvous.wire import codec
from rendezvous.wire.orders import AgentMessage, Order, Wait

START_SECONDS = 60.0  # for a login or a step of the scheduler's, and for an agent on a busy host
_CLOSE_SECONDS = 8.0  # more than an agent takes to clear away
_END_SECONDS = 3.0  # for a command that was asked to end, and has to end what it started


class CommandTransport:
    """Starts an agent by a command; see `Transport`.

    words: the command, the shell command of the agent among them.
    gate: shared by all transports of a job, it bounds how many start at the same time.
    environment: the command's; None for that of this process.
    is_here: the command runs on this machine, where the agent reaches hvdrun without a tunnel.
    """

    def __init__(
        self,
        host: str,
        words: Sequence[str],
        agent: RemoteAgent,
        gate: asyncio.Semaphore | None = None,
        *,
        environment: Mapping[str, str] | None = None,
        is_here: bool = False,
        start_seconds: float = START_SECONDS,
    ) -> None:
        self.host = host
        self._words = tuple(words)
        self._agent = agent
        self._gate = gate or asyncio.Semaphore(MAX_AT_ONCE)
        self._environment = environment
        self._is_here = is_here
        self._start_seconds = start_seconds
        self._child: Child | None = None
        self._first = b""  # what came right behind the mark

    async def open(self) -> None:
        """Start the command, and wait for the agent's first word; see `Transport`.

        Raises:
            LaunchError: one of the classes in `failures`.
        """
        try:
            async with self._gate, asyncio.timeout(self._start_seconds):
                await self._start()
        except TimeoutError as error:
            said = "" if self._child is None else start.last_words(self._child.errors)
            raise AgentStartError(self.host, f"no sign of it within {self._start_seconds:g} s", said) from error

    def send(self, order: Order) -> None:
        """Send an order; see `Transport`."""
        if self._child is not None:
            self._child.write(codec.encode_order(order))

    async def messages(self) -> AsyncIterator[AgentMessage]:
        """What the agent tells; see `Transport`."""
        if self._child is None:
            return
        frames = codec.FrameReader()
        chunk, self._first = self._first, b""
        while chunk:
            for data in frames.feed(chunk):
                yield codec.decode_agent_message(data)
            chunk = await self._child.read()

    async def wait(self) -> str:
        """Wait for the agent's end, which is its command's; see `Transport`."""
        if self._child is None:
            return "it was never started"
        how = f"its agent's {self._name} ended with {describe_end(await self._child.wait())}"
        last = start.last_words(self._child.errors)
        return f"{how}: {last}" if last else how

    async def tunnel(self, port: int) -> int:
        """There is none to another machine; see `Transport`.

        Raises:
            NoTunnelError: the host is not this machine.
        """
        if self._is_here:
            return port
        raise NoTunnelError(self.host, self._name)

    async def abandon(self) -> None:
        """Kill the command; see `Transport`. Its agent then has no orders any more, and ends."""
        if self._child is not None:
            self._child.signal(signal.SIGTERM, group=True)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_END_SECONDS):
                    await self._child.process.wait()
            self._child.signal(signal.SIGKILL, group=True)

    async def close(self) -> None:
        """End the agent; see `Transport`."""
        if self._child is not None:
            limits = [(_CLOSE_SECONDS, signal.SIGTERM), (_END_SECONDS, signal.SIGKILL)]
            await self._child.close(limits, group=True)

    @property
    def _name(self) -> str:
        return Path(self._words[0]).name

    async def _start(self) -> None:
        try:
            self._child = child = await Child.start(self._words, self._environment)
        except OSError as error:
            raise AgentStartError(self.host, f"{self._name} cannot be run", error.strerror or str(error)) from error
        # In one piece, so that no agent can be left to wait for its first order for ever.
        child.write(self._agent.script() + codec.encode_order(Wait(self._agent.patience_seconds)))
        before, self._first = await start.find_mark(child.read)
        self._first = self._first or await child.read()
        if not self._first:
            raise self._agent.explain(self.host, await child.wait(), child.errors, before)
