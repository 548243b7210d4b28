"""Ends, from another thread, waits of torch that cannot be told to stop: by ending what they wait for."""

import threading
from collections.abc import Callable


class Cancellation:
    """Of one undertaking; safe to use from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ends: list[Callable[[], None]] = []
        self._is_cancelled = False

    def cover(self, end: Callable[[], None]) -> None:
        """From now on `cancel` calls this too, and at once where it was called before; it may be called repeatedly."""
        with self._lock:
            self._ends.append(end)
            is_cancelled = self._is_cancelled
        if is_cancelled:
            end()

    def cancel(self) -> None:
        """Whoever waits shall fail soon."""
        with self._lock:
            self._is_cancelled = True
            ends = list(self._ends)
        for end in ends:
            end()
