"""Notifications of added and removed hosts, with Horovod's names."""

import threading
from typing import Protocol

# Bits with Horovod's values.
HOSTS_REMOVED = 1
HOSTS_ADDED = 2


class Listener(Protocol):
    """Receives notifications; usually an elastic state."""

    def on_hosts_updated(self, timestamp: float, update_res: int) -> None:
        """Called from any thread after hosts were added or removed."""


class NotificationManager:
    """Passes notifications to listeners. A process has one, that of the runtime."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._listeners: list[Listener] = []
        self._newest: tuple[float, int] | None = None

    def init(self) -> None:
        """Do nothing; in Horovod it starts to listen, which the runtime does by itself."""

    def register_listener(self, listener: Listener) -> None:
        """Add a listener, unless it is already registered."""
        with self._lock:
            if not any(known is listener for known in self._listeners):
                self._listeners.append(listener)

    def remove_listener(self, listener: Listener) -> None:
        """Remove a listener, if it is registered."""
        with self._lock:
            self._listeners = [known for known in self._listeners if known is not listener]

    def handle_hosts_updated(self, timestamp: float, update_res: int) -> None:
        """Notify all listeners.

        Args:
            timestamp: orders the notifications; later ones have greater timestamps.
            update_res: HOSTS_REMOVED, HOSTS_ADDED, or their bitwise or; 0 withdraws the last notification.
        """
        with self._lock:
            self._newest = timestamp, update_res
            listeners = list(self._listeners)
        for listener in listeners:
            listener.on_hosts_updated(timestamp, update_res)

    def forget(self) -> None:
        """Forget the last notification."""
        with self._lock:
            self._newest = None

    def repeat_to(self, listener: Listener) -> None:
        """Repeat the last notification to a listener that may have dropped it, unless it is forgotten."""
        with self._lock:
            newest = self._newest
        if newest is not None:
            listener.on_hosts_updated(*newest)
