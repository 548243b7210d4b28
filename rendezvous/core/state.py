"""The state of a job's membership; frozen, so that a refused event changes nothing."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Self

from rendezvous.core.failures import Blacklist, CrashLoop
from rendezvous.core.lifecycle import PHASES, WORKER_STATES, Phase, WorkerRecord, WorkerState, check_transition
from rendezvous.core.model import Endpoint, Generation, Host, Policy, Slot, Worker
from rendezvous.core.outcome import SIGUSR2, TEMPORARY_FAILURE, Blame, Cause, Outcome
from rendezvous.core.reports import Action, RecoveryDecision
from rendezvous.core.table import Table


@dataclass(frozen=True, slots=True)
class Offer:
    """A resize that was offered to the newest generation.

    number: how many offers the job has made.
    added, removed: the workers that it would add and remove.
    """

    number: int = 0
    added: tuple[Worker, ...] = ()
    removed: tuple[Worker, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Nothing would change."""
        return not (self.added or self.removed)


@dataclass(frozen=True, slots=True)
class StartProgress:
    """The progress of a start: the hosts whose agent has reported, the workers that have joined, each of how many.

    offered: how many slots there are, while the job waits for more; None if there are enough.
    """

    connected: int
    hosts: int
    joined: int
    workers: int
    offered: int | None = None


@dataclass(frozen=True, slots=True)
class Restart:
    """Why all workers are stopped, to be started again.

    outcome: how the job would have ended.
    is_planned: no loss, but the job leaves a host; it is not counted.
    is_told: the user knows the reason.
    is_blamed: the failure counts against its slot already.
    since: when it was decided. at: when the new round begins at the earliest; None before all workers have ended.
        Both on the job's clock.
    """

    outcome: Outcome
    is_planned: bool = False
    is_told: bool = False
    is_blamed: bool = False
    since: float = 0.0
    at: float | None = None


_RESTARTABLE = frozenset(
    {Cause.WORKER_FAILED, Cause.WORKER_KILLED, Cause.HOST_LOST, Cause.NOT_RECOVERED, Cause.STATE_LOST}
)


