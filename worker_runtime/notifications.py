"""Who wants to hear that hosts have come or gone, under the name that elastic programs of Horovod know."""

import threading
from typing import Protocol


class Listener(Protocol):
    """Usually an elastic state."""

    def on_hosts_updated(self, timestamp: float, update_res: int) -> None:
        """Hosts have come or gone; called from any thread."""


class NotificationManager:
    """Passes news about hosts on; a process has one, the runtime's."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._listeners: list[Listener] = []

    def init(self) -> None:
        """Horovod's way to start listening; the runtime hears by itself."""

    def register_listener(self, listener: Listener) -> None:
        """Tell this one, too, from now on; once, however often it is registered."""
        with self._lock:
            if not any(known is listener for known in self._listeners):
                self._listeners.append(listener)

    def remove_listener(self, listener: Listener) -> None:
        """Tell it no more; one that is not registered is no error."""
        with self._lock:
            self._listeners = [known for known in self._listeners if known is not listener]

    def handle_hosts_updated(self, timestamp: float, update_res: int) -> None:
        """Tell all listeners.

        Args:
            timestamp: when; later ones are greater.
            update_res: what has happened, as `elastic.HOSTS_REMOVED` and `HOSTS_ADDED`, or both.
        """
        with self._lock:
            listeners = list(self._listeners)
        for listener in listeners:
            listener.on_hosts_updated(timestamp, update_res)
