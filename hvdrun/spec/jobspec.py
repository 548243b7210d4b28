"""What a job is asked to be: the command line read into one frozen value that is right once it exists."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from hvdrun.errors import NotEnoughSlotsError
from hvdrun.shim import path as horovod_path
from hvdrun.spec.display import Display
from hvdrun.spec.elasticity import ELASTIC
from hvdrun.spec.limits import Limits
from hvdrun.spec.remote import Remote
from hvdrun.spec.workers import Workers
from rendezvous.bootstrap import BACKEND, CHECKPOINT
from rendezvous.core.model import UNBOUNDED, Policy, Slot
from rendezvous.core.scheduling import place


@dataclass(frozen=True, slots=True)
class JobSpec:
    """A job.

    workers: which program runs how often and where.
    limits: how long, and between which sizes.
    remote: how its hosts are reached.
    display: what is printed.

    Raises:
        UsageError: such a job is impossible.
        NotEnoughSlotsError: the hosts offer fewer slots than there are workers.
    """

    workers: Workers
    limits: Limits = field(default_factory=Limits)
    remote: Remote = field(default_factory=Remote)
    display: Display = field(default_factory=Display)

    def __post_init__(self) -> None:
        workers, elasticity = self.workers, self.limits.elasticity
        if not self.discovers and sum(host.slots for host in workers.hosts) < workers.size:
            raise NotEnoughSlotsError(workers.hosts, workers.size)
        if elasticity is not None:
            elasticity.check(workers.size, self.limits.lease_seconds)

    @property
    def is_elastic(self) -> bool:
        """Its workers may change."""
        return self.limits.elasticity is not None

    @property
    def discovers(self) -> bool:
        """Its hosts are not known at the start: a script names them, or they come by themselves."""
        elasticity = self.limits.elasticity
        return self.remote.joining is not None or (elasticity is not None and elasticity.script is not None)

    def place(self) -> tuple[Slot, ...]:
        """The slots that the job starts with, if its hosts offer enough of them.

        Raises:
            TooFewSlotsError: they do not, which only a script's hosts can.
        """
        workers, elasticity = self.workers, self.limits.elasticity
        most = workers.size if elasticity is None else elasticity.max_size or UNBOUNDED
        return place(workers.hosts, workers.size, most)

    def is_remote(self, host: str) -> bool:
        """The host is not this machine."""
        return host in self.remote.hosts

    def command_on(self, host: str) -> tuple[str, ...]:
        """What the workers of this host execute."""
        return self.remote.command if self.is_remote(host) else self.workers.command

    @property
    def variables(self) -> Mapping[bytes, bytes]:
        """What the workers of all hosts are to have, whatever else is in their environment."""
        workers = self.workers
        named = ((BACKEND, workers.backend), (CHECKPOINT, workers.checkpoint))
        chosen = {os.fsencode(name): os.fsencode(value) for name, value in named if value is not None}
        mode = {os.fsencode(ELASTIC): b"1" if self.is_elastic else b"0"}
        return {**workers.forwarded, horovod_path.VARIABLE: os.fsencode(workers.horovod_shim), **chosen, **mode}

    def policy(self) -> Policy:
        """What the rendezvous is told; of a static job: exactly `size` workers, and the first failure ends it."""
        limits, elasticity = self.limits, self.limits.elasticity
        seconds = {
            "start_timeout_seconds": limits.start_timeout_seconds,
            "lease_seconds": limits.lease_seconds,
            "grace_seconds": limits.grace_seconds,
        }
        if elasticity is None:
            return Policy.static(self.workers.size, **seconds)
        return Policy.elastic(
            elasticity.min_size, elasticity.max_size, self.workers.size, recovery=elasticity.recovery(), **seconds
        )
