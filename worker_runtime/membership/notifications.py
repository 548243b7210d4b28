"""Listeners for hosts that have come or gone, under the name that elastic programs of Horovod know."""

import threading
from typing import Protocol

# What has happened, as bits; the numbers are Horovod's.
HOSTS_REMOVED = 1
HOSTS_ADDED = 2


class Listener(Protocol):
    """Usually an elastic state."""

    def on_hosts_updated(self, timestamp: float, update_res: int) -> None:
        """Hosts have come or gone; called from any thread."""


class NotificationManager:
    """Passes news about hosts on; a process has one, the runtime's."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._listeners: list[Listener] = []
        self._newest: tuple[float, int] | None = None

    def init(self) -> None:
        """Horovod's way to start listening; the runtime hears by itself."""

    def register_listener(self, listener: Listener) -> None:
        """Notify this one, too, from now on; once, however often it is registered."""
        with self._lock:
            if not any(known is listener for known in self._listeners):
                self._listeners.append(listener)

    def remove_listener(self, listener: Listener) -> None:
        """Notify it no more; one that is not registered is no error."""
        with self._lock:
            self._listeners = [known for known in self._listeners if known is not listener]

    def handle_hosts_updated(self, timestamp: float, update_res: int) -> None:
        """Notify all listeners.

        Args:
            timestamp: when; later ones are greater.
            update_res: what has happened, HOSTS_REMOVED, HOSTS_ADDED, or both; 0 when the last notification is undone.
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
        """Repeat the last notification to one, unless it is forgotten: the listener may have thrown it away unread."""
        with self._lock:
            newest = self._newest
        if newest is not None:
            listener.on_hosts_updated(*newest)
