"""The sequencer's server: one thread that waits for orders, handshakes and members together.

It wakes for events and deadlines. While no request is pending there are no deadlines, so that it costs nothing.

Any peer that reaches the port can connect. A connection without a proof is a handshake. The number of handshakes is
limited, and each may send one greeting within a time limit. A greeting for a generation that is not activated yet is
kept for a while: a worker may be faster than the activation.
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
from worker_runtime.coordination.sequencer.orders import ActivationOrder, OrderError, Orders
from worker_runtime.coordination.sequencer.stalls import StallSettings
from worker_runtime.coordination.wire import GREETING_BYTES, NONCE_BYTES, STORE_ROLE, Greeting, read_greeting

GREETING_SECONDS = 10.0
ACTIVATION_SECONDS = 30.0
MAX_SILENT = 512
MAX_EARLY = 4096  # more than the ranks of a job


class Handshake:
    """A connection before the proof of the other side.

    Args:
        connection: the connection.
        now: the time of the connection.

    challenge: the challenge for the proof.
    received: the received part of the greeting.
    since, due: the time of the connection, and its deadline.
    """

    def __init__(self, connection: Connection, now: float) -> None:
        self.connection = connection
        self.challenge = os.urandom(NONCE_BYTES)
        self.received = b""
        self.since = now
        self.due = now + GREETING_SECONDS


# Admits or closes the connection of a handshake, given its greeting; returns True to keep it for the next activation.
Decide = Callable[[Handshake, Greeting], bool]


class Handshakes:
    """Accepts connections, reads their greetings and passes them on.

    Args:
        poller: reports when a connection can be read.
        decide: gets each complete greeting.
    """

    def __init__(self, poller: Poller, decide: Decide) -> None:
        self._poller = poller
        self._decide = decide
        self._silent: dict[Handshake, None] = {}  # handshakes without a complete greeting, oldest first
        self._early: dict[Handshake, Greeting] = {}  # handshakes that wait for an activation, oldest first

    def accept(self, connected: socket.socket) -> None:
        """Start a handshake; if there are too many, close the oldest silent one."""
        if len(self._silent) >= MAX_SILENT:
            self.drop_oldest()
        handshake = Handshake(Connection(connected, self._poller), time.monotonic())
        self._silent[handshake] = None
        handshake.connection.watch(partial(self._serve, handshake))
        try:
            handshake.connection.send(handshake.challenge)
        except ConnectionEndedError:
            self._drop(handshake)

    def retry_early(self) -> None:
        """Decide again on handshakes that came before the activation of their generation."""
        early, self._early = self._early, {}
        for handshake, greeting in early.items():
            self._pass_on(handshake, greeting)

    def drop_oldest(self) -> bool:
        """Close the oldest handshake, silent ones first; return False if there is none."""
        handshake = next(iter(self._silent), None) or next(iter(self._early), None)
        if handshake is not None:
            self._drop(handshake)
        return handshake is not None

    def find_due(self) -> float | None:
        """The time of the next deadline on the monotonic clock; None for never."""
        if not (self._silent or self._early):
            return None  # the common case, after the members have connected
        oldest = [next(iter(some)) for some in (self._silent, self._early) if some]
        return min(handshake.due for handshake in oldest)

    def expire(self, now: float) -> None:
        """Close the handshakes whose deadline has passed."""
        due = self.find_due()
        if due is not None and now >= due:
            for handshake in [each for each in (*self._silent, *self._early) if each.due <= now]:
                self._drop(handshake)

    def close(self) -> None:
        """Close all connections."""
        for handshake in [*self._silent, *self._early]:
            self._drop(handshake)

    def _serve(self, handshake: Handshake, _: int) -> None:
        try:
            handshake.received += handshake.connection.receive_bytes(GREETING_BYTES - len(handshake.received))
        except ConnectionEndedError:
            self._drop(handshake)
            return
        if len(handshake.received) == GREETING_BYTES:
            del self._silent[handshake]
            self._pass_on(handshake, read_greeting(handshake.received))

    def _pass_on(self, handshake: Handshake, greeting: Greeting) -> None:
        if not self._decide(handshake, greeting):
            return
        if len(self._early) >= MAX_EARLY:
            self._drop(next(iter(self._early)))
        self._early[handshake] = greeting
        handshake.due = handshake.since + ACTIVATION_SECONDS
        handshake.connection.watch_end(lambda _: self._drop(handshake))

    def _drop(self, handshake: Handshake) -> None:
        self._silent.pop(handshake, None)
        self._early.pop(handshake, None)
        handshake.connection.close()


_MANY = 64  # the largest number of connections accepted in one round
_NO_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_PAUSE_SECONDS = 1.0  # between two tries to accept, when there are no free descriptors and no handshake to close


class Server:
    """Serves one generation at a time, until its owner has ended.

    Args:
        listener: the listening socket.
        orders: the owner's orders.
        report: writes a line to the owner.
    """

    def __init__(self, listener: socket.socket, orders: Orders, report: Callable[[bytes], None]) -> None:
        listener.settimeout(0)
        self._listener = listener
        self._orders = orders
        self._report = report
        self._settings = StallSettings()
        self._poller = Poller()
        self._handshakes = Handshakes(self._poller, self._decide)
        self._generation: Generation | None = None
        self._is_called = False
        self._is_ordered = False
        self._listens_at: float | None = None  # the end of a pause in accepting

    def run(self) -> None:
        """Serve until the owner has ended.

        Raises:
            OrderError: the owner has sent a malformed order.
        """
        try:
            self._watch_orders()
            self._poller.watch(self._listener.fileno(), READ, self._note_call)
            while True:
                self._turn()
        except EOFError:  # the owner has closed the orders
            return
        finally:
            self._handshakes.close()
            if self._generation is not None:
                self._generation.close()
            self._poller.close()

    def _watch_orders(self) -> None:
        try:
            self._poller.watch(self._orders.descriptor, READ, self._note_order)
        except PermissionError:  # epoll rejects files
            raise OrderError("standard input has to be a pipe or a socket from the owner") from None

    def _turn(self) -> None:
        """Wait for events or the next deadline, and process them."""
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

        self._handshakes.expire(now)
        if self._listens_at is not None and now >= self._listens_at:
            self._listens_at = None
            self._poller.watch(self._listener.fileno(), READ, self._note_call)

        if self._generation is not None:
            self._generation.check_stalls(now)
            self._generation.settle()

    def _find_limit(self) -> float | None:
        """How long to wait at most, in seconds; None for ever."""
        generation_due = None if self._generation is None else self._generation.find_due()
        dues = [due for due in (generation_due, self._handshakes.find_due(), self._listens_at) if due is not None]
        return max(0.0, min(dues) - time.monotonic()) if dues else None

    def _note_order(self, events: int) -> None:
        del events
        self._is_ordered = True

    def _note_call(self, events: int) -> None:
        """Accept only after all other callbacks: see `Poller.wait`."""
        del events
        self._is_called = True

    def _activate(self, activation: ActivationOrder) -> None:
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
        self._generation = Generation(activation, self._settings, self._report)
        self._handshakes.retry_early()

    def _decide(self, handshake: Handshake, greeting: Greeting) -> bool:
        """Admit a member of this generation and close any other connection; True where a later generation is meant."""
        generation = self._generation
        if generation is None or greeting.generation > generation.activation.generation:
            return True
        activation, connection = generation.activation, handshake.connection
        is_member = greeting.generation == activation.generation and greeting.is_proven(
            activation.key, handshake.challenge
        )
        proof = greeting.answer(activation.key, handshake.challenge)
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
            except BlockingIOError:  # no more calls wait
                return
            except OSError as error:
                if error.errno in _NO_ROOM and not self._handshakes.drop_oldest():
                    self._poller.forget(self._listener.fileno())
                    self._listens_at = now + _PAUSE_SECONDS
                return  # otherwise the caller has given up meanwhile
            self._handshakes.accept(connected)
