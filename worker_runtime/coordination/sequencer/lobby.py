"""Those who have connected and proved nothing yet: anybody who reaches the port may be among them.

So they are few, may send one greeting and have seconds for it. Whoever greets for a generation that is still to be
activated is kept for a while: a worker may be faster than the order that concerns it.
"""

import os
import socket
import time
from collections.abc import Callable
from functools import partial

from worker_runtime.coordination.sequencer.connection import Connection, ConnectionEndedError, Poller
from worker_runtime.coordination.wire import GREETING_BYTES, NONCE_BYTES, Greeting, read_greeting

GREETING_SECONDS = 10.0
ACTIVATION_SECONDS = 30.0
MAX_STRANGERS = 512
MAX_EARLY = 4096  # more than a job has ranks


class Stranger:
    """A connection that has proved nothing: what it was asked to prove itself by, and what has come of its greeting."""

    def __init__(self, connection: Connection, now: float) -> None:
        self.connection = connection
        self.challenge = os.urandom(NONCE_BYTES)
        self.received = b""
        self.since = now


# Tells of a stranger and its greeting whether it is to be kept until an activation; else it has been dealt with.
Welcome = Callable[[Stranger, Greeting], bool]


class Lobby:
    """Accepts connections, reads their greetings and passes them on."""

    def __init__(self, poller: Poller, welcome: Welcome) -> None:
        self._poller = poller
        self._welcome = welcome
        self._strangers: dict[Stranger, None] = {}  # in the order in which they came, and so do the early ones
        self._early: dict[Stranger, Greeting] = {}

    def accept(self, connected: socket.socket) -> None:
        """Take a new connection in; the one that has been silent for longest makes room for it."""
        if len(self._strangers) >= MAX_STRANGERS:
            self.drop_oldest()
        stranger = Stranger(Connection(connected, self._poller), time.monotonic())
        self._strangers[stranger] = None
        stranger.connection.watch(partial(self._serve, stranger))
        try:
            stranger.connection.send(stranger.challenge)
        except ConnectionEndedError:
            self._drop(stranger)

    def welcome_early(self) -> None:
        """Have those looked at again who greeted before their generation was activated."""
        early, self._early = self._early, {}
        for stranger, greeting in early.items():
            self._pass_on(stranger, greeting)

    def drop_oldest(self) -> bool:
        """End the connection of whoever has been here for longest; False when there is nobody."""
        stranger = next(iter(self._strangers), None) or next(iter(self._early), None)
        if stranger is None:
            return False
        self._drop(stranger)
        return True

    def find_due(self) -> float | None:
        """When `expire` has something to do, by the monotonic clock; None for never."""
        silent, early = next(iter(self._strangers), None), next(iter(self._early), None)
        if early is None:
            return None if silent is None else silent.since + GREETING_SECONDS
        due = early.since + ACTIVATION_SECONDS
        return due if silent is None else min(due, silent.since + GREETING_SECONDS)

    def expire(self, now: float) -> None:
        """End the connections of those whose time is over."""
        due = self.find_due()
        if due is None or now < due:
            return
        late = [stranger for stranger in self._strangers if stranger.since + GREETING_SECONDS <= now]
        late += [stranger for stranger in self._early if stranger.since + ACTIVATION_SECONDS <= now]
        for stranger in late:
            self._drop(stranger)

    def close(self) -> None:
        """End all connections."""
        for stranger in [*self._strangers, *self._early]:
            self._drop(stranger)

    def _serve(self, stranger: Stranger, events: int) -> None:
        del events
        try:
            stranger.received += stranger.connection.receive_bytes(GREETING_BYTES - len(stranger.received))
        except ConnectionEndedError:
            self._drop(stranger)
            return
        if len(stranger.received) == GREETING_BYTES:
            del self._strangers[stranger]
            self._pass_on(stranger, read_greeting(stranger.received))

    def _pass_on(self, stranger: Stranger, greeting: Greeting) -> None:
        if not self._welcome(stranger, greeting):
            return
        if len(self._early) >= MAX_EARLY:
            self._drop(next(iter(self._early)))
        self._early[stranger] = greeting
        stranger.connection.watch_end(partial(self._end, stranger))

    def _end(self, stranger: Stranger, events: int) -> None:
        del events
        self._drop(stranger)

    def _drop(self, stranger: Stranger) -> None:
        self._strangers.pop(stranger, None)
        self._early.pop(stranger, None)
        stranger.connection.close()
