"""The timers after which the beginning of an incomplete line is shown."""

import asyncio
from collections.abc import Callable

from hvdrun.console.folding import Source

ON_A_TERMINAL_SECONDS = 0.1
IN_A_FILE_SECONDS = 5.0  # longer: what comes between the parts of a line tears it


class PartialLines:
    """One timer for each stream in which a line has begun.

    Args:
        flush: shows the beginning of this stream's line.
    """

    def __init__(self, flush: Callable[[Source], None]) -> None:
        self._flush = flush
        self._timers: dict[Source, asyncio.TimerHandle] = {}

    def note(self, source: Source, limit_seconds: float, *, has_ended: bool, has_begun: bool) -> None:
        """Note that a worker has written to a stream: whether a line has ended, and whether another one has begun."""
        if has_ended:
            self.call_off(source)
        if has_begun and source not in self._timers:
            self._timers[source] = asyncio.get_running_loop().call_later(limit_seconds, self._run, source)

    def call_off(self, source: Source) -> None:
        """Stop the timer of a stream whose line has ended."""
        timer = self._timers.pop(source, None)
        if timer is not None:
            timer.cancel()

    def call_off_all(self) -> None:
        """Stop all timers."""
        for source in tuple(self._timers):
            self.call_off(source)

    def _run(self, source: Source) -> None:
        del self._timers[source]
        self._flush(source)
