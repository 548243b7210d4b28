"""Programs for simulated ranks: what each asks, in which order, and when it waits. Made by chance, from one `Random`.

A job is a list of phases, each ended by a join or by nothing. A phase is a list of windows. In a window every rank asks
the operations of its sets, in an order of its own, then waits for them, in an order of its own; now and then it waits
for one on its way, as for a collective inside backward. So all ends, unless one of the `Trouble`s is put in.
"""

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from worker_runtime.coordination.ordering.requests import Kind, Reduction, Signature

EVERYBODY = "all"  # how programs call the set 0; others are called by the order in which they are added
USUAL = (*(kind for kind in Kind if kind not in (Kind.JOIN, Kind.ADD_SET, Kind.REMOVE_SET, Kind.FAIL)), Kind.ALLREDUCE)


@dataclass(frozen=True, slots=True)
class Operation:
    """What a rank asks; its set is called by a word, since the number is known only when the set is added."""

    where: str
    name: str
    signature: Signature
    sizes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Ask:
    """Ask and continue."""

    operation: Operation


@dataclass(frozen=True, slots=True)
class Wait:
    """Wait for the response to what was asked under this name, with the rank's only thread."""

    where: str
    name: str


@dataclass(frozen=True, slots=True)
class Add:
    """Ask for a new process set, to be called by this word."""

    where: str
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Remove:
    """Remove a process set."""

    where: str


@dataclass(frozen=True, slots=True)
class Join:
    """Join, and wait until all have."""


@dataclass(frozen=True, slots=True)
class Leave:
    """Wait for all that was asked, and say goodbye."""


@dataclass(frozen=True, slots=True)
class Hang:
    """Never do anything again."""


Instruction = Ask | Wait | Add | Remove | Join | Leave | Hang


class Trouble(StrEnum):
    """What is wrong with a job."""

    NONE = "none"
    SIGNATURES = "one rank's signature differs now and then"
    PARAMETERS = "one rank uses other parameters than the others"
    CROSSED = "ranks wait for each operation before they ask the next, each in its own order"
    FAILING = "one rank's calls fail there now and then, before anything is sent"
    EARLY_LEAVE = "one rank leaves early"
    HANG = "one rank hangs"
    LOSS = "one rank is lost"


@dataclass(frozen=True, slots=True)
class Job:
    """Programs by rank, and what is wrong with them."""

    programs: tuple[tuple[Instruction, ...], ...]
    trouble: Trouble
    culprit: int

    @property
    def size(self) -> int:
        """How many ranks there are."""
        return len(self.programs)


