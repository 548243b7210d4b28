"""The values that membership is made of: hosts, slots, workers, generations, policy."""

from dataclasses import dataclass, field
from typing import Self


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
    """A place for one worker, written `a:0`."""

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
        return f"{self.slot}" if self.incarnation == 1 else f"{self.slot}#{self.incarnation}"


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
    """One numbered membership: who is in, in rank order."""

    number: int
    members: tuple[Worker, ...]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where something listens: an address that the other members can reach, and a port."""

    address: str
    port: int

    def __str__(self) -> str:
        return f"[{self.address}]:{self.port}" if ":" in self.address else f"{self.address}:{self.port}"


@dataclass(frozen=True, slots=True)
class Policy:
    """How many workers at least and at most, how many failures are allowed, and the time limits, in seconds.

    A static job is the case min_size == max_size with no failure allowed.
    """

    min_size: int
    max_size: int
    failures_allowed: int = 0
    start_timeout_seconds: float = 120.0  # from the first join, or from the start until all agents have reported
    lease_seconds: float = 30.0  # how long an agent may be silent
    grace_seconds: float = 5.0  # between SIGTERM and SIGKILL

    def __post_init__(self) -> None:
        if not 1 <= self.min_size <= self.max_size:
            raise ValueError(f"a job of {self.min_size} to {self.max_size} workers is impossible")
        if self.failures_allowed < 0:
            raise ValueError(f"{self.failures_allowed} failures cannot be allowed; 0 is the least")
        if not (self.start_timeout_seconds > 0 and self.lease_seconds > 0 and self.grace_seconds >= 0):
            raise ValueError("the start timeout and the lease must be longer than 0, and the grace not negative")

    @classmethod
    def static(
        cls,
        size: int,
        *,
        start_timeout_seconds: float = 120.0,
        lease_seconds: float = 30.0,
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


@dataclass(frozen=True, slots=True)
class Membership:
    """What a worker is told of a generation it is in.

    key: the generation's secret, by which its members know each other.
    """

    generation: int
    assignment: Assignment
    key: bytes = field(repr=False)
