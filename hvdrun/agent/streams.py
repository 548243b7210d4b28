"""The workers' output on its way to the launcher, and the standard input of hvdrun on its way to a worker.

Output is forwarded as it comes. When the launcher does not read (its reader may be `less`), the agent stops reading
from the workers, and they block in their writes, as in any pipe. Reports and orders use other channels and continue.

In a job that outlives its launcher the output waits for the launcher in a `Spool`. While the launcher is away no worker
blocks; where it is only slow, they block as ever. Lines are kept whole where they come soon, so that a launcher that
ends has no half line that it has acknowledged.

The launcher sends the next piece of input when the agent reports that the worker has taken the last one. So a worker
that does not read blocks only the user who types.
"""

import asyncio
import os
from collections.abc import Callable

from hvdrun.agent.spool import Spool
from rendezvous.core.model import Worker
from rendezvous.wire import codec
from rendezvous.wire.orders import AgentFailed, AgentMessage, Output, OutputStream, Written

_CHUNK_BYTES = 64 * 1024
_HALF_LINE_SECONDS = 5.0  # for which the beginning of a line waits for its end, as it does in a file of hvdrun


class OutputForwarder(asyncio.Protocol):
    """Reads the output of all workers, and writes it in frames to one transport, or keeps it.

    spool: where messages wait for a launcher that may be away; None in a job that ends with its launcher.
    spooled: is set when there is something to deliver, or to end.
    delivered: is set when everything has been delivered, after `is_ending`.
    """

    def __init__(self) -> None:
        self.spool: Spool | None = None
        self.spooled = asyncio.Event()
        self.delivered = asyncio.Event()
        self.is_ending = False
        self._is_streamed = self._is_held = False
        self._halves: dict[int, bytes] = {}  # by descriptor, the beginning of a line
        self._timers: dict[int, asyncio.TimerHandle] = {}
        self._sources: dict[int, tuple[Worker, OutputStream]] = {}
        self._transport: asyncio.WriteTransport | None = None
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._drained = asyncio.Event()
        self._drained.set()

    async def open(self, descriptor: int) -> None:
        """Write to this descriptor, and close it in the end."""
        pipe = os.fdopen(descriptor, "wb", buffering=0)
        transport, _ = await asyncio.get_running_loop().connect_write_pipe(lambda: self, pipe)
        self.attach(transport)

    def attach(self, transport: asyncio.WriteTransport) -> None:
        """Write to this transport, whose protocol calls the methods of this one."""
        self._transport = transport

    def tell(self, message: AgentMessage) -> None:
        """Send a message of the agent."""
        is_kept = self._is_streamed or isinstance(message, Output)
        if isinstance(message, AgentFailed):  # nobody would deliver it any more
            is_kept = False
        if self.spool is not None and (is_kept or self._transport is None):
            self.spool.add(codec.pack_agent_message(message))
            self.spooled.set()
        elif self._transport is not None:
            self._transport.write(codec.encode_agent_message(message))

    def keep(self, spool: Spool) -> None:
        """Keep what comes from now on, until it is taken from the spool; not what the agent says before `stream`."""
        self.spool = spool

    def stream(self) -> None:
        """The launcher takes all messages from the spool from now on."""
        self._is_streamed = True

    def add(self, worker: Worker, stream: OutputStream, descriptor: int) -> None:
        """Read this descriptor to its end, and close it."""
        os.set_blocking(descriptor, False)
        self._sources[descriptor] = (worker, stream)
        self._drained.clear()
        if self._may_read:
            asyncio.get_running_loop().add_reader(descriptor, self._read, descriptor)

    def note_outcome(self, worker: Worker, number: int) -> None:
        """Forward the rest of what a worker has written for its task, and then report that this is all."""
        for descriptor in [descriptor for descriptor, (owner, _) in self._sources.items() if owner == worker]:
            while self._read(descriptor):
                pass
            self._send_half(descriptor)
        self.tell(Written(worker, number))

    async def drain(self) -> None:
        """Return when all output has been read to its end and written; the writers must have ended.

        There is no limit: the launcher may pause as long as it lives.
        """
        await self._drained.wait()
        if self.spool:
            self._is_streamed = True
        if self._is_streamed:
            self.is_ending = True
            self.spooled.set()
            await self.delivered.wait()
        transport = self._transport  # None once the launcher has gone
        if transport is not None and not transport.is_closing():
            await self._flowing.wait()
            transport.set_write_buffer_limits(high=1)  # with 0 asyncio counts an empty TLS buffer as full
            await self._flowing.wait()

    def close(self) -> None:
        """Close the transport."""
        if self._transport is not None:
            self._transport.close()

    def pause_writing(self) -> None:
        """The launcher is behind."""
        self._flowing.clear()
        self._look()

    def resume_writing(self) -> None:
        """The launcher has caught up."""
        self._flowing.set()
        self._look()

    def hold(self, *, is_held: bool) -> None:
        """The launcher that takes from the spool is behind, or has caught up, or is away."""
        if self._is_held != is_held:
            self._is_held = is_held
            self._look()

    @property
    def _may_read(self) -> bool:
        if self.spool is None:
            return self._flowing.is_set()
        return not self._is_held

    def _look(self) -> None:
        """Read from the workers, or do not."""
        loop = asyncio.get_running_loop()
        for descriptor in self._sources:
            if self._may_read:
                loop.add_reader(descriptor, self._read, descriptor)
            else:
                loop.remove_reader(descriptor)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        """Keep reading after the launcher has gone, so that no worker blocks, and drop what comes."""
        self._transport = None
        self.resume_writing()

    def _read(self, descriptor: int) -> bool:
        """Forward what has come; returns whether there may be more."""
        try:
            data = os.read(descriptor, _CHUNK_BYTES)
        except BlockingIOError:
            return False
        if not data:
            self._finish(descriptor)
        elif self.spool is not None:
            self._keep_lines(descriptor, data)
        elif self._transport is not None:
            self._send(descriptor, data)
        return bool(data)

    def _send(self, descriptor: int, data: bytes) -> None:
        worker, stream = self._sources[descriptor]
        self.tell(Output(worker, stream, data))

    def _keep_lines(self, descriptor: int, data: bytes) -> None:
        """Keep the lines that are whole now; the beginning of another one waits for a moment."""
        if self._halves.get(descriptor):
            data = self._halves.pop(descriptor) + data
        end = data.rfind(b"\n") + 1
        if len(data) - end >= _CHUNK_BYTES:
            end = len(data)
        if end:
            self._send(descriptor, data[:end])
            if (timer := self._timers.pop(descriptor, None)) is not None:
                timer.cancel()  # of a line that has ended
        if end < len(data):
            self._halves[descriptor] = data[end:]
            if descriptor not in self._timers:
                loop = asyncio.get_running_loop()
                self._timers[descriptor] = loop.call_later(_HALF_LINE_SECONDS, self._send_half, descriptor)

    def _send_half(self, descriptor: int) -> None:
        if (timer := self._timers.pop(descriptor, None)) is not None:
            timer.cancel()
        if data := self._halves.pop(descriptor, b""):
            self._send(descriptor, data)

    def _finish(self, descriptor: int) -> None:
        self._send_half(descriptor)
        asyncio.get_running_loop().remove_reader(descriptor)
        del self._sources[descriptor]
        os.close(descriptor)
        if not self._sources:
            self._drained.set()