class Author:
    """Writes a job."""

    def __init__(self, chance: random.Random, trouble: Trouble | None = None) -> None:
        self.chance = chance
        self.size = chance.randint(2, 5)
        self.trouble = trouble or chance.choice(list(Trouble))
        self.culprit = chance.randrange(self.size)
        self.sets: dict[str, tuple[int, ...]] = {EVERYBODY: tuple(range(self.size))}
        self.programs: list[list[Instruction]] = [[] for _ in range(self.size)]
        self.added = 0
        self.kinds = chance.sample(USUAL, 3)  # few, so that names come again

    def write(self) -> Job:
        """All of it."""
        if self.chance.random() < 0.6:
            self._add_ring()
        phases = self.chance.randint(1, 3)
        for phase in range(phases):
            self._write_phase(is_last=phase == phases - 1)
        for program in self.programs:
            program.append(Leave())
        self._make_trouble()
        return Job(tuple(tuple(program) for program in self.programs), self.trouble, self.culprit)

    def _write_phase(self, *, is_last: bool) -> None:
        """Some windows; in half of the phases ranks join, each after as many windows as it has data for."""
        windows = self.chance.randint(1, 6)
        is_joined = self.chance.random() < 0.4
        patience = [self.chance.randint(0, windows) if is_joined else windows for _ in range(self.size)]
        for window in range(windows):
            active = {rank for rank in range(self.size) if window < patience[rank]}
            self._write_window(active)
        if is_joined or not is_last:
            for program in self.programs:
                program.append(Join())

    def _write_window(self, active: set[int]) -> None:
        choice = self.chance.random()
        if choice < 0.2:
            self._add(tuple(sorted(self.chance.sample(range(self.size), self.chance.randint(1, self.size)))), active)
        elif choice < 0.45 and len(self.sets) > 1:
            self._remove(self.chance.choice([where for where in self.sets if where != EVERYBODY]), active)
        else:
            self._write_operations(active)

    def _add_ring(self) -> None:
        for rank in range(self.size):
            self._add(tuple(sorted({rank, (rank + 1) % self.size})), set(range(self.size)))

    def _add(self, ranks: tuple[int, ...], active: set[int]) -> None:
        where = f"set {self.added}"
        self.added += 1
        for rank in active:
            self.programs[rank].append(Add(where, ranks))
        if len(active) == self.size:
            self.sets[where] = ranks

    def _remove(self, where: str, active: set[int]) -> None:
        """Remove a set; a rank has perhaps asked there what no other asks."""
        asker = self.chance.choice(self.sets[where])
        if len(active) == self.size and self.chance.random() < 0.7:
            self.programs[asker].append(Ask(self._make_operation(where, f"alone.{len(self.programs[asker])}")))
        for rank in active:
            self.programs[rank].append(Remove(where))
        if len(active) == self.size:
            del self.sets[where]

    def _write_operations(self, active: set[int]) -> None:
        """Under a few names that come again and again; each operation in one of the sets that there are."""
        operations = [
            self._make_operation(self.chance.choice([EVERYBODY, *self.sets]), f"n{number}")
            for number in range(self.chance.randint(1, 5))
        ]
        inner = self._make_operation(EVERYBODY, "inner") if self.chance.random() < 0.3 else None
        for rank in active:
            own = [self._vary(operation, rank) for operation in operations if rank in self.sets[operation.where]]
            if self.trouble is Trouble.PARAMETERS and rank == self.culprit:
                own = [operation for operation in own if self.chance.random() < 0.9]
            self.chance.shuffle(own)
            if self.trouble is Trouble.CROSSED and self.chance.random() < 0.3:
                for operation in [*own, inner] if inner is not None else own:
                    self.programs[rank] += [Ask(operation), Wait(operation.where, operation.name)]
                continue
            waits = [Wait(operation.where, operation.name) for operation in own]
            asks: list[Instruction] = [Ask(operation) for operation in own]
            if self.trouble is Trouble.FAILING and rank == self.culprit:
                asks = [Ask(self._fail(operation)) for operation in own]
                waits = []  # for what has failed no rank waits
            if inner is not None:  # each rank has asked some of the others when it comes to it
                place = self.chance.randint(0, len(asks))
                asks[place:place] = [Ask(inner), Wait(inner.where, inner.name)]
            self.chance.shuffle(waits)
            self.programs[rank] += [*asks, *waits]

    def _make_operation(self, where: str, name: str) -> Operation:
        kind = self.chance.choice(self.kinds)
        signature = Signature(kind)
        match kind:
            case Kind.ALLREDUCE:
                signature = Signature(kind, ("float32",), ((4,),), self.chance.choice(list(Reduction)))
            case Kind.ALLGATHER:
                signature = Signature(kind, ("float32",), ((3,),), tolerates_joined=self.chance.random() < 0.3)
            case Kind.BROADCAST:
                signature = Signature(kind, ("float32",), ((4,),), root=self.sets[where][0])
            case Kind.ALLTOALL:
                signature = Signature(kind, ("float32",), ((),))
            case Kind.REDUCESCATTER:
                signature = Signature(kind, ("float32",), ((4,),), Reduction.SUM)
        return Operation(where, f"{kind.name.lower()}.{name}", signature)

    def _fail(self, operation: Operation) -> Operation:
        """Ask, or fail, two times of three."""
        failure = replace(operation, signature=Signature(Kind.FAIL, note="ValueError: wrong"), sizes=())
        return self.chance.choice([failure, failure, operation])

    def _vary(self, operation: Operation, rank: int) -> Operation:
        """As this rank asks it: with its own sizes, and now and then with another signature."""
        counts = {Kind.ALLGATHER: 1, Kind.ALLTOALL: len(self.sets[operation.where])}
        count = counts.get(operation.signature.kind, 0)
        sizes = tuple(self.chance.randint(0, 3) for _ in range(count))
        signature = operation.signature
        if self.trouble is Trouble.SIGNATURES and rank == self.culprit and self.chance.random() < 0.6:
            signature = self.chance.choice(list(_find_variants(signature)))
        return replace(operation, signature=signature, sizes=sizes)

    def _make_trouble(self) -> None:
        program = self.programs[self.culprit]
        place = self.chance.randint(0, len(program))
        if self.trouble is Trouble.HANG:
            program[place:] = [Hang()]
        elif self.trouble is Trouble.EARLY_LEAVE:
            program[place:] = [Leave()]
        elif self.trouble is Trouble.PARAMETERS:
            extra = self._make_operation(EVERYBODY, "extra")
            program[place:place] = [Ask(extra), Wait(extra.where, extra.name)]


def _find_variants(signature: Signature) -> Iterable[Signature]:
    yield replace(signature, dtypes=("float64",) * len(signature.dtypes), note="other")
    yield replace(signature, shapes=((5, 5),) * len(signature.shapes))
    yield replace(signature, reduction=Reduction.PRODUCT, device="cuda")
    yield replace(signature, kind=Kind.ALLREDUCE, payload_dtype="float32")


def write_job(chance: random.Random, troubles: Sequence[Trouble] = tuple(Trouble)) -> Job:
    """Some job with one of these troubles."""
    return Author(chance, chance.choice(troubles)).write()
