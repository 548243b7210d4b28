"""A process whose time the test plays."""

import threading
from collections.abc import Callable
from pathlib import Path

from rendezvous.core.model import Slot, Worker
from rendezvous.wire.account_file import Part, read_account
from rendezvous.wire.accounts import Account as Found
from worker_runtime.account.account import Account

WORKER = Worker(Slot("a", 0), 1)
PARTS = ("start", "compute", "waiting", "communication", "commit", "checkpoint", "recovery", "repeated", "idle")


class Clock:
    """A clock that the test turns."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        """The present time."""
        return self.now

    def spend(self, seconds: float) -> None:
        """Let time pass."""
        self.now += seconds


class Scene:
    """A process that was started at 90 and has called `init()` at 100."""

    def __init__(self, clock: Clock, path: Path) -> None:
        self.clock = clock
        self.path = path
        self.account = Account()
        self.account.open(path)
        self.account.cover(0)

    def read(self) -> Found:
        """What its agent finds now."""
        return read_account(self.path, WORKER, 90.0, self.clock.now)

    def find_unknown(self) -> float:
        """The seconds of no part."""
        found = self.read()
        return found.total_seconds - sum(getattr(found, f"{part}_seconds") for part in PARTS)

    def step(self, own: float, waits: float = 0.0, last: int = 1, communicates: float = 0.0) -> None:
        """A step of rank 0: its own code, a wait for another rank, and a communication."""
        clock, account = self.clock, self.account
        clock.spend(own)
        account.begin_step()
        account.enter(Part.WAITING)
        clock.spend(waits)
        account.leave_wait(last, 0)
        account.enter(Part.COMMUNICATION)
        clock.spend(communicates)
        account.leave()
        account.end_step()


def run_in_thread(work: Callable[[], None]) -> None:
    """Run in another thread, to its end."""
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
