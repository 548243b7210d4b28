"""The orders that start workers get the master of their round: the address and port of rank 0's torch store."""

from collections.abc import Callable
from dataclasses import replace

from rendezvous.core.messages import Launch
from rendezvous.core.model import Endpoint, Worker
from rendezvous.wire.orders import Reserved


class Masters:
    """Sends the orders that start workers, with the master of their round.

    The host of rank 0 reserves the port. The orders to other hosts wait for that.

    Args:
        order: sends one order.
    """

    def __init__(self, order: Callable[[Launch], None]) -> None:
        self._order = order
        self._number = -1  # of the round
        self._host = ""  # of its rank 0
        self._master: Endpoint | None = None
        self._waiting: dict[Worker, Launch] = {}

    def restore(self, number: int, host: str) -> None:
        """The round was begun by a former server of the job; the host of its rank 0 names the port again."""
        self._number, self._host = number, host

    def order(self, launch: Launch) -> None:
        """Send an order, now or when the port of its round is known."""
        host, current = launch.worker.slot.host, launch.round
        # The first order of a round is that of rank 0.
        if current is not None and current.number > self._number:
            self._number, self._host, self._master = current.number, host, None
            self._waiting.clear()
        if current is None or host == self._host:
            self._order(launch)
        elif self._master is None:
            self._waiting[launch.worker] = launch
        else:
            self._order(replace(launch, round=replace(current, master=self._master)))

    def note_reserved(self, reserved: Reserved) -> None:
        """The host of rank 0 has reserved a port: send the orders that wait for it."""
        if reserved.round != self._number:
            return
        self._master = reserved.master
        waiting, self._waiting = self._waiting, {}
        for launch in waiting.values():
            self.order(launch)

    def withdraw(self, worker: Worker) -> bool:
        """Drop the order for a worker; False if none waits."""
        return self._waiting.pop(worker, None) is not None
