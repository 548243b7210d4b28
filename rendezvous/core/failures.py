"""The blacklist of slots and hosts, and the detection of crash loops.

A failure counts against its slot if the worker had made no progress: the loss of a worker that has completed steps with
the others (killed, preempted, out of memory) says nothing about its slot. Whether a member had done so is known when
the others have reported; until then its slot is suspected. A slot that has failed several times is closed. A host is
closed when half of its slots are closed, and when it is lost. A closed host is offered again after its cooldown, and
the failures of its slots are forgotten. Workers that train on a closed host continue.

A failure is forgotten after some time without another one. Nothing is random, so that a repeated history is the same.
Times are on the job's clock, which stops while this machine sleeps.

A crash loop is the same error at the same step, several times in a row. The texts may differ in ports, ranks and
generation numbers. Which error the members report may also depend on which of them finds it first: so a different error
at the same step counts, too, towards a higher limit. A job whose hosts cannot reach each other ends in this way: its
workers can never connect.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Self

from rendezvous.core.model import Recovery, Slot, Worker
from rendezvous.core.reports import CompletedOperation, PendingOperation, Report

_MOST_DOUBLINGS = 32  # of a cooldown; keeps 2.0 ** n finite


@dataclass(frozen=True, slots=True)
class SlotFailures:
    """How often a slot has failed, when it last did, and why no worker can run there, if none can."""

    failures: int
    last: float
    obstacle: str = ""

    def explain_closing(self) -> str:
        """Why the slot is closed, in words that follow its name and a colon, or "because"."""
        if self.obstacle:
            return self.obstacle
        return f"{'1 worker' if self.failures == 1 else f'{self.failures} workers'} failed there (--slot-failures)"


@dataclass(frozen=True, slots=True)
class HostCooldown:
    """How often a host was closed, until when it is or was, and why the last time."""

    closings: int
    until: float
    reason: str


@dataclass(frozen=True, slots=True)
class Blacklist:
    """The failures of a job's slots, and its closed hosts.

    suspects: the slots of members that have failed, and of which it is not known yet whether they had completed steps.
    """

    slots: Mapping[Slot, SlotFailures] = field(default_factory=dict)
    hosts: Mapping[str, HostCooldown] = field(default_factory=dict)
    suspects: tuple[Slot, ...] = ()

    def count(self, slot: Slot, now: float, recovery: Recovery) -> int:
        """How many failures of a slot are not forgotten."""
        known = self.slots.get(slot)
        if known is None or now - known.last > recovery.forgiveness_seconds:
            return 0
        return known.failures

    def is_open(self, slot: Slot, now: float, recovery: Recovery) -> bool:
        """A worker may be started in this slot."""
        failures = self.count(slot, now, recovery) + self.suspects.count(slot)
        return self.is_host_open(slot.host, now) and failures < recovery.failures_per_slot

    def is_host_open(self, host: str, now: float) -> bool:
        """The host is not in its cooldown."""
        return host not in self.hosts or now >= self.hosts[host].until

    def suspect_slot(self, slot: Slot) -> Self:
        """Record a member's failure until it is known whether it counts."""
        return replace(self, suspects=(*self.suspects, slot))

    def count_failure(self, slot: Slot, offered: int, now: float, recovery: Recovery, obstacle: str = "") -> Self:
        """Count a failure of a slot, which may close it, and its host.

        offered: how many slots the host offers now; 0 for none.
        obstacle: why no worker can run in the slot, which closes it; "" where the next one may.
        """
        least = recovery.failures_per_slot
        failures = self.count(slot, now, recovery) + (least if obstacle else 1)
        counted = replace(self, slots={**self.slots, slot: SlotFailures(failures, now, obstacle)})

        offers = [Slot(slot.host, index) for index in range(offered)]
        closed = [each for each in offers if counted.count(each, now, recovery) >= least]
        if not 2 * len(closed) >= offered > 0:
            return counted

        last = slot if slot in closed else closed[-1]
        are = "is" if len(closed) == 1 else "are"
        share = (
            "its only slot is closed" if offered == 1 else f"{len(closed)} of its {offered} slots {are} closed, {last}"
        )
        reason = f"{share} because {counted.slots[last].explain_closing()}"
        return counted.close_host(slot.host, now, recovery, reason)

    def close_host(self, host: str, now: float, recovery: Recovery, reason: str) -> Self:
        """Close a host for its cooldown, which doubles each time up to its limit, and drop its slots' failures."""
        former = self.hosts.get(host)
        is_forgotten = former is None or now - former.until > recovery.forgiveness_seconds
        closings = 0 if former is None or is_forgotten else former.closings
        least, most = recovery.cooldown_seconds
        cooldown_seconds = min(most, least * 2.0 ** min(closings, _MOST_DOUBLINGS))
        return replace(
            self,
            slots={slot: known for slot, known in self.slots.items() if slot.host != host},
            suspects=tuple(slot for slot in self.suspects if slot.host != host),
            hosts={**self.hosts, host: HostCooldown(closings + 1, now + cooldown_seconds, reason)},
        )


