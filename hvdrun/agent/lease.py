"""How long an agent goes on without a word from the server: for longer than the server does without one from it.

A server that falls silent may be stopped, or asleep with its laptop, and has then counted nobody as lost. One that has
counted this host as lost, since a network was cut, says so as soon as it is reached again. It is when the server's
machine may be gone for good that the agent ends its workers.

When two looks at the clock are far apart, this process did not run meanwhile: its machine was suspended, or it was
stopped. If the server slept too, it answers at once; if it did not, it has counted this host as lost, and says so at
once. So such an agent gets a short while for one more report, and neither dies of the sleep nor goes on for as long
again behind a network that was cut. A suspension that was asked for (Ctrl-Z) is told beforehand and holds the clock.
"""

import math
import time
from collections.abc import Callable

from hvdrun.errors import HvdrunError
from hvdrun.processes.clock import SuspensionClock

_SECOND_CHANCE_SHARE = 0.4


class LeaseExpiredError(HvdrunError):
    """The agent has to end its workers, since nobody may be left who would.

    Cause: The machine of hvdrun is gone, stopped, or cut off from this host.
    Remedy: Check that machine and the network. Raise `--launcher-timeout` where such cuts are usual.
    """

    def __init__(self, seconds: float, cause: Exception | None) -> None:
        why = "" if cause is None else f": {cause}"
        super().__init__(f"no report was acknowledged for {seconds:g} s (--launcher-timeout){why}")
        self.cause = cause


class Lease:
    """One agent's patience, in seconds of a clock that never goes back."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.seconds = seconds
        self._now = clock
        self._clock = SuspensionClock(seconds, clock=clock)
        self._ends = self._clock.now + seconds
        self._is_held = False

    def look(self) -> bool:
        """Whether the agent may go on; to be asked often, since it is from the looks that a sleep is known."""
        if self._clock.look():
            self._ends = max(self._ends, self._clock.now + _SECOND_CHANCE_SHARE * self.seconds)
        return self._is_held or self._clock.now <= self._ends

    @property
    def left_seconds(self) -> float:
        """How long it lasts without another word; infinity while it is held."""
        return math.inf if self._is_held else max(0.0, self._ends - self._now())

    def renew(self) -> None:
        """The server has acknowledged a report."""
        self._clock.look()
        self._ends = self._clock.now + self.seconds

    def hold(self, *, held: bool) -> None:
        """Stop the clock, or start it anew: the launcher was suspended by its user, and comes back."""
        self._is_held = held
        self.renew()
