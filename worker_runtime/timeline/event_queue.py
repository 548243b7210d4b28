"""A queue of events, and the thread that hands them on every 50 ms; it sleeps while nothing comes."""

import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

EventT = TypeVar("EventT")

HAND_ON_SECONDS = 0.05
MOST_WAITING = 200_000  # events; where they come faster than they are handed on, the rest is lost
_END_SECONDS = 10.0  # for the last events, where the disk or the network hangs


class EventQueue(Generic[EventT]):
    """Collects events, at the cost of an append; its thread ends with `close`.

    Args:
        hand_on: takes the events, and how many were lost since the last time. An OSError of it ends the queue.
        fail: takes that error.
    """

    def __init__(self, hand_on: Callable[[Sequence[EventT], int], None], fail: Callable[[OSError], None]) -> None:
        self._hand_on = hand_on
        self._fail = fail
        self._events: deque[EventT] = deque()
        self._lost = 0
        self._owner = os.getpid()
        self._has_come = threading.Event()
        self._is_closing = threading.Event()
        self._has_failed = False
        self._thread = threading.Thread(target=self._run, name="hvd-timeline", daemon=True)
        self._thread.start()

    def put(self, event: EventT) -> None:
        """Add an event. For any thread."""
        if len(self._events) >= MOST_WAITING or self._has_failed:
            self._lost += 1
            return
        self._events.append(event)
        if not self._has_come.is_set():
            self._has_come.set()

    def close(self) -> None:
        """Hand on what has come, and end. In a forked child this does nothing: the thread is the parent's."""
        if os.getpid() != self._owner:
            return
        self._is_closing.set()
        self._has_come.set()
        if threading.current_thread() is not self._thread:
            self._thread.join(_END_SECONDS)

    def _run(self) -> None:
        try:
            while not self._is_closing.is_set():
                self._has_come.wait()
                self._is_closing.wait(HAND_ON_SECONDS)
                self._has_come.clear()
                self._hand_on_all()
            self._hand_on_all()
        except OSError as error:
            self._has_failed = True
            self._events.clear()
            self._fail(error)

    def _hand_on_all(self) -> None:
        lost, self._lost = self._lost, 0
        events = [self._events.popleft() for _ in range(len(self._events))]
        if events or lost:
            self._hand_on(events, lost)
