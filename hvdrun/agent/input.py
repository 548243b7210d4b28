"""Takes what was typed into hvdrun to the one worker that is to read it.

The launcher sends the next piece when it is told that the last one was taken, so that a worker that does not read holds
back nobody but whoever types.
"""

import asyncio
import os
from collections.abc import Callable


class InputFeed(asyncio.BaseProtocol):
    """The writing end of one worker's standard input; `taken` is called whenever a piece has been written."""

    def __init__(self, taken: Callable[[], None]) -> None:
        self._taken = taken
        self._transport: asyncio.WriteTransport | None = None
        self._is_behind = False

    async def open(self, descriptor: int) -> None:
        """Write to this descriptor, which is the feed's from now on, and ask for the first piece."""
        pipe = os.fdopen(descriptor, "wb", buffering=0)
        self._transport, _ = await asyncio.get_running_loop().connect_write_pipe(lambda: self, pipe)
        self._transport.set_write_buffer_limits(high=0)
        self._taken()

    def write(self, data: bytes) -> None:
        """Write a piece; an empty one is the end."""
        if self._transport is None:
            return
        if not data:
            self._transport.close()
            return
        self._transport.write(data)
        if not self._is_behind:
            self._taken()

    def close(self) -> None:
        """The worker has ended: nobody reads any more."""
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
        """The worker has closed its standard input, or ended."""
        self._transport = None
