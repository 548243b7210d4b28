"""Each rank's share of what one process would go through: every size-th sample, equally many on all ranks.

Ranks with different numbers of batches would wait for each other. So where the samples do not suffice some are dealt
out twice (padding), as torch's DistributedSampler does; none is left out.
"""

from collections.abc import Iterable, Iterator, Sequence, Sized
from itertools import islice
from typing import TypeVar

from worker_runtime.engine import objects
from worker_runtime.membership.runtime import RUNTIME

T = TypeVar("T")

_ORDER = "prepare.order"  # the name of the broadcast


def count_share(total: int, ranks: int) -> int:
    """How many of so many samples each rank gets, padding included."""
    return -(-total // ranks)


def deal(order: Sequence[T], rank: int, size: int) -> list[T]:
    """One rank's share of a sequence; what is missing at the end is taken from the beginning once more."""
    places = range(rank, count_share(len(order), size) * size, size)
    return [order[place % len(order)] for place in places]


def share_stream(stream: Iterable[T], rank: int, size: int) -> Iterator[T]:
    """One rank's share of a stream of any length; what is missing at the end is taken from the last few once more."""
    rest = iter(stream)
    while group := list(islice(rest, size)):
        yield group[rank % len(group)]


class RankOrder:
    """A sampler of which each rank gets its share: rank 0 draws the order of each pass, whatever the sampler is.

    All ranks begin each pass together, since the order is broadcast then.

    Args:
        sampler: gives indices; the ranks' own ones may draw different orders.
    """

    def __init__(self, sampler: Iterable[int]) -> None:
        self.sampler = sampler

    def __iter__(self) -> Iterator[int]:
        own = list(self.sampler)  # on all ranks, so that their random generators stay in step
        order: list[int] = objects.broadcast_object(RUNTIME.executor, own, 0, _ORDER)
        numbers = RUNTIME.assignment
        return iter(deal(order, numbers.rank, numbers.size))

    def __len__(self) -> int:
        if not isinstance(self.sampler, Sized):
            raise TypeError(f"object of type {type(self.sampler).__name__!r} has no len()")
        return count_share(len(self.sampler), RUNTIME.assignment.size)