MOST_REPETITIONS = 3  # of the same error, in consecutive generations
MOST_ERRORS = 6  # of any error
STEPS_OF_PROGRESS = 5


@dataclass(frozen=True, slots=True)
class CrashLoop:
    """How often the same members have had the same error without progress in between.

    error: the error of the first rank that reports one.
    progress: the highest commit round that a member has submitted. Rounds are counted from 1 after a restore, so that
        an error at the same step has the same number.
    repetitions: how many consecutive generations had the same error. errors: how many had any error.
    commits: how often the program has called `state.commit()`.
    """

    error: str = ""
    members: tuple[Worker, ...] = ()
    progress: int = 0
    repetitions: int = 0
    errors: int = 0
    commits: int = 0

    @property
    def reason_to_end(self) -> str | None:
        """Why the job should end, in one sentence without a full stop; None below the limits."""
        if self.repetitions >= MOST_REPETITIONS:
            return f"{self.error}; the same has happened {self.repetitions} times in a row, with no step in between"
        if self.errors >= MOST_ERRORS:
            return f"{self.error}; it was the last of {self.errors} errors in a row, with no step in between"
        return None

    def shows_progress(self, reports: Collection[Report]) -> bool:
        """These reports show that the generation has completed several steps.

        A program that fails when it starts to train may have made a step or two, and have committed its state once.
        """
        steps = max((_find_progress(report) for report in reports), default=0)
        commits = max((report.commits for report in reports), default=0)
        return steps > STEPS_OF_PROGRESS or commits > self.commits + 1

    def count(self, members: tuple[Worker, ...], reports: Collection[Report]) -> "CrashLoop":
        """The counts after one more generation, with the reports of its survivors.

        Members have made progress if they have passed the step of the last error, or have committed their state after a
        step, since a restore continues from there. (A single member makes steps without commit rounds.)
        """
        error = next((report.error for report in reports if report.error), "")
        progress = max((_find_progress(report) for report in reports), default=0)
        commits = max((report.commits for report in reports), default=0)
        if not error or len(reports) < len(members):
            return CrashLoop(error, members, progress, commits=commits)
        has_committed = commits > self.commits and (progress > 0 or len(members) == 1)
        is_stuck = members == self.members and progress <= self.progress and not has_committed
        is_same = is_stuck and _remove_digits(error) == _remove_digits(self.error)
        repetitions = errors = 1
        if is_same:
            repetitions += self.repetitions
        if is_stuck:
            errors += self.errors
        return CrashLoop(error, members, progress, repetitions, errors, commits)


def _remove_digits(error: str) -> str:
    return "".join(letter for letter in error if not letter.isdigit())


def _find_progress(report: Report) -> int:
    submitted: tuple[PendingOperation | CompletedOperation, ...] = (*report.pending, *report.completed)
    return max((operation.number for operation in submitted), default=0)
