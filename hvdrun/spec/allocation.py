"""The hosts that a scheduler has given to this job."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from hvdrun.errors import LaunchError
from hvdrun.spec.hosts import count_slots
from rendezvous.core.model import Host

_NAMED_HOSTS = 3


class AllocationError(LaunchError):
    """What the scheduler says cannot be understood.

    Cause: The variables or files of the scheduler have a form that hvdrun does not know.
    Remedy: Name the hosts with `-H` or `--hostfile`.
    """

    def __init__(self, name: str, source: str, reason: str) -> None:
        super().__init__(f"the hosts of {name} are not known: {source} {reason}; name them with -H or --hostfile.")


@dataclass(frozen=True, slots=True)
class Allocation:
    """The hosts of an allocation.

    name: what users call it, as in "Slurm job 17".
    hosts: each with its slots.
    is_sized: the slots are what was asked for; else they are one for each host.
    script: a command that names the hosts again and again, for elastic jobs; None where the hosts stay the same.
    steps: by host, the words before a command that is to run there; none for hosts that are reached over SSH.
    here: the host that is this machine, where the scheduler says it; else names are looked up.
    """

    name: str
    hosts: tuple[Host, ...]
    is_sized: bool = True
    script: str | None = None
    steps: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    here: str | None = None

    def fit(self, size: int | None) -> "Allocation":
        """The same, with enough slots for this many workers where nobody has asked for slots."""
        if self.is_sized or size is None:
            return self
        slots = math.ceil(size / len(self.hosts))
        return replace(self, hosts=tuple(Host(host.name, slots) for host in self.hosts))

    @property
    def slots(self) -> int:
        """Those of all hosts."""
        return sum(host.slots for host in self.hosts)

    def describe(self) -> str:
        """What was found, as one sentence."""
        named = [f"{host.name}:{host.slots}" for host in self.hosts[:_NAMED_HOSTS]]
        if len(self.hosts) > _NAMED_HOSTS:
            named.append(f"and {len(self.hosts) - _NAMED_HOSTS} more hosts")
        return f"{self.name}: {count_slots(self.slots)} on {', '.join(named)}."
