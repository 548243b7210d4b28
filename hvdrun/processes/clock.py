"""A clock that detects suspension. It imports little, since the watchdog imports it."""

import time
from collections.abc import Callable

_SHARE = 0.5


class SuspensionClock:
    """Detects from the time between two looks that this process was stopped, or its machine suspended.

    The processes that it watches may not have run either. `rendezvous.core.membership.advance` has this rule for the
    rendezvous, since that pure package cannot import a clock.

    Args:
        span_seconds: the time limit that the owner measures. Looks are frequent: half of the limit between two looks is
            a suspension.
        least_seconds: a shorter time is no suspension, since a look may be late on a busy machine.
        clock: a monotonic clock.

    now: the time of the last look.
    """

    def __init__(
        self, span_seconds: float, least_seconds: float = 0.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.now = clock()
        self._gap_seconds = max(_SHARE * span_seconds, least_seconds)
        self._clock = clock

    def look(self) -> bool:
        """Read the clock; returns whether this process was suspended since the last look."""
        before, self.now = self.now, self._clock()
        return self.now - before > self._gap_seconds
