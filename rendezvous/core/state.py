"""What membership remembers between two events; frozen, so that a refused event changes nothing."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Self

from rendezvous.core.failures import Blacklist, CrashLoop
from rendezvous.core.lifecycle import PHASES, WORKER_STATES, Phase, WorkerRecord, WorkerState, check_transition
from rendezvous.core.model import Generation, Host, Policy, Slot, Worker
from rendezvous.core.outcome import SIGUSR2, TEMPORARY_FAILURE, Outcome
from rendezvous.core.reports import Decision, Verdict
from rendezvous.core.table import Table

__all__ = ["Offer", "Phase", "State", "WorkerRecord", "WorkerState"]


@dataclass(frozen=True, slots=True)
class Offer:
    """A resize that the newest generation was offered.

    number: how many there have been in the job.
    added, removed: who would come and go.
    """

    number: int = 0
    added: tuple[Worker, ...] = ()
    removed: tuple[Worker, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Nothing would change."""
        return not (self.added or self.removed)


@dataclass(frozen=True, slots=True)
class State:
    """One job's membership.

    listed: the hosts that the job was given, and offered: those of them that it may use now.
    slots: how many each of these has.
    drained: hosts that have got a stop notice, and when they go away, on the job's own clock.
    stops_at: when the whole job has to have ended, because of a stop notice; None while there is none.
    hosts: those in use, each with all slots that ever had a worker.
    workers: one record for each slot that ever had a worker, also on hosts that are not in use any more.
    last_heard: when the agent of each host in use last reported, or when it was begun; None before it has.
    counts: how many workers are in which state (counted along, so that a join costs no scan).
    generation: the newest one; its number only grows; and verdict: with which it began.
    failures: how many workers and hosts have failed so far, and cause: the first of them since the newest generation.
    waiting_since: since when somebody has stood WAITING; None while nobody does.
    refusal: why there will be no further generation; set by the first worker that ends well, and nobody waits then.
    outcome: set from draining on.
    deadline: when draining ends at the latest, or when the survivors of an interruption must have reported.
    slept_seconds: for how long this machine has slept: so much does the job's own clock lag behind.
    short_since: since when there have been too few slots to start with, or workers to go on; on the job's own clock.
    gathering_since: since when there has been something to offer; the same.
    interruption: why the newest generation cannot go on, in one sentence without a full stop; None while it can.
    start_errors: why commands cannot be started, as far as logged.
    stuck: workers for which the others have waited in vain when the job ended.
    settled_until: when the rules may have something to do though nothing has happened, on the job's own clock.
    """

    policy: Policy
    phase: Phase = Phase.FORMING
    now: float = 0.0
    started: float | None = None
    listed: tuple[Host, ...] = ()
    offered: tuple[Host, ...] = ()
    drained: Mapping[str, float] = field(default_factory=dict)
    stops_at: float | None = None
    slots: Mapping[str, int] = field(default_factory=dict)
    hosts: Mapping[str, tuple[Slot, ...]] = field(default_factory=dict)
    workers: Table[Slot, WorkerRecord] = Table.of(())  # noqa: RUF009 - an immutable value may be shared
    last_heard: Table[str, float | None] = Table.of(())  # noqa: RUF009 - the same
    counts: Mapping[WorkerState, int] = field(default_factory=dict)
    generation: Generation | None = None
    verdict: Verdict = Verdict(Decision.BEGIN)  # noqa: RUF009 - the same
    failures: int = 0
    cause: Outcome | None = None
    waiting_since: float | None = None
    refusal: str | None = None
    outcome: Outcome | None = None
    deadline: float | None = None
    slept_seconds: float = 0.0
    short_since: float | None = None
    gathering_since: float | None = None
    offer: Offer = Offer()
    blacklist: Blacklist = Blacklist()  # noqa: RUF009 - the same
    crash_loop: CrashLoop = CrashLoop()  # noqa: RUF009 - the same
    resets: int = 0
    interruption: str | None = None
    start_errors: frozenset[str] = frozenset()
    stuck: tuple[Worker, ...] = ()
    settled_until: float = 0.0

    @property
    def number(self) -> int:
        """The newest generation's number; 0 before the first."""
        return 0 if self.generation is None else self.generation.number

    @property
    def clock(self) -> float:
        """The job's own clock, in seconds since its start: it stops while this machine sleeps."""
        return self.now - self.slept_seconds

    @property
    def may_form_anew(self) -> bool:
        """The reset limit leaves room for another generation."""
        limit = self.policy.recovery.reset_limit
        return limit is None or self.resets < limit

    @property
    def placement(self) -> tuple[Slot, ...]:
        """The slots that ever had a worker, in the order in which they got it."""
        return tuple(self.workers)

    @property
    def waiting(self) -> int:
        """How many workers wait for the generation that is being formed."""
        return self.count(WorkerState.WAITING)

    @property
    def ended(self) -> int:
        """How many slots' workers have ended."""
        return self.count(WorkerState.ENDED)

    @property
    def slots_offered(self) -> int:
        """How many slots the hosts have that the job may use now."""
        return sum(self.slots.values())

    @property
    def has_stopped(self) -> bool:
        """Somebody has ended as one does after a stop notice."""
        return any(record.is_done and record.returncode == TEMPORARY_FAILURE for record in self.workers.values())

    @property
    def least_size(self) -> int:
        """How many workers a generation needs; after a stop notice for the job whoever is left may save the state."""
        return self.policy.min_size if self.stops_at is None else 1

    def offers(self, slot: Slot) -> bool:
        """The slot is one of them."""
        return slot.index < self.slots.get(slot.host, 0)

    def count(self, worker_state: WorkerState) -> int:
        """How many workers are in this state."""
        return self.counts.get(worker_state, 0)

    def list_workers(self, *states: WorkerState) -> tuple[WorkerRecord, ...]:
        """The records of the workers in these states, in the order of the placement."""
        return tuple(record for record in self.workers.values() if record.state in states)

    def on(self, host: str) -> tuple[WorkerRecord, ...]:
        """The records of one host in use, in the order of the placement."""
        return tuple(self.workers[slot] for slot in self.hosts[host])

    def alive(self) -> tuple[WorkerRecord, ...]:
        """The records of workers that have not ended."""
        return tuple(record for record in self.workers.values() if record.state is not WorkerState.ENDED)

    def survivors(self) -> tuple[WorkerRecord, ...]:
        """The members of the newest generation that can be in the next one, in rank order."""
        if self.generation is None:
            return ()
        records = (self.workers[worker.slot] for worker in self.generation.members)
        return tuple(
            record
            for record, worker in zip(records, self.generation.members, strict=True)
            if record.worker == worker and record.state in {WorkerState.MEMBER, WorkerState.WAITING}
        )

    def is_member(self, record: WorkerRecord) -> bool:
        """It belongs to the newest generation, or, before the first, to those that will form it."""
        return record.generation == self.number

    def rank_of(self, worker: Worker) -> int:
        """The rank of the worker's slot in the newest generation, before the first by placement."""
        return self.workers[worker.slot].assignment.rank

    def ends_well(self, returncode: int) -> bool:
        """A worker that ends so has not failed."""
        return returncode == 0 or (self.stops_at is not None and returncode == TEMPORARY_FAILURE)

    def dies_of_notice(self, worker: Worker, returncode: int) -> bool:
        """A stop notice ends this worker, which has not joined and cannot pass the notice on."""
        return returncode == -SIGUSR2 and self.workers[worker.slot].state is WorkerState.INTENDED

    def find_offered(self, host: str) -> Host | None:
        """The host as the job may use it now; None when it may not."""
        return Host(host, self.slots[host]) if host in self.slots else None

    def enter(self, phase: Phase) -> Self:
        """The state in another phase.

        Raises:
            ValueError: no way leads there.
        """
        check_transition(PHASES, self.phase, phase)
        return replace(self, phase=phase)

    def with_interruption(self, reason: str) -> Self:
        """The state in which the newest generation cannot go on; the first reason counts."""
        return replace(self, interruption=self.interruption or reason)

    def with_offer(self, hosts: tuple[Host, ...]) -> Self:
        """The state in which the job may use these hosts, but for those that are drained."""
        names = {host.name for host in hosts}
        return replace(self, listed=hosts).with_drained(
            {host: when for host, when in self.drained.items() if host in names or host in self.hosts}
        )

    def with_drained(self, drained: Mapping[str, float]) -> Self:
        """The state in which these hosts have got a stop notice."""
        offered = tuple(host for host in self.listed if host.name not in drained)
        slots = {host.name: host.slots for host in offered}
        return replace(self, drained=drained, offered=offered, slots=slots, settled_until=0.0)

    def with_records(self, records: Iterable[WorkerRecord]) -> Self:
        """The state with these records in place of their slots' former ones; the counts follow."""
        workers = self.workers
        counts = Counter(self.counts)
        for record in records:
            slot = record.worker.slot
            check_transition(WORKER_STATES, workers[slot].state, record.state)
            counts[workers[slot].state] -= 1
            counts[record.state] += 1
            workers = workers.replace(slot, record)
        since = self.now if self.waiting_since is None else self.waiting_since
        return replace(
            self,
            workers=workers,
            counts=dict(+counts),
            waiting_since=since if counts[WorkerState.WAITING] > 0 else None,
            settled_until=0.0,
        )

    def with_slots(self, records: Iterable[WorkerRecord]) -> Self:
        """The state with these records, also of slots that have had no worker yet; their hosts are in use."""
        listed = tuple(records)
        new = {record.worker.slot: record for record in listed if record.worker.slot not in self.workers}
        used = dict.fromkeys((*self.hosts, *(record.worker.slot.host for record in listed)))
        counts = Counter(self.counts) + Counter(record.state for record in new.values())
        workers = Table.of((*self.workers.items(), *new.items())) if new else self.workers
        former = [record for record in listed if record.worker.slot not in new]
        return replace(self, workers=workers, counts=dict(counts)).with_records(former).with_hosts(used)

    def with_host_ended(self, host: str, returncode: int | None = None) -> Self:
        """The state without the workers of a host whose agent is gone: it has taken them along, nobody has seen how."""
        return self.with_records(
            replace(record, state=WorkerState.ENDED, report=None, returncode=returncode)
            for record in self.on(host)
            if record.state is not WorkerState.ENDED
        )

    def without_host(self, host: str) -> Self:
        """The state in which this host is not in use; its records stay, for those of its workers that come late."""
        return self.with_hosts(other for other in self.hosts if other != host)

    def with_hosts(self, used: Iterable[str]) -> Self:
        """The state in which these hosts are in use."""
        slots: dict[str, list[Slot]] = {host: [] for host in used}
        for slot in self.workers:
            if slot.host in slots:
                slots[slot.host].append(slot)
        heard = Table.of((host, self.last_heard.get(host)) for host in slots)
        return replace(self, hosts={host: tuple(each) for host, each in slots.items()}, last_heard=heard)
