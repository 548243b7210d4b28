"""The process sets of a generation, and the names of operations; both are the same on all ranks.

Sets change only by releases, so that every rank sees each change at the same place in the order of operations, and by a
change of the generation.

Operations without a name from the program are numbered: the ranks' n-th calls of a kind in a set are matched. So the
counts must be the same on all members. Each kind and set has its own count. All counts restart after each join, since a
rank that joined early has made fewer calls. The counts of a set restart when its number gets another set.
"""

import threading
from collections.abc import Mapping

from worker_runtime.coordination.operation import Members
from worker_runtime.coordination.ordering.requests import GLOBAL_SET
from worker_runtime.errors import SetLostError, WrongArgumentError


class ProcessSets:
    """The process sets by number. Set 0 has all ranks.

    Args:
        rank: this worker's rank.
        size: the number of ranks.
        generation: the number of the generation.

    everyone: the members of set 0, which never change.
    """

    def __init__(self, rank: int, size: int, generation: int = 0) -> None:
        self._rank = rank
        self._generation = generation
        self.everyone = Members(GLOBAL_SET, tuple(range(size)), rank, generation)
        self._members = {GLOBAL_SET: self.everyone}
        self._identities: dict[int, object] = {}
        self._lost: dict[int, tuple[int, ...]] = {}  # lost members by their former ranks
        self._superseded: set[int] = set()
        self._versions = {GLOBAL_SET: -1}  # the index of the release that added it; numbers are used again

    def find(self, number: int, title: str) -> Members:
        """The members of a set as this rank sees it.

        Args:
            number: the number of the set.
            title: the operation, for the messages, which are Horovod's.

        Raises:
            ValueError: the set does not exist, or this rank is not in it.
            SetLostError: the set has lost a member.
        """
        members = self._members.get(number)
        if number in self._lost:
            raise SetLostError(title, number, self._lost[number])
        if members is None:
            raise _make_unknown_error(number, title)
        if self._rank not in members.ranks:
            raise ValueError(f"{title}: Rank {self._rank} is not a member of the provided process set.")
        return members

    def find_again(self, former: Members, title: str) -> Members:
        """The present members of a set that was found earlier, also in another generation; see `find`.

        Raises:
            ValueError: the set was removed. Its number may belong to another set now.
        """
        present = self._members.get(former.number)
        if present is not None and present.generation == former.generation and present.ranks != former.ranks:
            raise _make_unknown_error(former.number, title)
        return self.find(former.number, title)

    def look_up(self, number: int) -> Members | None:
        """The members of a set, also if this rank is not one; None if the set does not exist."""
        return self._members.get(number)

    def count(self, number: int) -> int:
        """The number of members of a set."""
        return len(self._members[number].ranks)

    def list_ranks(self, number: int) -> tuple[int, ...]:
        """The ranks of a set, also if this rank is not one; raises KeyError if the set does not exist."""
        return self._members[number].ranks

    @property
    def numbers(self) -> tuple[int, ...]:
        """The numbers of all sets."""
        return tuple(sorted(self._members))

    def find_version(self, number: int) -> int:
        """A value that distinguishes sets that have the same number one after the other."""
        return self._versions[number]

    def find_identity(self, number: int) -> object:
        """An object that is the same for one set in all generations, and another for each set; None for no set."""
        return self._identities.get(number)

    def is_current(self, number: int) -> bool:
        """Whether a second set of the same ranks is a duplicate: the set has all members, and is not superseded."""
        return number not in self._lost and number not in self._superseded

    def supersede(self) -> None:
        """Allow duplicates of all present sets, because an elastic function restarts and adds its sets again."""
        self._superseded.update(self._identities)

    def list_lost(self, number: int) -> tuple[int, ...]:
        """The members that a set has lost, by their former ranks."""
        return self._lost.get(number, ())

    def move_from(self, former: "ProcessSets", ranks: Mapping[int, int]) -> None:
        """Take over the sets of the former generation with their surviving members.

        Args:
            former: the sets of the former generation.
            ranks: the new rank of each surviving rank.
        """
        for number in former.numbers:
            if not former.is_current(number):
                self._superseded.add(number)
            if number != GLOBAL_SET:
                before = former.list_ranks(number)
                self._identities[number] = former.find_identity(number)
                self._put(number, tuple(sorted(ranks[rank] for rank in before if rank in ranks)), -1 - number)
                lost = {*former.list_lost(number), *(rank for rank in before if rank not in ranks)}
                if lost:
                    self._lost[number] = tuple(sorted(lost))

    def find_free(self) -> int:
        """The smallest unused number."""
        return next(number for number in range(1, len(self._members) + 1) if number not in self._members)

    def add(self, number: int, ranks: tuple[int, ...], version: int) -> None:
        """Add a new set, or register one of the former generation."""
        if number not in self._members or not self.count(number):
            self._identities[number] = object()
            self._lost.pop(number, None)
            self._superseded.discard(number)
        self._put(number, ranks, version)

    def remove(self, number: int) -> None:
        """Remove a set."""
        del self._members[number], self._versions[number], self._identities[number]
        self._lost.pop(number, None)
        self._superseded.discard(number)

    def _put(self, number: int, ranks: tuple[int, ...], version: int) -> None:
        self._members[number] = Members(number, ranks, self._rank, self._generation)
        self._versions[number] = version


def _make_unknown_error(number: int, title: str) -> ValueError:
    return ValueError(f"{title}: process set {number} does not exist, or has not been registered.")


_LONG = 8000  # characters; in UTF-8 each has up to four bytes
_MAX_BYTES = 4 * _LONG  # a request, with suffixes of the name, has room for twice as many


class Names:
    """Names operations, and numbers unnamed ones. Any thread may use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[tuple[int, str], int] = {}  # by set and kind
        self._joins = 0  # the number of completed joins

    def make(self, kind: str, name: str | None, process_set: int) -> str:
        """The full name of the next operation: "allreduce.loss", or "allreduce.noname.3".

        Raises:
            WrongArgumentError: the name is not a str, or cannot be encoded.
        """
        if name is not None:
            if not isinstance(name, str):
                raise WrongArgumentError(f"{kind}: name is {name!r}; give a str, or None")
            if len(name) > _LONG or not name.isascii():
                _check_encodable(kind, name)
            return f"{kind}.{name}"
        key = process_set, kind
        with self._lock:
            count = self._counts[key] = self._counts.get(key, 0) + 1
            return f"{kind}.noname.{f'{self._joins}.' if self._joins else ''}{count}"

    def count_join(self) -> None:
        """Restart all counts after a completed join."""
        with self._lock:
            self._joins += 1
            self._counts.clear()

    def forget(self, process_set: int) -> None:
        """Drop the counts of a removed set."""
        with self._lock:
            self._counts = {key: count for key, count in self._counts.items() if key[0] != process_set}


def _check_encodable(kind: str, name: str) -> None:
    try:
        count = len(name.encode())
    except UnicodeEncodeError as error:
        raise WrongArgumentError(f"{kind}: name is {name[:40]!r}, which cannot be encoded in UTF-8: {error}") from None
    if count > _MAX_BYTES:
        raise WrongArgumentError(f"{kind}: name starts with {name[:40]!r} and has {count} bytes; give a shorter one")
