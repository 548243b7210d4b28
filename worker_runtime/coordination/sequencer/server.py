"""The sequencer's one thread: it waits for orders, for strangers and for members, and never for one of them.

It wakes for what has come and for deadlines. While nothing is pending there are none, so that it costs nothing.
"""

import errno
import socket
import sys
import time

from worker_runtime.coordination.sequencer.connection import READ, Poller
from worker_runtime.coordination.sequencer.generation import Generation
from worker_runtime.coordination.sequencer.lobby import Lobby, Stranger
from worker_runtime.coordination.sequencer.orders import Activation, OrderError, Orders
from worker_runtime.coordination.sequencer.stall_clock import StallSettings
from worker_runtime.coordination.wire import STORE_ROLE, Greeting

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