class InputFeed(asyncio.BaseProtocol):
    """Writes to one worker's standard input.

    Args:
        taken: called after each piece that was written.
    """

    def __init__(self, taken: Callable[[], None]) -> None:
        self._taken = taken
        self._transport: asyncio.WriteTransport | None = None
        self._is_behind = False

    async def open(self, descriptor: int) -> None:
        """Write to this descriptor, close it in the end, and ask for the first piece."""
        pipe = os.fdopen(descriptor, "wb", buffering=0)
        self._transport, _ = await asyncio.get_running_loop().connect_write_pipe(lambda: self, pipe)
        self._transport.set_write_buffer_limits(high=0)
        self._taken()

    def write(self, data: bytes) -> None:
        """Write a piece; an empty one is the end of input."""
        if self._transport is None:
            return
        if not data:
            self._transport.close()
            return
        self._transport.write(data)
        if not self._is_behind:
            self._taken()

    def close(self) -> None:
        """Stop writing, since the worker has ended."""
        if self._transport is not None:
            self._transport.abort()

    def pause_writing(self) -> None:
        """The worker is behind."""
        self._is_behind = True

    def resume_writing(self) -> None:
        """The worker has caught up."""
        self._is_behind = False
        self._taken()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        """The worker has closed its standard input, or has ended."""
        self._transport = None
