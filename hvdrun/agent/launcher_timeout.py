"""The launcher timeout: how long an agent keeps its workers without an acknowledged report.

It is longer than the lease, for which the server waits for a report.

A silent server may be stopped, or suspended with its machine; then it has counted no host as lost. A server that has
counted this host as lost, since the network was cut, reports that as soon as it is reached again. So the agent ends its
workers only when the server's machine may be gone for good.

When two looks at the clock are far apart, this process did not run meanwhile: it was stopped, or its machine was
suspended. Then the server answers the next report immediately, whether it was suspended as well or has counted this
host as lost. So the agent gets a short time for one more report. The suspension does not end it, nor does it wait the
whole time again behind a network that is cut. Before a suspension by Ctrl-Z the launcher holds the limit.
"""

import math
import time
from collections.abc import Callable

from hvdrun.errors import HvdrunError
from hvdrun.processes.stopped import SuspensionClock
from rendezvous.core.outcome import TEMPORARY_FAILURE

_SECOND_CHANCE_SHARE = 0.4
SAVE_SECONDS = 60.0  # for workers that were told to stop to save


class LauncherTimeoutError(HvdrunError):
    """The agent ends its workers, since hvdrun may be gone.

    Cause: The machine of hvdrun is gone, stopped, or cut off from this host.
    Remedy: Check that machine and the network. Raise `--launcher-timeout` where such cuts are usual.
    """

    def __init__(self, seconds: float, cause: Exception | None) -> None:
        why = "" if cause is None else f": {cause}"
        super().__init__(f"no report was acknowledged for {seconds:g} s (--launcher-timeout){why}")
        self.cause = cause


class ServerTimeoutError(HvdrunError):
    """The agent ends, since the launcher of a job that outlives it did not come back.

    Cause: hvdrun, or its machine, is gone, and nobody has started it again.
    Remedy: Start the job again, from its checkpoint. Raise `--server-timeout` where it may take longer.
    """

    exit_code = TEMPORARY_FAILURE

    def __init__(self, seconds: float, cause: Exception | None) -> None:
        why = "" if cause is None else f": {cause}"
        super().__init__(f"hvdrun did not answer for {seconds:g} s (--server-timeout){why}")


class LauncherTimeout:
    """The limit of one agent on the launcher's silence, on a monotonic clock.

    Args:
        seconds: how long the launcher may be silent.
        clock: monotonic, in seconds.
    """

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.seconds = seconds
        self._now = clock
        self._clock = SuspensionClock(seconds, clock=clock)
        self._ends = self._clock.now + seconds
        self._is_held = False

    def look(self) -> bool:
        """Whether the launcher may still be alive.

        To be called often, since the time between two calls shows a suspension.
        """
        if self._clock.look():
            self._ends = max(self._ends, self._clock.now + _SECOND_CHANCE_SHARE * self.seconds)
        return self._is_held or self._clock.now <= self._ends

    @property
    def left_seconds(self) -> float:
        """Seconds until it expires; infinity while it is held."""
        if self._is_held:
            return math.inf
        return max(0.0, self._ends - self._now())

    def restart(self) -> None:
        """Begin anew, since the server has acknowledged a report."""
        self._clock.look()
        self._ends = self._clock.now + self.seconds

    def shorten(self, seconds: float) -> None:
        """Wait no longer than this from now on."""
        self.seconds = min(self.seconds, seconds)
        self.restart()

    def make_error(self, cause: Exception | None) -> HvdrunError:
        """What ends the agent when the limit has expired."""
        return LauncherTimeoutError(self.seconds, cause)

    def note_running(self, *, is_running: bool) -> None:
        """Whether workers run."""

    def stop(self) -> None:
        """This host is asked to stop."""

    def hold(self, *, held: bool) -> None:
        """Hold the limit while the user suspends the launcher; then begin anew."""
        self._is_held = held
        self.restart()


class ServerTimeout(LauncherTimeout):
    """The limit in a job that outlives its launcher: before it ends the workers, they are told to stop, and may save.

    Workers that have ended by themselves do not end it: the launcher has to learn how. It ends with the last one of
    those that were told to stop. A host that is asked to stop while the launcher is away does not wait for it.

    Args:
        seconds: how long the launcher may be away.
        notice: tells the workers to stop.
        clock: monotonic, in seconds.
        silence_seconds: after which the launcher counts as away.
    """

    def __init__(
        self,
        seconds: float,
        notice: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
        *,
        silence_seconds: float = 0.0,
    ) -> None:
        super().__init__(seconds, clock)
        self._notice = notice
        self._silence_seconds = silence_seconds
        self._heard = self._clock.now
        self._is_running = self._is_saving = self._is_stopping = False

    def look(self) -> bool:
        """See `LauncherTimeout`."""
        may = super().look()
        if self._is_saving:
            return may and self._is_running
        is_away = self._clock.now - self._heard >= self._silence_seconds
        if may and not (self._is_stopping and is_away):
            return True
        if self._is_running:
            self._is_saving = True
            self._notice()
            self._ends = self._clock.now + SAVE_SECONDS
        return self._is_running

    def restart(self) -> None:
        """See `LauncherTimeout`."""
        super().restart()
        self._heard = self._clock.now
        self._is_saving = False

    def stop(self) -> None:
        """See `LauncherTimeout`."""
        self._is_stopping = True

    def make_error(self, cause: Exception | None) -> HvdrunError:
        """See `LauncherTimeout`."""
        return ServerTimeoutError(self.seconds, cause)

    def note_running(self, *, is_running: bool) -> None:
        """See `LauncherTimeout`."""
        self._is_running = is_running
