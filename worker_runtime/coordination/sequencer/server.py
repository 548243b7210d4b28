"""The sequencer's one thread: it waits for orders, for strangers and for members, and never for one of them.

It wakes for what has come and for deadlines. While nothing is pending there are none, so that it costs nothing.

Anybody who reaches the port may be among those who have connected and proved nothing yet. They are few, may send one
greeting, and have seconds for it. Who greets for a generation that is still to be activated is kept for a while: a
worker may be faster than the order that concerns it.
"""

import errno
import os
import socket
import sys
import time
from collections.abc import Callable
from functools import partial

from worker_runtime.coordination.sequencer.connection import READ, Connection, ConnectionEndedError, Poller
from worker_runtime.coordination.sequencer.generation import Generation
from worker_runtime.coordination.sequencer.orders import Activation, OrderError, Orders
from worker_runtime.coordination.sequencer.stalls import StallSettings
from worker_runtime.coordination.wire import GREETING_BYTES, NONCE_BYTES, STORE_ROLE, Greeting, read_greeting

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


_MANY = 64  # connections accepted in one round: the members wait meanwhile
_NO_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_PAUSE_SECONDS = 1.0  # of accepting, when there is no room and nobody to make any


class Server:
    """Serves one generation at a time, until its owner has gone.

    Args:
        listener: where members call.
        orders: of the owner.
    """

    def __init__(self, listener: socket.socket, orders: Orders) -> None:
        listener.settimeout(0)
        self._listener = listener
        self._orders = orders
        self._settings = StallSettings()
        self._poller = Poller()
        self._lobby = Lobby(self._poller, self._welcome)
        self._generation: Generation | None = None
        self._is_called = False
        self._is_ordered = False
        self._listens_at: float | None = None  # when accepting goes on, where it pauses

    def run(self) -> None:
        """Serve until the owner has gone.

        Raises:
            OrderError: the owner has sent something else than orders.
        """
        try:
            self._watch_orders()
            self._poller.watch(self._listener.fileno(), READ, self._note_call)
            while True:
                self._turn()
        except EOFError:
            return
        finally:
            self._lobby.close()
            if self._generation is not None:
                self._generation.close()
            self._poller.close()

    def _watch_orders(self) -> None:
        try:
            self._poller.watch(self._orders.descriptor, READ, self._note_order)
        except PermissionError:  # epoll takes no files
            raise OrderError("standard input has to be a pipe or a socket from the owner") from None

    def _turn(self) -> None:
        """Wait for what comes next, and deal with it."""
        self._poller.wait(self._find_limit())
        if self._is_ordered:
            self._is_ordered = False
            activation = self._orders.read()
            if activation is not None:
                self._activate(activation)
            if self._orders.is_stopping and self._generation is not None:
                self._generation.stop()
        now = time.monotonic()
        if self._is_called:
            self._is_called = False
            self._accept(now)
        self._lobby.expire(now)
        if self._listens_at is not None and now >= self._listens_at:
            self._listens_at = None
            self._poller.watch(self._listener.fileno(), READ, self._note_call)
        if self._generation is not None:
            self._generation.check_stalls(now)
            self._generation.settle()

    def _find_limit(self) -> float | None:
        """How long to wait at most, in seconds; None for ever."""
        generation_due = None if self._generation is None else self._generation.find_due()
        dues = [due for due in (generation_due, self._lobby.find_due(), self._listens_at) if due is not None]
        return max(0.0, min(dues) - time.monotonic()) if dues else None

    def _note_order(self, events: int) -> None:
        del events
        self._is_ordered = True

    def _note_call(self, events: int) -> None:
        """Accept only when nobody else is called any more: see `Poller.wait`."""
        del events
        self._is_called = True

    def _activate(self, activation: Activation) -> None:
        """Serve another generation from now on; a repeated order changes nothing."""
        former = self._generation
        if former is not None:
            if activation.generation <= former.activation.generation:
                if activation != former.activation:
                    sys.stderr.write(
                        f"sequencer: the order to serve generation {activation.generation} was not followed, since "
                        f"generation {former.activation.generation} is served\n"
                    )
                return
            former.close()
        self._generation = Generation(activation, self._settings)
        self._lobby.welcome_early()

    def _welcome(self, stranger: Stranger, greeting: Greeting) -> bool:
        """Admit whoever proves to be of this generation, turn others away; True for who is to wait for a later one."""
        generation = self._generation
        if generation is None or greeting.generation > generation.activation.generation:
            return True
        activation, connection = generation.activation, stranger.connection
        is_member = greeting.generation == activation.generation and greeting.is_proven(
            activation.key, stranger.challenge
        )
        proof = greeting.answer(activation.key, stranger.challenge)
        if is_member and STORE_ROLE <= greeting.rank < STORE_ROLE + activation.size:
            generation.store.admit(connection, proof)
        elif is_member and generation.may_come(greeting.rank):
            generation.admit(connection, greeting.rank, proof)
        else:
            connection.close()
        return False

    def _accept(self, now: float) -> None:
        for _ in range(_MANY):
            try:
                connected, _ = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in _NO_ROOM and not self._lobby.drop_oldest():
                    self._poller.forget(self._listener.fileno())
                    self._listens_at = now + _PAUSE_SECONDS
                return  # otherwise the caller has given up meanwhile
            self._lobby.accept(connected)
