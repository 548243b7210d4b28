"""A clock that knows of suspension. Light: the watchdog imports it."""

import time
from collections.abc import Callable

_SHARE = 0.5


class SuspensionClock:
    """Tells from the time between two looks whether this process ran meanwhile.

    It did not run where its machine was suspended, or where it was stopped. What it watches may not have run either.

    Args:
        span_seconds: of what is timed. Looks are much closer than that: half of it between two looks is a suspension.
        least_seconds: less is none, since a look may be late on a busy machine.
        clock: seconds of a clock that never goes back.

    now: the time of the last look.
    """

    def __init__(
        self, span_seconds: float, least_seconds: float = 0.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.now = clock()
        self._gap_seconds = max(_SHARE * span_seconds, least_seconds)
        self._clock = clock

    def look(self) -> bool:
        """Look at the time; whether this process was suspended since the last look."""
        before, self.now = self.now, self._clock()
        return self.now - before > self._gap_seconds
