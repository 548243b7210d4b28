"""How a job may shrink and grow: what is asked of an elastic job beyond what every job has."""

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass

from hvdrun.errors import UsageError
from rendezvous.core.model import Recovery

ELASTIC = "HOROVOD_ELASTIC"  # the variable by which the workers, and their agents, know of what kind the job is
DEFAULT_TIMEOUT_SECONDS = 600.0
DEFAULT_LEASE_SECONDS = 5.0  # of an elastic job; a loss that ends the job is worth more patience than one that does not
DEFAULT_COOLDOWN_SECONDS = (10.0, 100.0)
COOLDOWN_BOUNDS_SECONDS = (1.0, 3600.0)
DEFAULT_SLOT_FAILURES = 3
DEFAULT_SLOT_COOLDOWN_SECONDS = 600.0


def is_elastic(environment: Mapping[bytes, bytes]) -> bool:
    """The workers of this environment belong to an elastic job."""
    return environment.get(os.fsencode(ELASTIC)) == b"1"


@dataclass(frozen=True, slots=True)
class Elasticity:
    """The bounds of an elastic job.

    min_size: with fewer workers it does not go on.
    max_size: more are never started; None: as many as the hosts have slots.
    script: the shell command that names the hosts, again and again; None where they are fixed.
    slots_per_host: what a host offers that the script names without slots.
    timeout_seconds: how long it waits for hosts with enough slots, at the start and after losses.
    reset_limit: how often its membership may change; None: without a limit.
    cooldown_seconds: the shortest and the longest time for which a host is left alone after it failed.
    slot_failures: after so many failures without progress a slot is left alone; slot_cooldown_seconds: for how long.
    """

    min_size: int
    max_size: int | None = None
    script: str | None = None
    slots_per_host: int = 1
    timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS
    reset_limit: int | None = None
    cooldown_seconds: tuple[float, float] = DEFAULT_COOLDOWN_SECONDS
    slot_failures: int = DEFAULT_SLOT_FAILURES
    slot_cooldown_seconds: float = DEFAULT_SLOT_COOLDOWN_SECONDS

    def recovery(self) -> Recovery:
        """What the rendezvous is told of it."""
        return Recovery(
            reset_limit=self.reset_limit,
            elastic_timeout_seconds=self.timeout_seconds,
            cooldown_seconds=self.cooldown_seconds,
            failures_per_slot=self.slot_failures,
            forgiveness_seconds=self.slot_cooldown_seconds,
        )

    def check(self, size: int, lease_seconds: float) -> None:
        """Refuse what contradicts itself, or a job of `size` workers.

        Raises:
            UsageError: it does.
        """
        if not 1 <= self.min_size <= size:
            raise UsageError(
                f"--min-np {self.min_size} does not fit -np {size}: the job starts with -np workers, and goes on "
                "with as few as --min-np, which are at least 1."
            )
        if self.max_size is not None and self.max_size < size:
            raise UsageError(
                f"--max-np {self.max_size} does not fit -np {size}: the job starts with -np workers, and grows to "
                "--max-np."
            )
        if not (math.isfinite(self.timeout_seconds) and self.timeout_seconds >= lease_seconds):
            raise UsageError(
                f"--elastic-timeout {self.timeout_seconds:g}s is shorter than the lease of {lease_seconds:g} s "
                "(--lease): a lost host would not be noticed before the job gives up."
            )
        least, most = self.cooldown_seconds
        if not COOLDOWN_BOUNDS_SECONDS[0] <= least <= most <= COOLDOWN_BOUNDS_SECONDS[1]:
            raise UsageError(
                f"--blacklist-cooldown-range {least:g} {most:g} is impossible: the shorter time comes first, and both "
                f"are from {COOLDOWN_BOUNDS_SECONDS[0]:g} to {COOLDOWN_BOUNDS_SECONDS[1]:g} s."
            )
