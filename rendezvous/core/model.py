"""The values of membership: hosts, slots, workers, generations, the policy; and how members are numbered."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self

from rendezvous.core.reports import Action, RecoveryDecision

UNBOUNDED = 2**31 - 1  # workers: as many as there are slots
LEAST_REPORT_SECONDS = 60.0
DEFAULT_LEASE_SECONDS = 30.0
ELASTIC_LEASE_SECONDS = 5.0  # of an elastic job; shorter, because a loss does not end the job
LEASES_PER_REPORT = 12
REPORTS_PER_LEASE = 6  # heartbeats of an agent that has nothing new to report


def limit_silence(lease_seconds: float) -> float:
    """How long an agent may be silent after its last report: one lease, counted from when its next report is due."""
    return lease_seconds * (1 + 1 / REPORTS_PER_LEASE)


@dataclass(frozen=True, slots=True)
class Host:
    """A machine that offers slots."""

    name: str
    slots: int

    def __post_init__(self) -> None:
        if not self.name:
            raise ValueError("a host needs a name")
        if self.slots < 1:
            raise ValueError(f"host {self.name!r} offers {self.slots} slots; it must offer at least one")


@dataclass(frozen=True, slots=True, order=True)
class Slot:
    """The place of one worker, written `a:0`."""

    host: str
    index: int

    def __str__(self) -> str:
        return f"{self.host}:{self.index}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `host:index`; the host may itself contain colons (IPv6)."""
        host, separator, index = text.rpartition(":")
        if not separator or not host or not index.isdecimal():
            raise ValueError(f"{text!r} is not a slot; it is written host:index, as in server1:0")
        return cls(host, int(index))


@dataclass(frozen=True, slots=True, order=True)
class Worker:
    """One start of the training process in a slot; each further start is a new incarnation, counted from 1."""

    slot: Slot
    incarnation: int

    def __str__(self) -> str:
        if self.incarnation == 1:
            return f"{self.slot}"
        return f"{self.slot}#{self.incarnation}"


@dataclass(frozen=True, slots=True)
class Assignment:
    """A worker's numbers in one generation.

    local: among the members on the same host. cross: among the members with the same local rank on different hosts.
    """

    rank: int
    size: int
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int


@dataclass(frozen=True, slots=True)
class Generation:
    """One numbered membership: its members, in rank order."""

    number: int
    members: tuple[Worker, ...]


