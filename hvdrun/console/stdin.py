"""Reads hvdrun's own standard input for the one worker that gets it (`--stdin RANK`), a piece at a time."""

import asyncio
import os
import select
import time
from collections.abc import Callable

from hvdrun.processes.background import in_thread

_PIECE_BYTES = 64 * 1024
_LOOK_SECONDS = 0.2


class StdinReader:
    """Reads a piece on request, in a thread, because reading a file or a terminal blocks.

    While hvdrun is in the background, it reads nothing of the terminal, which would stop it (SIGTTIN).

    Args:
        send: takes each piece, in the event loop; an empty one is the end.
        descriptor: where it is read.
    """

    def __init__(self, send: Callable[[bytes], None], descriptor: int = 0) -> None:
        self._send = send
        self._descriptor = descriptor
        self._asked = asyncio.Semaphore(0)

    def ask(self) -> None:
        """Request the next piece."""
        self._asked.release()

    async def run(self) -> None:
        """Read to the end of input. When this is cancelled, the thread may still wait for a terminal."""
        data = b"some"
        while data:
            await self._asked.acquire()
            data = await in_thread(self._read)
            self._send(data)

    def _read(self) -> bytes:
        try:
            while os.isatty(self._descriptor) and not self._can_read():
                pass
            return os.read(self._descriptor, _PIECE_BYTES)
        except OSError:  # a terminal that was closed, a closed descriptor: the end of input
            return b""

    def _can_read(self) -> bool:
        """Wait a moment for input from the terminal; return whether there is some for this process."""
        ready, _, _ = select.select([self._descriptor], [], [], _LOOK_SECONDS)
        if is_in_foreground(self._descriptor):
            return bool(ready)
        time.sleep(_LOOK_SECONDS)  # no event tells of the return to the foreground
        return False


def is_in_foreground(terminal: int) -> bool:
    """Whether this process is in the foreground of a terminal, so that it may read it, and may draw on it.

    A job in the background (`&`) would draw into what the user types. A terminal that is not the controlling terminal
    is open to every process.
    """
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return True
