"""Random programs of collectives: what all ranks call, made from one seed, so that every rank makes the same.

A program is a list of segments. Before a segment's calls, process sets come and go. Its synchronous calls are made by
all ranks in one order, as Horovod demands, whatever sets they are of; its asynchronous ones by each rank wherever it
likes; what is pending may be waited for in a later segment. So no program hangs by itself.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

GLOBAL = 0  # how programs call the set of all ranks; others are called by the order in which they are added
AVERAGE, SUM, ADASUM, MIN, MAX, PRODUCT = range(6)

FLOATS = ("float16", "bfloat16", "float32", "float64")
INTEGERS = ("int8", "uint8", "int16", "int32", "int64")
COMPLEX = ("complex64", "complex128")
MOVED = (*FLOATS, *INTEGERS, *COMPLEX, "bool", "uint16", "float8_e5m2")
DTYPES = {
    AVERAGE: (*FLOATS, *INTEGERS, *COMPLEX),
    SUM: (*FLOATS, *INTEGERS, *COMPLEX),
    ADASUM: FLOATS,
    MIN: (*FLOATS, *INTEGERS, "bool"),
    MAX: (*FLOATS, *INTEGERS, "bool"),
    PRODUCT: (*FLOATS, *INTEGERS),
}
LAYOUTS = ("plain", "plain", "transposed", "strided", "offset", "expanded")


class Kind(StrEnum):
    """What a call does."""

    ALLREDUCE = "allreduce"
    GROUPED_ALLREDUCE = "grouped_allreduce"
    SPARSE_ALLREDUCE = "sparse_allreduce"
    ALLGATHER = "allgather"
    GROUPED_ALLGATHER = "grouped_allgather"
    BROADCAST = "broadcast"
    ALLTOALL = "alltoall"
    REDUCESCATTER = "reducescatter"
    GROUPED_REDUCESCATTER = "grouped_reducescatter"
    BROADCAST_OBJECT = "broadcast_object"
    ALLGATHER_OBJECT = "allgather_object"
    BARRIER = "barrier"


ALLREDUCES = (Kind.ALLREDUCE, Kind.GROUPED_ALLREDUCE)
GROUPED = (Kind.GROUPED_ALLREDUCE, Kind.GROUPED_ALLGATHER, Kind.GROUPED_REDUCESCATTER)
SCATTERS = (Kind.REDUCESCATTER, Kind.GROUPED_REDUCESCATTER)
GATHERS = (Kind.ALLGATHER, Kind.GROUPED_ALLGATHER)
TOLERANT = (*ALLREDUCES, Kind.SPARSE_ALLREDUCE)  # run though a rank has joined
ALWAYS_SYNCHRONOUS = (Kind.BROADCAST_OBJECT, Kind.ALLGATHER_OBJECT, Kind.BARRIER)
# What one rank may do otherwise, so that all are refused.
SPOILS = {
    Kind.ALLREDUCE: ("dtype", "shape", "op", "factor"),
    Kind.GROUPED_ALLREDUCE: ("dtype", "shape", "op", "factor", "count"),
    Kind.SPARSE_ALLREDUCE: ("shape", "op"),
    Kind.ALLGATHER: ("dtype", "row", "dimensions"),
    Kind.GROUPED_ALLGATHER: ("dtype", "row", "count"),
    Kind.BROADCAST: ("dtype", "shape", "root"),
    Kind.ALLTOALL: ("dtype", "row"),
    Kind.REDUCESCATTER: ("dtype", "shape", "op", "factor"),
    Kind.GROUPED_REDUCESCATTER: ("dtype", "shape", "op", "count"),
}


@dataclass(frozen=True, slots=True)
class Call:
    """One collective, as all members of its set call it.

    number: distinguishes calls.
    where, ranks: its set, and the ranks that are in it.
    name: None where calls are matched by their order.
    shapes: of each tensor; of what is gathered or exchanged, the first dimension is among `rows`.
    rows: of each member, how many rows it gives of each tensor (a gather) or to each member (an alltoall).
    root: a rank of the job.
    spoiler, spoil: a rank that asks something else, so that it is an error on all, and what.
    absent: ranks that join without having asked.
    """

    number: int
    kind: Kind
    where: int
    ranks: tuple[int, ...]
    name: str | None
    is_synchronous: bool
    is_in_place: bool
    dtypes: tuple[str, ...] = ()
    shapes: tuple[tuple[int, ...], ...] = ()
    rows: tuple[tuple[int, ...], ...] = ()
    op: int = SUM
    prescale: float = 1.0
    postscale: float = 1.0
    root: int = 0
    layout: str = "plain"
    spoiler: int | None = None
    spoil: str = ""
    absent: tuple[int, ...] = ()

    @property
    def is_refused(self) -> bool:
        """Every rank that asks it gets an error."""
        return self.spoiler is not None or (bool(self.absent) and self.kind not in TOLERANT)

    @property
    def size(self) -> int:
        """Of its set."""
        return len(self.ranks)


@dataclass(frozen=True, slots=True)
class Segment:
    """Calls between which each rank is free.

    added: sets to add before, by the word that calls them.
    removed: sets to remove before.
    manner: "plain", "threads" (one for each set) or "join" (at its end all join).
    """

    added: tuple[tuple[int, tuple[int, ...]], ...] = ()
    removed: tuple[int, ...] = ()
    calls: tuple[Call, ...] = ()
    manner: str = "plain"


@dataclass(slots=True)
class Maker:
    """Makes the program of one seed for a job of `size` ranks."""

    seed: int
    size: int
    chance: random.Random = field(init=False)
    _sets: dict[int, tuple[int, ...]] = field(init=False)
    _added: int = 0
    _called: int = 0

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)  # noqa: S311 - a program, no secret
        self._sets = {GLOBAL: tuple(range(self.size))}

    def make(self, segments: int) -> list[Segment]:
        """A program of so many segments."""
        return [self._make_segment() for _ in range(segments)]

    def _make_segment(self) -> Segment:
        manner = self.chance.choice(("plain", "plain", "plain", "threads", "join"))
        removed = tuple(where for where in list(self._sets) if where != GLOBAL and self.chance.random() < 0.25)
        for where in removed:
            del self._sets[where]
        added = []
        for _ in range(self.chance.choice((0, 1, 1, 2))):
            ranks = tuple(sorted(self.chance.sample(range(self.size), self.chance.randint(1, self.size - 1))))
            if ranks not in self._sets.values():
                self._added += 1
                self._sets[self._added] = ranks
                added.append((self._added, ranks))
        calls = [self._make_call(index) for index in range(self.chance.randint(4, 14))]
        if manner == "join":
            calls = self._leave_out(calls)
        return Segment(tuple(added), removed, tuple(calls), manner)

    def _make_call(self, index: int) -> Call:
        chance = self.chance
        self._called += 1
        kind = chance.choice((*Kind, *TOLERANT))
        where = chance.choice(list(self._sets))
        ranks = self._sets[where]
        is_synchronous = kind in ALWAYS_SYNCHRONOUS or chance.random() < 0.35
        # Names recur from segment to segment, so that known requests do, and refused ones.
        name = chance.choice((f"again {index}", f"again {index}", f"once {self._called}"))
        if is_synchronous and chance.random() < 0.4:
            name = None
        call = Call(
            self._called,
            kind,
            where,
            ranks,
            name,
            is_synchronous,
            is_in_place=kind in (*ALLREDUCES, Kind.BROADCAST) and chance.random() < 0.5,
            root=chance.choice(ranks),
            layout=chance.choice(LAYOUTS),
        )
        return self._spoil(self._choose_tensors(call))

    def _choose_tensors(self, call: Call) -> Call:
        chance, kind = self.chance, call.kind
        if kind is Kind.BARRIER:
            return call
        count = chance.randint(1, 5) if kind in GROUPED else 1
        if kind in (*ALLREDUCES, *SCATTERS, Kind.SPARSE_ALLREDUCE):
            ops = {Kind.SPARSE_ALLREDUCE: (SUM, AVERAGE)}.get(
                kind, (SUM, AVERAGE) if kind in SCATTERS else tuple(DTYPES)
            )
            call = replace(call, op=chance.choice(ops))
            dtypes = DTYPES[call.op]
            if kind is Kind.SPARSE_ALLREDUCE:  # many elements may add up, and each average is rounded
                dtypes = FLOATS if call.op == SUM else FLOATS[2:]
            if call.op != ADASUM and kind is not Kind.SPARSE_ALLREDUCE and chance.random() < 0.2:
                dtypes = [dtype for dtype in dtypes if dtype != "bool"]
                call = replace(call, prescale=chance.choice((2.0, 0.5)), postscale=chance.choice((1.0, 2.0)))
        else:
            dtypes = MOVED
        if call.is_in_place and call.layout == "expanded":
            call = replace(call, layout="strided")
        same = chance.choice(dtypes)
        names = tuple(same if chance.random() < 0.7 else chance.choice(dtypes) for _ in range(count))
        shapes = tuple(self._make_shape(call) for _ in names)
        return replace(call, dtypes=names, shapes=shapes, rows=self._make_rows(call, shapes))

    def _make_shape(self, call: Call) -> tuple[int, ...]:
        """Below and above what travels inside a request."""
        chance = self.chance
        most = 200_000 if chance.random() < 0.12 else 900
        if call.op == ADASUM or call.kind in (*GROUPED, Kind.SPARSE_ALLREDUCE):
            most = min(most, 50_000)
        count = chance.choice((0, 1, 3, 17, chance.randint(1, most), most))
        match chance.randint(0, 3):
            case 0 if call.kind in (Kind.ALLREDUCE, Kind.BROADCAST) and count == 1:
                return ()
            case 1:
                return (max(count // 6, 1), 2, 3) if count else (2, 0, 3)
            case 2:
                return (max(count // 4, 1), 4) if count else (0, 4)
        return (count,)

    def _make_rows(self, call: Call, shapes: Sequence[tuple[int, ...]]) -> tuple[tuple[int, ...], ...]:
        """Uneven, and for some nothing."""
        chance = self.chance
        if call.kind in GATHERS:
            return tuple(tuple(chance.choice((0, 1, shape[0], 2 * shape[0])) for shape in shapes) for _ in call.ranks)
        if call.kind is Kind.ALLTOALL:
            most = max(1, shapes[0][0] // call.size)
            return tuple(tuple(chance.choice((0, 1, most)) for _ in call.ranks) for _ in call.ranks)
        if call.kind is Kind.SPARSE_ALLREDUCE:  # how many elements
            return tuple((chance.choice((0, 1, 20)),) for _ in call.ranks)
        return ()

    def _spoil(self, call: Call) -> Call:
        ways = SPOILS.get(call.kind, ())
        if not ways or call.size == 1 or self.chance.random() > 0.12:
            return call
        return replace(call, spoiler=self.chance.choice(call.ranks), spoil=self.chance.choice(ways))

    def _leave_out(self, calls: Sequence[Call]) -> list[Call]:
        """Let ranks join before some calls: of the synchronous ones before all after a certain one."""
        last = {rank: self.chance.randint(0, len(calls)) for rank in range(self.size)}
        kept = []
        for index, call in enumerate(calls):
            if call.is_synchronous:
                absent = [rank for rank in call.ranks if last[rank] <= index]
            else:
                absent = [rank for rank in call.ranks if self.chance.random() < 0.25]
            if len(absent) < call.size:
                spoil = {"spoiler": None, "spoil": ""} if absent else {}
                kept.append(replace(call, absent=tuple(absent), **spoil))
        return kept
