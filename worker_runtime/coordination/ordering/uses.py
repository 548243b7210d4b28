"""Uses of names: what the members of a process set have asked under a name, until all of them have their answer.

The members' n-th uses of a name belong together. A use is pending from its first question to its answer; then the next
one can begin.
"""

from collections.abc import Container
from dataclasses import dataclass, field
from itertools import pairwise

from worker_runtime.coordination.ordering.questions import Kind, Question

# What changes the job itself, and is asked of all its ranks.
OF_THE_JOB = frozenset({Kind.JOIN, Kind.ADD_SET, Kind.REMOVE_SET})


@dataclass(slots=True)
class Use:
    """One use of a name that is pending.

    number: counts the uses of a generation, in the order of their first questions.
    question: of the rank that asked first.
    members: all whose question it needs.
    asked: each rank's question, in the order of their arrival.
    sizes: those of the ranks that gave any.
    is_mixed: not all signatures and factors are equal.
    """

    number: int
    question: Question
    members: tuple[int, ...]
    asked: dict[int, Question] = field(default_factory=dict)
    sizes: dict[int, tuple[int, ...]] = field(default_factory=dict)
    is_mixed: bool = False

    def find_absent(self) -> list[int]:
        """The members that have not asked."""
        return [rank for rank in self.members if rank not in self.asked]

    def find_intolerant(self) -> Question | None:
        """A question that does not run without those of members that have joined; None where all do."""
        return next((self.asked[rank] for rank in sorted(self.asked) if not _tolerates_joined(self.asked[rank])), None)

    def collect_sizes(self) -> tuple[tuple[int, ...], ...]:
        """Each member's sizes, of one length, zeros for a member that did not ask. Empty when no member gave any."""
        if not self.sizes:
            return ()
        zeros = (0,) * len(next(iter(self.sizes.values())))
        return tuple(self.sizes.get(rank, zeros) for rank in self.members)


@dataclass(slots=True)
class Uses:
    """The uses of the names of one process set.

    members: the set's ranks, in order; `ranks` are the same.
    pending: by name.
    left: the members that have left; once there is one, nothing is pending any more.
    is_closed: nothing more can be released, since a member has left or was lost.
    """

    members: tuple[int, ...]
    ranks: frozenset[int] = frozenset()
    size: int = 0
    pending: dict[str, Use] = field(default_factory=dict)
    left: list[int] = field(default_factory=list)
    is_closed: bool = False

    def __post_init__(self) -> None:
        self.ranks = frozenset(self.members)
        self.size = len(self.members)

    def close(self) -> None:
        """Forget all; nothing is released here again."""
        self.is_closed = True
        self.pending.clear()


def have_meaning(kind: Kind, sizes: tuple[int, ...], size: int, numbers: Container[int]) -> bool:
    """Whether sizes can belong to a question of this kind.

    Args:
        kind: of the operation.
        sizes: that came with it.
        size: how many ranks the job has.
        numbers: of the process sets that there are, or were, and that can be removed.
    """
    match kind:
        case Kind.ADD_SET:
            return bool(sizes) and all(one < other for one, other in pairwise((-1, *sizes, size)))
        case Kind.REMOVE_SET:
            return len(sizes) == 1 and sizes[0] in numbers
        case Kind.JOIN:
            return not sizes
        case _:
            return min(sizes, default=0) >= 0


def _tolerates_joined(question: Question) -> bool:
    signature = question.signature
    if signature.kind in OF_THE_JOB:
        return False
    return signature.tolerates_joined or signature.kind in (Kind.ALLREDUCE, Kind.COMMIT)