@dataclass(frozen=True, slots=True)
class State:
    """One job's membership.

    listed: the hosts that the job was given.
    slots: how many slots each offered host has: each listed one without a stop notice.
    drained: by host, when its stop notice runs out, on the job's clock.
    stops_at: when the stop notice of the whole job runs out, on the job's clock; None without one.
    hosts: the hosts in use, each with all slots that have ever had a worker.
    workers: one record for each slot that has ever had a worker, in that order, also on hosts no longer in use.
    last_heard: by host in use, when its agent last reported or was configured; None before that.
    tenures: by host, also one that is gone, how many of its agents were dismissed; a former one may connect again.
    left: by host, which of these agents, counted from 1, had no workers, and may end in peace.
    counts: how many workers are in each state, so that a join needs no scan.
    generation: the newest one of this round. published: the number of the last one, which only grows.
    decision: with which it began. sequencer: where its sequencer listens; None as long as nobody has said.
    failures: how many workers and hosts have failed. first_failure: the first since the newest generation.
    waiting_since: since when a worker has been WAITING; None if none is.
    refusal: why no further generation follows; set when the first worker exits with 0. Then no worker is WAITING.
    outcome: set from DRAINING on.
    deadline: when DRAINING ends at the latest, or when the survivors of an interruption must have reported.
    slept_seconds: how long this machine has slept: the job's clock lags behind by as much.
    last_pause: when it last awoke, and how long it had slept, or hvdrun was stopped.
    short_since: since when there are too few slots to start, or workers to continue; on the job's clock.
    gathering_since: since when there is a resize to offer; on the job's clock.
    interruption: why the newest generation cannot continue, in one sentence without a full stop; None while it can.
    start_errors: the errors of commands that cannot be started, as far as they were logged.
    losses: the last ones, each with the sentence that was logged, for the page about a job that cannot recover.
    stuck: workers that had not joined when the start timeout ended the job.
    stopped: the ranks of the members that were running when the outcome, or the restart before it, was decided.
    restart: why all workers are stopped, and started again; None if they are not.
    restarts: how many losses have restarted the job. rounds: how many restarts there were, planned ones included.
    round_since: when this round began, on the job's clock. round_hosts: its hosts, in rank order.
    files_since: see `Round`; None also where its host was lost since, or a worker was started alone.
    has_world: the workers are known to be a world of torch.distributed.
    sequencer_loss: the host of the last sequencer that has ended unexpectedly, and how it did.
    followers: the ranks that have failed by themselves after the failure that decided the outcome; why, if known.
    unreported: those of them that have reported no worker of it yet.
    quick_rounds, failed_rounds: how many rounds, the last ones, ended within seconds; by an exit code within 30 s.
    unanswered: hosts that were lost before they had reported a worker of their round: no round is planned for them.
    growing_since: since when there are slots for a larger round, on the job's clock.
    settled_until: when the rules have to be applied again though nothing has happened, on the job's clock.
    logged_blacklist: the blacklist whose closed slots and hosts were logged.
    logged_alone: that lost workers are not replaced was logged, or that one is replaced alone.
    logged_limit: the hosts and the generation for which was logged what the reset limit means.
    """

    policy: Policy
    phase: Phase = Phase.FORMING
    now: float = 0.0
    has_ticked: bool = False
    listed: tuple[Host, ...] = ()
    drained: Mapping[str, float] = field(default_factory=dict)
    stops_at: float | None = None
    slots: Mapping[str, int] = field(default_factory=dict)
    hosts: Mapping[str, tuple[Slot, ...]] = field(default_factory=dict)
    workers: Table[Slot, WorkerRecord] = Table.of(())  # noqa: RUF009 - an immutable value may be shared
    last_heard: Table[str, float | None] = Table.of(())  # noqa: RUF009 - an immutable value may be shared
    tenures: Mapping[str, int] = field(default_factory=dict)
    left: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    counts: Mapping[WorkerState, int] = field(default_factory=dict)
    generation: Generation | None = None
    decision: RecoveryDecision = RecoveryDecision(Action.BEGIN)  # noqa: RUF009 - an immutable value may be shared
    sequencer: Endpoint | None = None
    failures: int = 0
    first_failure: Outcome | None = None
    waiting_since: float | None = None
    refusal: str | None = None
    outcome: Outcome | None = None
    deadline: float | None = None
    slept_seconds: float = 0.0
    last_pause: tuple[float, float] | None = None
    short_since: float | None = None
    gathering_since: float | None = None
    offer: Offer = Offer()
    blacklist: Blacklist = Blacklist()  # noqa: RUF009 - an immutable value may be shared
    crash_loop: CrashLoop = CrashLoop()  # noqa: RUF009 - an immutable value may be shared
    resets: int = 0
    interruption: str | None = None
    start_errors: frozenset[str] = frozenset()
    losses: tuple[Outcome, ...] = ()
    stuck: tuple[Worker, ...] = ()
    stopped: tuple[int, ...] = ()
    published: int = 0
    restart: Restart | None = None
    restarts: int = 0
    rounds: int = 0
    round_since: float = 0.0
    round_hosts: tuple[str, ...] = ()
    files_since: int | None = None
    has_world: bool = False
    sequencer_loss: tuple[str, str] | None = None
    followers: tuple[tuple[int, str], ...] = ()
    unreported: frozenset[str] = frozenset()
    quick_rounds: int = 0
    failed_rounds: int = 0
    unanswered: frozenset[str] = frozenset()
    growing_since: float | None = None
    settled_until: float = 0.0
    logged_blacklist: Blacklist = Blacklist()  # noqa: RUF009 - an immutable value may be shared
    logged_alone: bool = False
    logged_limit: tuple[Mapping[str, int], int] = ({}, 0)

    @property
    def number(self) -> int:
        """The newest generation's number; 0 before the first."""
        if self.generation is not None:
            return self.generation.number
        return 0

    @property
    def clock(self) -> float:
        """The job's clock, in seconds since its start: it stops while this machine sleeps."""
        return self.now - self.slept_seconds

    @property
    def may_reset(self) -> bool:
        """The reset limit allows another generation."""
        limit = self.policy.recovery.reset_limit
        return limit is None or self.resets < limit

    @property
    def is_one_world(self) -> bool:
        """The workers are one world of a fixed size, none of which is replaced alone: all are started again.

        That holds for programs that never call `init()`, until one does, and for static jobs; and for every job while
        all its workers are stopped. Where no restart is allowed, the first loss ends the job.
        """
        recovers = self.policy.is_elastic and (self.published or self.waiting)
        if self.policy.restarts.needs_world:
            is_world = self.has_world
        else:
            is_world = self.policy.may_restart
        return self.restart is not None or (is_world and not recovers)

    @property
    def may_restart(self) -> bool:
        """All workers may be started again, as far as it is known what they are."""
        return self.policy.may_restart and (self.has_world or not self.policy.restarts.needs_world)

    @property
    def waiting(self) -> int:
        """How many workers wait for the generation that is being formed."""
        return self.count(WorkerState.WAITING)

    @property
    def awaited(self) -> int:
        """How many workers must join before a generation, or a resize, can follow from joins."""
        is_new = self.phase is Phase.RUNNING or not self.number
        return self.count(WorkerState.INTENDED if is_new else WorkerState.MEMBER)

    @property
    def ended(self) -> int:
        """How many workers have ended."""
        return self.count(WorkerState.ENDED)

    @property
    def slots_offered(self) -> int:
        """How many slots the offered hosts have."""
        return sum(self.slots.values())

    @property
    def start_progress(self) -> StartProgress | None:
        """The progress of the start; None when it is over, or can never be complete."""
        if self.phase is not Phase.FORMING or self.generation is not None or self.ended:
            return None
        if not self.workers:
            return StartProgress(0, 0, 0, self.policy.slots_to_start, self.slots_offered)
        connected = sum(heard is not None for heard in self.last_heard.values())
        return StartProgress(connected, len(self.last_heard), self.waiting, len(self.workers))

    @property
    def has_stopped(self) -> bool:
        """A worker has exited as one does after a stop notice."""
        return any(record.is_done and record.returncode == TEMPORARY_FAILURE for record in self.workers.values())

    @property
    def least_size(self) -> int:
        """How many workers a generation needs; after a stop notice for the job one is enough to save the state."""
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
        """The worker is in the newest generation, or, before the first one, was started for it."""
        return record.generation == self.number

    def find_rank(self, worker: Worker) -> int:
        """The rank of the worker's slot in the newest generation; before the first one, by placement."""
        return self.workers[worker.slot].assignment.rank

    def ends_well(self, returncode: int) -> bool:
        """A worker that exits with this code has not failed."""
        return returncode == 0 or (self.stops_at is not None and returncode == TEMPORARY_FAILURE)

    def is_killed_by_notice(self, worker: Worker, returncode: int) -> bool:
        """A stop notice (SIGUSR2) has killed this worker, which has not joined and so could not handle it."""
        return returncode == -SIGUSR2 and self.workers[worker.slot].state is WorkerState.INTENDED

    def enter(self, phase: Phase) -> Self:
        """The state in another phase.

        Raises:
            ValueError: the table has no such transition.
        """
        check_transition(PHASES, self.phase, phase)
        return replace(self, phase=phase)

    def with_end(self, outcome: Outcome) -> Self:
        """The state in which this ends the job, or, where that is a loss and the job may restart, the round."""
        if self.restart is not None:
            return self
        if self.may_restart and self.stops_at is None and outcome.cause in _RESTARTABLE:
            return replace(self, restart=Restart(outcome, is_blamed=not self.is_one_world, since=self.clock))
        return replace(self, outcome=outcome)

    def with_surer_cause(self, other: Outcome) -> Self:
        """The state in which another worker or host, which has ended by itself too, explains the restart better."""
        restart = self.restart
        if restart is None or restart.is_planned or other.certainty <= restart.outcome.certainty:
            return self
        return replace(self, restart=replace(restart, outcome=other, is_blamed=False))

    def with_follower(self, rank: int, blame: Blame | None) -> Self:
        """The state in which this rank has failed after the failure that decided the outcome."""
        return replace(self, followers=(*self.followers, (rank, "" if blame is None else blame.reason)))

    def with_interruption(self, reason: str) -> Self:
        """The state in which the newest generation cannot continue; the first reason is kept."""
        return replace(self, interruption=self.interruption or reason)

    def with_offer(self, hosts: tuple[Host, ...]) -> Self:
        """The state in which these hosts are listed; those that are not drained are offered."""
        names = {host.name for host in hosts}
        return replace(self, listed=hosts, unanswered=self.unanswered & names).with_drained(
            {host: when for host, when in self.drained.items() if host in names or host in self.hosts}
        )

    def with_drained(self, drained: Mapping[str, float]) -> Self:
        """The state in which these hosts have a stop notice, and the other listed ones are offered."""
        slots = {host.name: host.slots for host in self.listed if host.name not in drained}
        return replace(self, drained=drained, slots=slots, settled_until=0.0)

    def with_records(self, records: Iterable[WorkerRecord]) -> Self:
        """The state with these records in their slots, and the counts that follow."""
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
        """The state with these records, also in slots that have had no worker yet; their hosts are in use."""
        listed = tuple(records)
        new = {record.worker.slot: record for record in listed if record.worker.slot not in self.workers}
        used = dict.fromkeys((*self.hosts, *(record.worker.slot.host for record in listed)))
        counts = Counter(self.counts) + Counter(record.state for record in new.values())
        workers = self.workers
        if new:
            workers = Table.of((*self.workers.items(), *new.items()))
        former = [record for record in listed if record.worker.slot not in new]
        return replace(self, workers=workers, counts=dict(counts)).with_records(former).with_hosts(used)

    def with_host_ended(self, host: str, returncode: int | None = None) -> Self:
        """The state in which all workers of a lost host have ended; returncode: None, since none was reported."""
        return self.with_records(
            replace(record, state=WorkerState.ENDED, report=None, returncode=returncode)
            for record in self.on(host)
            if record.state is not WorkerState.ENDED
        )

    def dismiss(self, host: str, *, is_lost: bool) -> Self:
        """The state in which this host is not in use; its records stay, to recognise late calls of its workers."""
        ended = self.tenures.get(host, 0) + 1
        left = self.left if is_lost else {**self.left, host: (*self.left.get(host, ()), ended)}
        state = self.with_hosts(other for other in self.hosts if other != host)
        files_since = None if host in self.round_hosts else self.files_since
        return replace(state, tenures={**self.tenures, host: ended}, left=left, files_since=files_since)

    def with_hosts(self, used: Iterable[str]) -> Self:
        """The state in which these hosts are in use."""
        slots: dict[str, list[Slot]] = {host: [] for host in used}
        for slot in self.workers:
            if slot.host in slots:
                slots[slot.host].append(slot)
        heard = Table.of((host, self.last_heard.get(host)) for host in slots)
        return replace(self, hosts={host: tuple(each) for host, each in slots.items()}, last_heard=heard)