LOOPBACK = "127.0.0.1"  # an address that no other machine reaches


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The address and port of a listener, which the other members can reach."""

    address: str
    port: int

    def __str__(self) -> str:
        if ":" in self.address:
            return f"[{self.address}]:{self.port}"
        return f"{self.address}:{self.port}"


@dataclass(frozen=True, slots=True)
class Recovery:
    """How an elastic job recovers from failures; a static job ignores it. Times are in seconds.

    reset_limit: how many generations may follow another without a call of `init()` by all members; None: any number.
    elastic_timeout_seconds: how long the job waits for enough slots to start, and for enough workers to continue.
    cooldown_seconds: how long a host is closed the first time, and at most; each further time takes twice as long.
    failures_per_slot: as many failures of workers without progress close a slot. When half of its slots are closed, a
        host is closed.
    forgiveness_seconds: a failure is forgotten after this time without another one.
    gathering_seconds: how long the first new worker that has joined waits for others that are starting. At the start of
        the job, how long enough workers wait for hosts whose agent has not reported.
    """

    reset_limit: int | None = None
    elastic_timeout_seconds: float = 600.0
    cooldown_seconds: tuple[float, float] = (10.0, 100.0)
    failures_per_slot: int = 3
    forgiveness_seconds: float = 600.0
    gathering_seconds: float = 5.0

    def __post_init__(self) -> None:
        least, most = self.cooldown_seconds
        if not 0 <= least <= most:
            raise ValueError(f"a cooldown of {least:g} to {most:g} s is impossible")
        if (self.reset_limit is not None and self.reset_limit < 0) or self.failures_per_slot < 1:
            raise ValueError("the reset limit must not be negative, and at least one failure must close a slot")
        if self.elastic_timeout_seconds <= 0:
            raise ValueError("the elastic timeout must be longer than 0")


@dataclass(frozen=True, slots=True)
class Restarts:
    """How often all workers are started again, in a new round, after a loss that would end the job. Times in seconds.

    limit: how many losses are allowed to do that; None: any number.
    grace_seconds: between SIGTERM and SIGKILL after a loss: the survivors can do nothing useful together.
    planned_grace_seconds: the same in a planned round, when they can.
    grow_after_seconds: how long there must be slots for more workers until a planned round uses them; None: no round is
        planned for them, and the next one uses them.
    needs_world: only where the workers are known to be a world of torch.distributed, which cannot continue without one.
        With a limit of 0 the first loss then ends the job.
    has_checkpoint: workers that call `init()` begin with the newest checkpoint of the job, not from the beginning.
    """

    limit: int | None = 0
    grace_seconds: float = 2.0
    planned_grace_seconds: float = 30.0
    grow_after_seconds: float | None = None
    needs_world: bool = False
    has_checkpoint: bool = False

    def __post_init__(self) -> None:
        if self.limit is not None and self.limit < 0:
            raise ValueError(f"{self.limit} restarts are impossible; 0 is the least")
        if not (self.grace_seconds >= 0 and self.planned_grace_seconds >= 0):
            raise ValueError("the grace before a restart must not be negative")


@dataclass(frozen=True, slots=True)
class Round:
    """The start of all workers of a job together: the first, or one of its restarts.

    number: how many restarts came before it.
    group_rank, group_size: the place of the worker's host among the hosts of the round, and how many these are.
    master: where rank 0 may open its own torch store; None on the host of rank 0, which reserves a port for it.
    files_since: the number of the round since which one host alone has run all workers, and has kept the files of their
        snapshots; None where this round has several hosts.
    """

    number: int
    group_rank: int
    group_size: int
    master: Endpoint | None = None
    files_since: int | None = None


@dataclass(frozen=True, slots=True)
class Policy:
    """The least and the largest number of workers, how many failures are allowed, and the time limits, in seconds.

    A static job has min_size == max_size, and no failure is allowed.

    failures_allowed: the job continues in place after as many failures; None: any number.
    start_size: the job starts when as many slots are offered; None: min_size.
    """

    min_size: int
    max_size: int
    failures_allowed: int | None = 0
    start_timeout_seconds: float = 120.0  # from the first join, or from the start until all agents have reported
    lease_seconds: float = DEFAULT_LEASE_SECONDS  # how long an agent may be silent after its next report is due
    grace_seconds: float = 5.0  # between SIGTERM and SIGKILL
    start_size: int | None = None
    recovery: Recovery = Recovery()
    restarts: Restarts = Restarts()

    def __post_init__(self) -> None:
        if not 1 <= self.min_size <= self.max_size:
            raise ValueError(f"a job of {self.min_size} to {self.max_size} workers is impossible")
        if self.failures_allowed is not None and self.failures_allowed < 0:
            raise ValueError(f"{self.failures_allowed} failures cannot be allowed; 0 is the least")
        if not (self.start_timeout_seconds > 0 and self.lease_seconds > 0 and self.grace_seconds >= 0):
            raise ValueError("the start timeout and the lease must be longer than 0, and the grace not negative")
        if self.restarts.needs_world and not self.is_elastic:
            raise ValueError("only a job that may continue in place finds out whether its workers are one world")
        if self.start_size is not None and not self.min_size <= self.start_size <= self.max_size:
            raise ValueError(f"a job of {self.min_size} to {self.max_size} workers cannot start with {self.start_size}")

    @property
    def is_elastic(self) -> bool:
        """Failures are allowed: the job may lose workers, and hosts may be added and removed."""
        return self.failures_allowed != 0

    @property
    def may_restart(self) -> bool:
        """All workers may be started again, in a new round."""
        return self.restarts.limit != 0

    @property
    def outlives_losses(self) -> bool:
        """The job may continue after a loss, in place or by a restart, and with other hosts."""
        return self.is_elastic or self.may_restart

    @property
    def is_fixed(self) -> bool:
        """The number of workers never changes."""
        return self.min_size == self.max_size

    @property
    def slots_to_start(self) -> int:
        """The workers are started when as many slots are offered."""
        if self.start_size is None:
            return self.min_size
        return self.start_size

    @property
    def silence_seconds(self) -> float:
        """How old an agent's last report may be."""
        return limit_silence(self.lease_seconds)

    @property
    def report_seconds(self) -> float:
        """How long a survivor may take to report after an interruption: a busy interpreter is not dead."""
        return max(LEAST_REPORT_SECONDS, LEASES_PER_REPORT * self.lease_seconds)

    def allows(self, failures: int) -> bool:
        """The job survives this many failures."""
        return self.failures_allowed is None or failures <= self.failures_allowed

    @classmethod
    def static(
        cls,
        size: int,
        *,
        start_timeout_seconds: float = 120.0,
        lease_seconds: float = DEFAULT_LEASE_SECONDS,
        grace_seconds: float = 5.0,
    ) -> Self:
        """The policy of a job of exactly `size` workers that ends with its first failure."""
        return cls(
            min_size=size,
            max_size=size,
            start_timeout_seconds=start_timeout_seconds,
            lease_seconds=lease_seconds,
            grace_seconds=grace_seconds,
        )

    @classmethod
    def elastic(
        cls,
        min_size: int,
        max_size: int | None,
        start_size: int,
        *,
        recovery: Recovery = Recovery(),
        restarts: Restarts = Restarts(),
        continues_in_place: bool = True,
        start_timeout_seconds: float = 120.0,
        lease_seconds: float = ELASTIC_LEASE_SECONDS,
        grace_seconds: float = 5.0,
    ) -> Self:
        """The policy of a job that survives any number of failures; max_size None: as many workers as there are slots.

        A job whose `min_size` is above `start_size` starts with that many. One that does not continue in place starts
        all workers again after a failure, as its restarts allow.
        """
        return cls(
            min_size=min_size,
            max_size=UNBOUNDED if max_size is None else max_size,
            failures_allowed=None if continues_in_place else 0,
            start_timeout_seconds=start_timeout_seconds,
            lease_seconds=lease_seconds,
            grace_seconds=grace_seconds,
            start_size=max(min_size, start_size),
            recovery=recovery,
            restarts=restarts,
        )


