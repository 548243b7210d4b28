"""Who is called when a descriptor is ready: one epoll for everything that this process waits for."""

import select
from collections.abc import Callable

READ = select.EPOLLIN
WRITE = select.EPOLLOUT
HANG_UP = select.EPOLLRDHUP  # the other side sends nothing more; what it has sent stays unread

Callback = Callable[[int], None]  # takes the events, as epoll's bits


class Poller:
    """Descriptors, and what is called when they are ready; owned and used by one thread."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._callbacks: dict[int, Callback] = {}

    def watch(self, descriptor: int, events: int, callback: Callback) -> None:
        """Call `callback` when one of the events has come, in place of what was called before."""
        if descriptor in self._callbacks:
            self._epoll.modify(descriptor, events)
        else:
            self._epoll.register(descriptor, events)
        self._callbacks[descriptor] = callback

    def change(self, descriptor: int, events: int) -> None:
        """Wait for other events of a watched descriptor."""
        self._epoll.modify(descriptor, events)

    def forget(self, descriptor: int) -> None:
        """Watch it no more; to be called before it is closed."""
        if self._callbacks.pop(descriptor, None) is not None:
            self._epoll.unregister(descriptor)

    def wait(self, limit_seconds: float | None) -> None:
        """Wait until something is ready, or so long, and call whom it concerns.

        Nobody who is called may open a descriptor: it could get the number of one that was closed in the same round,
        and then that one's events.
        """
        callbacks = self._callbacks
        for descriptor, events in self._epoll.poll(limit_seconds):
            callback = callbacks.get(descriptor)  # None: forgotten meanwhile, by another that was called
            if callback is not None:
                callback(events)

    def close(self) -> None:
        """Release the epoll's own descriptor."""
        self._callbacks.clear()
        self._epoll.close()
