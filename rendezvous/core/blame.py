"""Blame: which slots and hosts have failed how often, and which are closed for it.

Blame falls on the slot, for failures without progress: the end of a worker that has committed steps with the others
(killed, preempted, out of memory) says nothing about its slot. Whether a member has is known when the others have
reported; until then its slot is suspected. A slot that has failed several times is closed; when half of a host's slots
are, the host is, and a host that was lost is at once. A closed host comes back after its cooldown, and its slots are
fresh then. Whoever is training on a host that closes goes on: it proves more than its neighbours' failures.

Blame decays: what lies far back, with nothing after it, is forgotten. Nothing is left to chance, so that a history
repeated is the same. Times are of the job's own clock, which stands still while this machine sleeps.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Self

from rendezvous.core.model import Host, Recovery, Slot

_MOST_DOUBLINGS = 32  # of a cooldown: more would be no number that anybody waits for


@dataclass(frozen=True, slots=True)
class SlotBlame:
    """How often a slot has failed, and when last."""

    failures: int
    last: float


@dataclass(frozen=True, slots=True)
class HostBlame:
    """How often a host was closed, and until when the last time."""

    closings: int
    until: float


@dataclass(frozen=True, slots=True)
class Blame:
    """What is held against the slots and hosts of a job.

    suspects: the slots of members that have failed; how far they had come is not known yet.
    """

    slots: Mapping[Slot, SlotBlame] = field(default_factory=dict)
    hosts: Mapping[str, HostBlame] = field(default_factory=dict)
    suspects: tuple[Slot, ...] = ()

    def count(self, slot: Slot, now: float, recovery: Recovery) -> int:
        """How many failures of a slot have not been forgotten."""
        blame = self.slots.get(slot)
        return 0 if blame is None or now - blame.last > recovery.forgiveness_seconds else blame.failures

    def is_open(self, slot: Slot, now: float, recovery: Recovery) -> bool:
        """A worker may be started in this slot."""
        failures = self.count(slot, now, recovery) + self.suspects.count(slot)
        return self.is_host_open(slot.host, now) and failures < recovery.failures_per_slot

    def is_host_open(self, host: str, now: float) -> bool:
        """The host's cooldown, if it has one, is over."""
        return host not in self.hosts or now >= self.hosts[host].until

    def suspect_slot(self, slot: Slot) -> Self:
        """A failure of a slot, until it is known whether it counts."""
        return replace(self, suspects=(*self.suspects, slot))

    def find_closed(self, now: float) -> dict[str, float]:
        """The hosts that are closed, and for how many seconds more."""
        return {host: blame.until - now for host, blame in self.hosts.items() if now < blame.until}

    def blame_slot(self, slot: Slot, offered: Host | None, now: float, recovery: Recovery, weight: int = 1) -> Self:
        """One more failure of a slot, which may close it, and with it its host.

        offered: the slot's host as it is offered now; None when it is not.
        weight: how many failures it counts for.
        """
        failures = self.count(slot, now, recovery) + weight
        blamed = replace(self, slots={**self.slots, slot: SlotBlame(failures, now)})
        if offered is None:
            return blamed
        closed = sum(
            blamed.count(Slot(slot.host, index), now, recovery) >= recovery.failures_per_slot
            for index in range(offered.slots)
        )
        return blamed.close_host(slot.host, now, recovery) if 2 * closed >= offered.slots else blamed

    def close_host(self, host: str, now: float, recovery: Recovery) -> Self:
        """Close a host for its cooldown: each time for twice as long, up to the longest; its slots are fresh then."""
        former = self.hosts.get(host)
        is_forgotten = former is None or now - former.until > recovery.forgiveness_seconds
        closings = 0 if former is None or is_forgotten else former.closings
        least, most = recovery.cooldown_seconds
        cooldown_seconds = min(most, least * 2.0 ** min(closings, _MOST_DOUBLINGS))
        return replace(
            self,
            slots={slot: blame for slot, blame in self.slots.items() if slot.host != host},
            hosts={**self.hosts, host: HostBlame(closings + 1, now + cooldown_seconds)},
        )
