"""The blacklist of slots and hosts, and the detection of crash loops.

A failure counts against its slot if the worker had made no progress: the end of a worker that has committed steps with
the others (killed, preempted, out of memory) says nothing about its slot. For a member this is known when the others
have reported; until then its slot is suspected. A slot that has failed several times is closed. A host is closed when
half of its slots are, and at once when it is lost. A closed host comes back after its cooldown with fresh slots.
Workers that train on a host that is closed continue: they prove more than their neighbours' failures.

Failures that lie far back, with none after them, are forgotten. Nothing is random, so that a history repeated is the
same. Times are those of the job's own clock, which stops while this machine sleeps.

A crash loop is trouble at the same place, again and again. The words of the trouble may differ in ports, ranks and
numbers of generations. What the members report may also depend on which of them notices first: so other trouble at the
same place counts as well, with more patience. Hosts that do not reach each other end in this way: their workers can
never be connected.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Self

from rendezvous.core.model import Host, Recovery, Slot, Worker
from rendezvous.core.reports import CompletedOperation, PendingOperation, Report

_MOST_DOUBLINGS = 32  # of a cooldown: more would be no number that anybody waits for


@dataclass(frozen=True, slots=True)
class SlotFailures:
    """How often a slot has failed, and when last."""

    failures: int
    last: float


@dataclass(frozen=True, slots=True)
class HostCooldown:
    """How often a host was closed, and until when the last time."""

    closings: int
    until: float


@dataclass(frozen=True, slots=True)
class Blacklist:
    """What is held against the slots and hosts of a job.

    suspects: the slots of members that have failed; how far they had come is not known yet.
    """

    slots: Mapping[Slot, SlotFailures] = field(default_factory=dict)
    hosts: Mapping[str, HostCooldown] = field(default_factory=dict)
    suspects: tuple[Slot, ...] = ()

    def count(self, slot: Slot, now: float, recovery: Recovery) -> int:
        """How many failures of a slot have not been forgotten."""
        known = self.slots.get(slot)
        return 0 if known is None or now - known.last > recovery.forgiveness_seconds else known.failures

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
        return {host: known.until - now for host, known in self.hosts.items() if now < known.until}

    def count_failure(self, slot: Slot, offered: Host | None, now: float, recovery: Recovery, weight: int = 1) -> Self:
        """One more failure of a slot, which may close it, and with it its host.

        offered: the slot's host as it is offered now; None when it is not.
        weight: how many failures it counts for.
        """
        failures = self.count(slot, now, recovery) + weight
        blamed = replace(self, slots={**self.slots, slot: SlotFailures(failures, now)})
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
            slots={slot: known for slot, known in self.slots.items() if slot.host != host},
            suspects=tuple(slot for slot in self.suspects if slot.host != host),
            hosts={**self.hosts, host: HostCooldown(closings + 1, now + cooldown_seconds)},
        )


MOST_REPETITIONS = 3  # of the same trouble, in generations that follow one another
MOST_TROUBLES = 6  # of any trouble
STEPS_OF_PROGRESS = 5


@dataclass(frozen=True, slots=True)
class CrashLoop:
    """How often the same members have been in the same trouble without getting any further.

    trouble: of the first rank that told of some.
    progress: the highest number of a commit round that anybody has asked for. They are counted anew after a restore:
        the same failure at the same place then shows the same number.
    count: of the generations, and troubles: of those with any trouble.
    commits: how often the state was committed.
    """

    trouble: str = ""
    members: tuple[Worker, ...] = ()
    progress: int = 0
    count: int = 0
    troubles: int = 0
    commits: int = 0

    @property
    def reason_to_end(self) -> str | None:
        """Why it would happen again, in one sentence without a full stop; None while it may not."""
        if self.count >= MOST_REPETITIONS:
            return f"{self.trouble}; the same has happened {self.count} times in a row, with no step in between"
        if self.troubles >= MOST_TROUBLES:
            return f"{self.trouble}; it was the last of {self.troubles} troubles in a row, with no step in between"
        return None

    def shows_progress(self, reports: Collection[Report]) -> bool:
        """The members of the generation whose survivors have reported so have committed some steps.

        A program that fails as soon as it trains may have made a step or two, and have committed its state before.
        """
        steps = max((_find_progress(report) for report in reports), default=0)
        commits = max((report.commits for report in reports), default=0)
        return steps > STEPS_OF_PROGRESS or commits > self.commits + 1

    def note(self, members: tuple[Worker, ...], reports: Collection[Report]) -> "CrashLoop":
        """What it is after one more generation, whose survivors have reported so.

        They have got further when they have come beyond the last trouble, or have committed their state after a step,
        from which they go on after a restore. (Who is alone makes steps without a round.)
        """
        trouble = next((report.error for report in reports if report.error), "")
        progress = max((_find_progress(report) for report in reports), default=0)
        commits = max((report.commits for report in reports), default=0)
        if not trouble or len(reports) < len(members):
            return CrashLoop(trouble, members, progress, commits=commits)
        has_committed = commits > self.commits and (progress > 0 or len(members) == 1)
        is_stuck = members == self.members and progress <= self.progress and not has_committed
        is_same = is_stuck and _blur(trouble) == _blur(self.trouble)
        count, troubles = self.count + 1 if is_same else 1, self.troubles + 1 if is_stuck else 1
        return CrashLoop(trouble, members, progress, count, troubles, commits)


def _blur(trouble: str) -> str:
    """It without its numbers."""
    return "".join(letter for letter in trouble if not letter.isdigit())


def _find_progress(report: Report) -> int:
    asked: tuple[PendingOperation | CompletedOperation, ...] = (*report.pending, *report.completed)
    return max((operation.number for operation in asked), default=0)
