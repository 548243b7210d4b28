"""What membership remembers between two events; frozen, so that a refused event changes nothing."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Self

from rendezvous.core.model import Assignment, Generation, Policy, Slot, Worker
from rendezvous.core.outcome import Outcome
from rendezvous.core.table import Table


class Phase(StrEnum):
    """Where the job stands; `membership` holds the story and the diagram."""

    FORMING = "forming"
    RUNNING = "running"
    DRAINING = "draining"
    FINISHED = "finished"


class Standing(StrEnum):
    """Where a worker stands."""

    INTENDED = "intended"  # to be started, or started and not heard of
    WAITING = "waiting"  # has joined, and waits for a generation
    MEMBER = "member"  # is in the newest generation
    REFUSED = "refused"  # has joined, and was told that it will be in no further generation
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class WorkerRecord:
    """The intended incarnation of one slot, and where it stands."""

    worker: Worker
    assignment: Assignment  # by placement, then that of the newest generation
    standing: Standing = Standing.INTENDED
    returncode: int | None = None


@dataclass(frozen=True, slots=True)
class State:
    """One job's membership.

    placement: the slots in use, in rank order, and hosts: the same by host.
    workers: one record per slot of the placement.
    last_heard: when each host's agent last reported, or when it was begun; None before it has.
    waiting: how many workers stand WAITING, and ended: how many ENDED (counted along, so that a join costs no scan).
    generation: the newest one; its number only grows.
    failures: how many workers have failed so far.
    waiting_since: since when somebody has stood WAITING; None while nobody does.
    refusal: why there will be no further generation; set by the first worker that ends well, and nobody waits then.
    outcome: set from draining on.
    deadline: when draining ends at the latest.
    """

    policy: Policy
    phase: Phase = Phase.FORMING
    now: float = 0.0
    started: float | None = None
    placement: tuple[Slot, ...] = ()
    hosts: Mapping[str, tuple[Slot, ...]] = field(default_factory=dict)
    workers: Table[Slot, WorkerRecord] = Table.of(())  # noqa: RUF009 - an immutable value may be shared
    last_heard: Table[str, float | None] = Table.of(())  # noqa: RUF009 - the same
    waiting: int = 0
    ended: int = 0
    generation: Generation | None = None
    failures: int = 0
    waiting_since: float | None = None
    refusal: str | None = None
    outcome: Outcome | None = None
    deadline: float | None = None

    @property
    def number(self) -> int:
        """The newest generation's number; 0 before the first."""
        return 0 if self.generation is None else self.generation.number

    def standing(self, *standings: Standing) -> tuple[WorkerRecord, ...]:
        """The records that stand so, in rank order of the placement."""
        return tuple(record for record in self.workers.values() if record.standing in standings)

    def on(self, host: str) -> tuple[WorkerRecord, ...]:
        """The records of one host, in rank order of the placement."""
        return tuple(self.workers[slot] for slot in self.hosts[host])

    def alive(self) -> tuple[WorkerRecord, ...]:
        """The records of workers that have not ended."""
        return tuple(record for record in self.workers.values() if record.standing is not Standing.ENDED)

    def rank_of(self, worker: Worker) -> int:
        """The rank of the worker's slot in the newest generation, before the first by placement."""
        return self.workers[worker.slot].assignment.rank

    def with_records(self, records: Iterable[WorkerRecord]) -> Self:
        """The state with these records in place of their slots' former ones; the counts follow."""
        workers = self.workers
        waiting, ended = self.waiting, self.ended
        for record in records:
            slot = record.worker.slot
            former = workers[slot].standing
            waiting += (record.standing is Standing.WAITING) - (former is Standing.WAITING)
            ended += (record.standing is Standing.ENDED) - (former is Standing.ENDED)
            workers = workers.replace(slot, record)
        since = self.now if self.waiting_since is None else self.waiting_since
        return replace(self, workers=workers, waiting=waiting, ended=ended, waiting_since=since if waiting else None)

    def with_host_ended(self, host: str) -> Self:
        """The state without the workers of a host whose agent is gone: it has taken them along."""
        return self.with_records(
            replace(record, standing=Standing.ENDED)
            for record in self.on(host)
            if record.standing is not Standing.ENDED
        )
