"""Pending operations: the requests of a process set's members under one name, until their response.

The members' n-th operations of a name are matched. An operation is pending from its first request to its response; then
the next one can begin.
"""

from collections.abc import Container
from dataclasses import dataclass, field
from itertools import pairwise

from worker_runtime.coordination.ordering.requests import Kind, Request

# The kinds that concern the job itself, and that all its ranks must request. The sequencer completes them: no rank
# communicates.
OF_THE_JOB = frozenset({Kind.JOIN, Kind.ADD_SET, Kind.REMOVE_SET})


@dataclass(slots=True)
class Pending:
    """One pending operation.

    number: numbers the operations of a generation in the order of their first requests.
    request: the request of the rank that asked first.
    members: the ranks whose requests it needs.
    asked: each rank's request, in the order of arrival.
    sizes: the sizes of the ranks that sent some.
    is_mixed: the signatures or factors differ.
    """

    number: int
    request: Request
    members: tuple[int, ...]
    asked: dict[int, Request]
    sizes: dict[int, tuple[int, ...]]
    is_mixed: bool = False

    def find_absent(self) -> list[int]:
        """The members that have not asked."""
        return [rank for rank in self.members if rank not in self.asked]

    def find_intolerant(self) -> Request | None:
        """A request that cannot run without the joined members; None if all can."""
        return next((self.asked[rank] for rank in sorted(self.asked) if not _tolerates_joined(self.asked[rank])), None)

    def collect_sizes(self) -> tuple[tuple[int, ...], ...]:
        """Each member's sizes, with zeros for a member that has not asked; at least one member has sent some."""
        zeros = (0,) * len(next(iter(self.sizes.values())))
        return tuple(self.sizes.get(rank, zeros) for rank in self.members)


@dataclass(slots=True)
class SetOperations:
    """The pending operations of one process set.

    members: the set's ranks, in order; `ranks` is the same as a set.
    pending: the pending operations by name.
    left: the members that have left; after the first one, no operation is pending.
    is_closed: no further operation can be released, since a member has left or was lost.
    """

    members: tuple[int, ...]
    ranks: frozenset[int] = frozenset()
    size: int = 0
    pending: dict[str, Pending] = field(default_factory=dict)
    left: list[int] = field(default_factory=list)
    is_closed: bool = False

    def __post_init__(self) -> None:
        self.ranks = frozenset(self.members)
        self.size = len(self.members)

    def close(self) -> None:
        """Drop all pending operations; no further operation will be released."""
        self.is_closed = True
        self.pending.clear()


def have_meaning(kind: Kind, sizes: tuple[int, ...], size: int, numbers: Container[int]) -> bool:
    """Whether sizes are valid for a request of this kind.

    Args:
        kind: the operation's kind.
        sizes: the request's sizes.
        size: the number of ranks of the job.
        numbers: the numbers of present and former process sets other than the global one.
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


def _tolerates_joined(request: Request) -> bool:
    signature = request.signature
    if signature.kind in OF_THE_JOB:
        return False
    return signature.tolerates_joined or signature.kind in (Kind.ALLREDUCE, Kind.COMMIT)