@dataclass(frozen=True, slots=True)
class Membership:
    """What a worker receives about its generation.

    key: the generation's secret, with which its members authenticate each other.
    decision: what all members do with the operations that the last generation left pending.
    """

    generation: int
    assignment: Assignment
    key: bytes = field(repr=False)
    decision: RecoveryDecision = RecoveryDecision(Action.BEGIN)  # noqa: RUF009 - an immutable value may be shared


def rank(members: Sequence[Slot]) -> tuple[Assignment, ...]:
    """Number the members in the order given: the rank is the position, the other numbers follow from the hosts.

    local_rank counts the members on the same host in rank order. cross_rank counts, in rank order, the members of
    equal local_rank on different hosts, so cross_size is the number of hosts that have that local rank (it differs
    between local ranks when the hosts hold unequally many members).
    """
    local_sizes = Counter(slot.host for slot in members)
    locals_seen: Counter[str] = Counter()
    crosses_seen: Counter[int] = Counter()
    positions = []
    for slot in members:
        local_rank = locals_seen[slot.host]
        positions.append((local_rank, crosses_seen[local_rank]))
        locals_seen[slot.host] += 1
        crosses_seen[local_rank] += 1

    return tuple(
        Assignment(
            rank=position,
            size=len(members),
            local_rank=local_rank,
            local_size=local_sizes[slot.host],
            cross_rank=cross_rank,
            cross_size=crosses_seen[local_rank],
        )
        for position, (slot, (local_rank, cross_rank)) in enumerate(zip(members, positions, strict=True))
    )
