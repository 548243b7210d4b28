"""Uses of names: what the members of a process set have asked under a name, until all of them have their answer.

The members' n-th uses of a name belong together. A use is pending from its first question to its answer; then the next
one can begin. Only a refusal can come before all members have asked: those who have not are owed it, so that their
next question of that name is not taken for a use that the others have yet to begin. A call that a rank gives up, since
it failed before it could ask, counts as its use.

A use that is refused in a deadlock counts for nobody: a member that had not asked it was stopped elsewhere, and may
have passed it by. Were it owed the refusal, ranks that are in step again would be thrown out of it. So its next
question waits like any other, and only if all are stopped once more, it is taken to have come *late* for that use.
"""

from collections import deque
from collections.abc import Container
from dataclasses import dataclass, field
from itertools import pairwise

from worker_runtime.coordination.ordering.questions import Kind, Question

# What changes the job itself, and is asked of all its ranks.
OF_THE_JOB = frozenset({Kind.JOIN, Kind.ADD_SET, Kind.REMOVE_SET})

# Refusals of one name that are kept for one rank, and names: who has passed so many by does not come to them.
MOST_OWED = 1000
MOST_NAMES_OWED = 1_000_000


@dataclass(slots=True)
class Use:
    """One use of a name that is pending.

    number: counts the uses of a generation, in the order of their first questions.
    question: of the rank that asked first.
    members: all whose question it needs.
    asked: each rank's question, in the order of their arrival.
    extents: those of the ranks that gave any.
    is_mixed: not all signatures and factors are equal.
    is_wanted: those who have not asked were told that all wait for them.
    """

    number: int
    question: Question
    members: tuple[int, ...]
    asked: dict[int, Question] = field(default_factory=dict)
    extents: dict[int, tuple[int, ...]] = field(default_factory=dict)
    is_mixed: bool = False
    is_wanted: bool = False

    def find_absent(self) -> list[int]:
        """The members that have not asked."""
        return [rank for rank in self.members if rank not in self.asked]

    def find_intolerant(self) -> Question | None:
        """A question that does not run without those of members that have joined; None where all do."""
        return next((self.asked[rank] for rank in sorted(self.asked) if not _tolerates_joined(self.asked[rank])), None)

    def collect_extents(self) -> tuple[tuple[int, ...], ...]:
        """Each member's extents, zeros for who did not ask; they are of one length. Empty when nobody gave any."""
        if not self.extents:
            return ()
        zeros = (0,) * len(next(iter(self.extents.values())))
        return tuple(self.extents.get(rank, zeros) for rank in self.members)


@dataclass(slots=True)
class Uses:
    """The uses of the names of one process set.

    members: the set's ranks, in order; `ranks` are the same.
    pending: by name.
    owed: by rank and name, why uses were refused before that rank asked, oldest first.
    ahead: by name, who has given up the use after the pending one, and why, oldest first.
    late: by name, who had not asked when a use was refused in a deadlock, unless one was released since.
    left: the members that have left; once there is one, nothing is pending any more.
    is_closed: nothing more can be released, since a member has left or was lost.
    """

    members: tuple[int, ...]
    ranks: frozenset[int] = frozenset()
    size: int = 0
    pending: dict[str, Use] = field(default_factory=dict)
    owed: dict[tuple[int, str], deque[str]] = field(default_factory=dict)
    ahead: dict[str, list[tuple[int, str]]] = field(default_factory=dict)
    late: dict[str, set[int]] = field(default_factory=dict)
    left: list[int] = field(default_factory=list)
    is_closed: bool = False

    def __post_init__(self) -> None:
        self.ranks = frozenset(self.members)
        self.size = len(self.members)

    def owe(self, name: str, reason: str, excused: Container[int]) -> None:
        """Keep a refusal for the members that have yet to ask, save those that are excused."""
        for rank in self.members:
            if rank not in excused:
                self.owed.setdefault((rank, name), deque(maxlen=MOST_OWED)).append(reason)

    def note_deadlock(self, use: Use, excused: Container[int]) -> None:
        """A use was refused since all ranks wait, those without its question for something else."""
        late = self.late.setdefault(use.question.name, set())
        late.difference_update(use.asked)
        late.update(rank for rank in use.find_absent() if rank not in excused)

    def is_late(self, use: Use) -> bool:
        """Whether only ranks have asked it that had missed one that was refused in a deadlock."""
        late = self.late.get(use.question.name)
        return late is not None and late.issuperset(use.asked)

    def pay(self, rank: int, name: str) -> str | None:
        """The oldest refusal of that name that is owed to a rank, once; None when nothing is."""
        owed = self.owed.get((rank, name))
        if owed is None:
            return None
        reason = owed.popleft()
        if not owed:
            del self.owed[rank, name]
        return reason

    def excuse(self, rank: int) -> None:
        """Owe a rank nothing any more: what it has not asked it will not ask."""
        for key in [key for key in self.owed if key[0] == rank]:
            del self.owed[key]
        for late in self.late.values():
            late.discard(rank)

    def close(self) -> None:
        """Forget all; nothing is released here again."""
        self.is_closed = True
        self.pending.clear()
        self.owed.clear()
        self.ahead.clear()
        self.late.clear()


def have_meaning(kind: Kind, extents: tuple[int, ...], size: int, numbers: Container[int]) -> bool:
    """Whether extents can belong to a question of this kind.

    Args:
        kind: of the operation.
        extents: that came with it.
        size: how many ranks the job has.
        numbers: of the process sets that there are, or were, and that can be removed.
    """
    match kind:
        case Kind.ADD_SET:
            return bool(extents) and all(one < other for one, other in pairwise((-1, *extents, size)))
        case Kind.REMOVE_SET:
            return len(extents) == 1 and extents[0] in numbers
        case Kind.JOIN:
            return not extents
        case _:
            return min(extents, default=0) >= 0


def _tolerates_joined(question: Question) -> bool:
    signature = question.signature
    if signature.kind in OF_THE_JOB:
        return False
    return signature.tolerates_joined or signature.kind in (Kind.ALLREDUCE, Kind.COMMIT)
