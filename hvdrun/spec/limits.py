"""The limits of a job: how long its parts may take, and the bounds of its size."""

import math
from dataclasses import dataclass, field

from hvdrun.errors import UsageError
from rendezvous.core.model import DEFAULT_LEASE_SECONDS, Recovery, Restarts

DEFAULT_START_TIMEOUT_SECONDS = 120.0
LEAST_LEASE_SECONDS = 0.5  # two ticks of the rendezvous
RESTART_LEASE_SECONDS = 10.0  # of a job that restarts: a false loss costs what was trained since its last checkpoint
DEFAULT_LAUNCHER_TIMEOUT_SECONDS = 60.0  # a stopped or suspended launcher may continue
DEFAULT_SERVER_TIMEOUT_SECONDS = 3600.0  # for somebody to notice that hvdrun is gone
DEFAULT_GRACE_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Elasticity:
    """The bounds of a job whose workers may change.

    min_size: the job does not continue with fewer workers.
    max_size: the job never has more workers; None: as many as the hosts have slots.
    script: the shell command that prints the hosts; None for fixed hosts.
    slots_per_host: the slots of a host that the script prints without slots.
    recovery: its limits of time and of failures.
    restarts: whether all workers are started again after a loss that would end the job.
    continues_in_place: it continues with the workers that are left, if they can; else it only restarts.
    """

    min_size: int
    max_size: int | None = None
    script: str | None = None
    slots_per_host: int = 1
    recovery: Recovery = field(default_factory=Recovery)
    restarts: Restarts = field(default_factory=Restarts)
    continues_in_place: bool = True

    def check(self, size: int, lease_seconds: float) -> None:
        """Check that these bounds do not contradict each other, or a job of `size` workers.

        Raises:
            UsageError: the bounds contradict each other, or the job.
        """
        if not 1 <= self.min_size <= size:
            raise UsageError(
                f"--min-np {self.min_size} does not fit -np {size}: the job starts with -np workers, and continues "
                "with as few as --min-np, which is at least 1."
            )
        if self.max_size is not None and self.max_size < size:
            raise UsageError(
                f"--max-np {self.max_size} does not fit -np {size}: the job starts with -np workers, and grows to "
                "--max-np."
            )

        timeout_seconds = self.recovery.elastic_timeout_seconds
        if not (math.isfinite(timeout_seconds) and timeout_seconds >= lease_seconds):
            raise UsageError(
                f"--elastic-timeout {timeout_seconds:g}s is shorter than the lease of {lease_seconds:g} s "
                "(--lease): a lost host would not be noticed before the job gives up."
            )


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a job.

    start_timeout_seconds: how long the job may take until all workers have joined.
    lease_seconds: how long an agent may be silent before its host counts as lost.
    launcher_timeout_seconds: how long hvdrun may be silent before a remote agent stops its workers.
    server_timeout_seconds: the same in a detached job, on every host.
    watch_after_seconds: how long ranks wait before the ones that hold them up are named; 0 for never, None where a
        variable may say it.
    hang_timeout_seconds: how long the ranks may stand still before those that hold them up are ended; None for ever.
    grace_seconds: between SIGTERM or SIGINT and SIGKILL; 0 kills immediately.
    elasticity: how the job may shrink and grow; None for a static job, whose workers stay the same.

    Raises:
        UsageError: there can be no such limits.
    """

    start_timeout_seconds: float = DEFAULT_START_TIMEOUT_SECONDS
    lease_seconds: float = DEFAULT_LEASE_SECONDS
    launcher_timeout_seconds: float = DEFAULT_LAUNCHER_TIMEOUT_SECONDS
    server_timeout_seconds: float = DEFAULT_SERVER_TIMEOUT_SECONDS
    grace_seconds: float = DEFAULT_GRACE_SECONDS
    watch_after_seconds: float | None = None
    hang_timeout_seconds: float | None = None
    elasticity: Elasticity | None = None

    def __post_init__(self) -> None:
        for option, seconds in (
            ("--start-timeout", self.start_timeout_seconds),
            ("--lease", self.lease_seconds),
            ("--launcher-timeout", self.launcher_timeout_seconds),
            ("--server-timeout", self.server_timeout_seconds),
        ):
            if not (math.isfinite(seconds) and seconds > 0):
                raise UsageError(f"{option} must be longer than 0 seconds, as in {option} 30s.")
        if self.lease_seconds < LEAST_LEASE_SECONDS:
            raise UsageError(
                f"--lease {self.lease_seconds:g}s is too short: healthy hosts would count as lost between two of their "
                f"reports; the shortest is {LEAST_LEASE_SECONDS:g}s."
            )
        if not (math.isfinite(self.grace_seconds) and self.grace_seconds >= 0):
            raise UsageError("--grace must not be negative, as in --grace 5s.")

    @property
    def effective_launcher_timeout_seconds(self) -> float:
        """How long a remote agent continues without contact to hvdrun; at least the lease."""
        return max(self.launcher_timeout_seconds, self.lease_seconds)

    @property
    def effective_server_timeout_seconds(self) -> float:
        """How long the workers of a detached job continue without hvdrun; at least the lease."""
        return max(self.server_timeout_seconds, self.lease_seconds)
