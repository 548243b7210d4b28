"""A checker that holds the sequencer's rules to their laws while a job runs."""

from collections import Counter
from dataclasses import dataclass, field

from worker_runtime.coordination.ordering.ordering import JOIN_NAME, Ordering
from worker_runtime.coordination.ordering.requests import (
    GLOBAL_SET,
    Failure,
    Kind,
    Refusal,
    Release,
    Request,
    Response,
    Signature,
)

Name = tuple[int, str]  # a set's number and a name
TOLERANT = (Kind.ALLREDUCE, Kind.COMMIT)


def tolerates_joined(signature: Signature) -> bool:
    """Whether the operation runs without the ranks that have joined; the simulated programs request no agreement so."""
    return signature.kind in TOLERANT or signature.tolerates_joined


@dataclass
class Checker:
    """What the laws say, from a model of its own: who has asked what and has no response."""

    size: int
    open: list[dict[Name, tuple[Request, tuple[int, ...]]]] = field(default_factory=list)
    left: set[int] = field(default_factory=set)
    members: dict[int, tuple[int, ...]] = field(default_factory=dict)
    births: Counter[int] = field(default_factory=Counter)  # of the sets of a number
    next_index: int = 0
    phase: int = 0
    is_aligned: bool = True  # operations can be counted: there was no deadlock, and no join has failed
    operations: Counter[tuple[int, Name]] = field(default_factory=Counter)
    numbers: dict[tuple[int, Name], int] = field(default_factory=dict)  # of the operations that are open
    results: dict[tuple[object, ...], set[object]] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.open = [{} for _ in range(self.size)]
        self.members = {GLOBAL_SET: tuple(range(self.size))}

    def has_joined(self, rank: int) -> bool:
        """Whether it waits for the others to join."""
        return (GLOBAL_SET, JOIN_NAME) in self.open[rank]

    def note_request(self, rank: int, request: Request, sizes: tuple[int, ...]) -> None:
        """A rank asks."""
        name = (request.process_set, request.name)
        self.open[rank][name] = (request, sizes)
        self.operations[rank, name] += 1
        self.numbers[rank, name] = self.operations[rank, name]

    def note_response(self, response: Response) -> list[int]:
        """The rules have answered; the ranks that receive it."""
        match response:
            case Release():
                return self._note_release(response)
            case Refusal():
                return self._note_refusal(response)
            case Failure():
                self.counts["failure"] += 1
                return [rank for rank in range(self.size) if rank not in self.left]

    def check_pending(self, ordering: Ordering) -> None:
        """Nothing waits that could be answered, and what waits is what the model says."""
        askers: dict[Name, set[int]] = {}
        for rank in range(self.size):
            for name, (request, _) in self.open[rank].items():
                if request.signature.kind is Kind.FAIL:
                    continue  # no rank waits for it
                askers.setdefault(name, set()).add(rank)
        joined = {rank for rank in range(self.size) if self.has_joined(rank)}
        pendings = ordering.find_pending()
        assert [pending.number for pending in pendings] == sorted(pending.number for pending in pendings)
        assert {(p.request.process_set, p.request.name): set(p.asked) for p in pendings} == askers
        for pending in pendings:
            members = set(self.members[pending.request.process_set])
            name = (pending.request.process_set, pending.request.name)
            assert set(pending.missing) == {rank for rank in members - joined if name not in self.open[rank]}
            assert pending.missing, f"{pending} waits for no rank"
            assert not members & self.left

    def check_results(self) -> None:
        """The ranks' n-th operations of a name since the last join have one result."""
        assert [key for key, results in self.results.items() if len(results) > 1] == []

    def _note_release(self, release: Release) -> list[int]:
        request = release.request
        name = (request.process_set, request.name)
        kind = request.signature.kind
        assert release.index == self.next_index
        self.next_index += 1
        assert release.members == self.members[request.process_set]
        absent = tuple(rank for rank in release.members if name not in self.open[rank])
        assert release.joined == absent
        assert all(self.has_joined(rank) for rank in absent)
        asked = {rank: self.open[rank].pop(name) for rank in release.members if rank not in absent}
        assert asked
        assert all(mine.signature == request.signature for mine, _ in asked.values())
        assert not absent or tolerates_joined(request.signature)
        given = tuple(asked[rank][1] if rank in asked else None for rank in release.members)
        length = len(next(iter(asked.values()))[1])
        assert release.sizes == (tuple(own if own is not None else (0,) * length for own in given) if length else ())
        for rank in asked:
            self._note_result(name, release.index, self.numbers[rank, name])
        self._note_change(release)
        self.counts[f"{kind.name} released"] += 1
        self.counts["released with joined"] += bool(absent)
        self.counts["released in overlapping sets"] += self._is_overlapping(request.process_set)
        return list(release.members)

    def _note_change(self, release: Release) -> None:
        match release.request.signature.kind:
            case Kind.ADD_SET:
                assert release.value == min(set(range(1, len(self.members) + 1)) - self.members.keys())
                self.members[release.value] = release.sizes[0]
                self.births[release.value] += 1
            case Kind.REMOVE_SET:
                del self.members[release.sizes[0][0]]
            case Kind.JOIN:
                assert not any(self.open), "something else was pending when all had joined"
                self.phase += 1
                self.operations.clear()

    def _note_refusal(self, refusal: Refusal) -> list[int]:
        name = (refusal.process_set, refusal.name)
        assert refusal.ranks
        if refusal.name == JOIN_NAME or "every rank waits" in refusal.reason:
            self.is_aligned = False  # this refusal counts as a call of no rank
        assert not self.left.intersection(refusal.ranks)
        for rank in refusal.ranks:
            request, _ = self.open[rank].pop(name)
            self.counts[f"{request.signature.kind.name} refused"] += 1
            self._note_result(name, "refused", self.numbers[rank, name])
        for cause in (
            "has been shut down",
            "has been removed",
            "with Join",
            "before anything was sent",
            "every rank waits",
            "Mismatched",
        ):
            if cause in refusal.reason:
                self.counts[f"refused: {cause}"] += 1
                break
        else:
            raise AssertionError(f"a refusal for no known reason: {refusal}")
        return list(refusal.ranks)

    def _note_result(self, name: Name, result: object, number: int) -> None:
        if self.is_aligned:
            operation = (self.phase, name, self.births[name[0]], number)
            self.results.setdefault(operation, set()).add(result)

    def _is_overlapping(self, number: int) -> bool:
        own = set(self.members.get(number, ()))
        others = (set(ranks) for other, ranks in self.members.items() if other not in (GLOBAL_SET, number))
        return number != GLOBAL_SET and any(own & ranks and own - ranks and ranks - own for ranks in others)
