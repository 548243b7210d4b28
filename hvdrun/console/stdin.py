"""Reads hvdrun's own standard input for the one worker that gets it (`--stdin RANK`), a piece at a time."""

import asyncio
import os
import threading
from collections.abc import Callable

_PIECE_BYTES = 64 * 1024


class StdinReader:
    """Reads a piece whenever one is asked for, in a thread, since a file or a terminal may not be waited for otherwise.

    send: gets each piece, in the event loop; an empty one is the end.
    """

    def __init__(self, send: Callable[[bytes], None], descriptor: int = 0) -> None:
        self._send = send
        self._descriptor = descriptor
        self._loop = asyncio.get_running_loop()
        self._asked = threading.Semaphore(0)
        self._closed = threading.Event()
        # A daemon: a read from a terminal cannot be called off, and must not keep hvdrun from ending.
        self._thread = threading.Thread(target=self._run, name="stdin", daemon=True)
        self._thread.start()

    def ask(self) -> None:
        """Want the next piece."""
        self._asked.release()

    def close(self) -> None:
        """Send nothing more."""
        self._closed.set()
        self._asked.release()

    def _run(self) -> None:
        while not self._closed.is_set():
            self._asked.acquire()
            if self._closed.is_set():
                return
            try:
                data = os.read(self._descriptor, _PIECE_BYTES)
            except OSError:  # a terminal that has gone, a closed descriptor: the end of input
                data = b""
            if self._closed.is_set():
                return
            self._loop.call_soon_threadsafe(self._send, data)
            if not data:
                return
