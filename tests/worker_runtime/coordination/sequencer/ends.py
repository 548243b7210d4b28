"""The two ends of a connection, where no process of the sequencer is needed."""

import socket

from tests.waiting import LIMIT_SECONDS
from tests.worker_runtime.coordination.sequencer.client import LOOPBACK
from worker_runtime.coordination.sequencer.connection import Connection, Poller


class Ends:
    """A connection of a sequencer in this process, and the other end of its socket."""

    def __init__(self, poller: Poller) -> None:
        with socket.create_server((LOOPBACK, 0)) as server:
            self.peer = socket.create_connection(server.getsockname(), LIMIT_SECONDS)
            self.connection = Connection(server.accept()[0], poller)
        self.poller = poller
        self.events = 0
        self.connection.watch(self._note)

    def wait(self, limit_seconds: float = LIMIT_SECONDS) -> int:
        """What has happened to the connection meanwhile."""
        self.events = 0
        self.poller.wait(limit_seconds)
        return self.events

    def close(self) -> None:
        """End both."""
        self.peer.close()
        self.connection.close()

    def _note(self, events: int) -> None:
        self.events = events
