"""The limits of a job: how long its parts may take, and within which bounds its size may change."""

import math
from dataclasses import dataclass

from hvdrun.errors import UsageError
from hvdrun.spec.elasticity import Elasticity

DEFAULT_START_TIMEOUT_SECONDS = 120.0
LEAST_LEASE_SECONDS = 0.5  # two ticks of the rendezvous
DEFAULT_LEASE_SECONDS = 30.0
DEFAULT_LAUNCHER_TIMEOUT_SECONDS = 60.0  # a launcher that is stopped, or sleeps, may come back
DEFAULT_GRACE_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a job.

    start_timeout_seconds: how long the job may take until all workers have joined.
    lease_seconds: how long an agent may be silent before its host is lost.
    launcher_timeout_seconds: how long hvdrun may be silent before a host gives it up; the lease, where that is longer.
    grace_seconds: between SIGTERM or SIGINT and SIGKILL; 0 kills at once.
    elasticity: how the job may shrink and grow; None for a static job, whose workers stay the same.

    Raises:
        UsageError: such limits are impossible.
    """

    start_timeout_seconds: float = DEFAULT_START_TIMEOUT_SECONDS
    lease_seconds: float = DEFAULT_LEASE_SECONDS
    launcher_timeout_seconds: float = DEFAULT_LAUNCHER_TIMEOUT_SECONDS
    grace_seconds: float = DEFAULT_GRACE_SECONDS
    elasticity: Elasticity | None = None

    def __post_init__(self) -> None:
        for option, seconds in (
            ("--start-timeout", self.start_timeout_seconds),
            ("--lease", self.lease_seconds),
            ("--launcher-timeout", self.launcher_timeout_seconds),
        ):
            if not (math.isfinite(seconds) and seconds > 0):
                raise UsageError(f"{option} must be longer than 0 seconds, as in {option} 30s.")
        if self.lease_seconds < LEAST_LEASE_SECONDS:
            raise UsageError(
                f"--lease {self.lease_seconds:g}s is too short: hosts that are well would count as lost between two of "
                f"their reports; the shortest is {LEAST_LEASE_SECONDS:g}s."
            )
        if not (math.isfinite(self.grace_seconds) and self.grace_seconds >= 0):
            raise UsageError("--grace must not be negative, as in --grace 5s.")

    @property
    def patience_seconds(self) -> float:
        """How long a remote agent continues without a word from hvdrun: no shorter than hvdrun does without it."""
        return max(self.launcher_timeout_seconds, self.lease_seconds)
