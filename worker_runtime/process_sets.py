"""The process sets of one generation: which ranks are in each, known alike on all ranks.

They change only by releases, so that every rank sees each change at the same place in the order of operations.
"""

from collections.abc import Mapping

from worker_runtime.core.questions import GLOBAL_SET
from worker_runtime.errors import SetLostError
from worker_runtime.operation import Members


class ProcessSets:
    """Numbers and their ranks; the set 0 has all ranks."""

    def __init__(self, rank: int, size: int) -> None:
        self._rank = rank
        self._members = {GLOBAL_SET: Members(GLOBAL_SET, tuple(range(size)), rank)}
        self._lost: dict[int, tuple[int, ...]] = {}
        self._versions = {GLOBAL_SET: -1}  # the index of the release that made it; numbers are used again

    def find(self, number: int, title: str) -> Members:
        """The set as this rank sees it.

        Args:
            number: of the set.
            title: of the operation that is to run in it, for the messages, which are Horovod's.

        Raises:
            ValueError: there is no such set, or this rank is not in it.
            SetLostError: it has lost a member since it was made.
        """
        members = self._members.get(number)
        if number in self._lost:
            raise SetLostError(title, number, self._lost[number])
        if members is None:
            raise ValueError(f"{title}: process set {number} does not exist, or has not been registered.")
        if self._rank not in members.ranks:
            raise ValueError(f"{title}: Rank {self._rank} is not a member of the provided process set.")
        return members

    def count(self, number: int) -> int:
        """How many members a set has."""
        return len(self._members[number].ranks)

    def list_ranks(self, number: int) -> tuple[int, ...]:
        """A set's ranks, whether this rank is among them or not; raises KeyError where there is no such set."""
        return self._members[number].ranks

    @property
    def numbers(self) -> tuple[int, ...]:
        """Of all sets."""
        return tuple(sorted(self._members))

    def version(self, number: int) -> int:
        """Tells sets apart that had the same number one after the other."""
        return self._versions[number]

    def list_lost(self) -> Mapping[int, tuple[int, ...]]:
        """Of the sets that have lost members, their numbers and those members' former ranks."""
        return self._lost

    def lose(self, number: int, ranks: tuple[int, ...]) -> None:
        """A set of the generation before has lost these members."""
        self._lost[number] = ranks

    def find_free(self) -> int:
        """The least number that no set has."""
        return next(number for number in range(1, len(self._members) + 1) if number not in self._members)

    def add(self, number: int, ranks: tuple[int, ...], version: int) -> None:
        """A set was made."""
        self._lost.pop(number, None)
        self._members[number] = Members(number, ranks, self._rank)
        self._versions[number] = version

    def remove(self, number: int) -> None:
        """A set is gone."""
        del self._members[number]
        del self._versions[number]
