"""What all ranks of a generation know alike: its process sets, and the names under which operations travel.

Sets change only by releases, so that every rank sees each change at the same place in the order of operations; and from
one generation to the next.

Operations to which the program gives no name are counted. The ranks' n-th calls of a kind in a set belong together. So
what is counted must be the same on all members: each kind and set is counted by itself, since ranks use different sets;
anew after each join, since a rank that has joined early has counted less than the others; and anew in a set whose
number another one had before, with other members.
"""

import threading
from collections.abc import Mapping

from worker_runtime.coordination.operation import Members
from worker_runtime.coordination.ordering.questions import GLOBAL_SET
from worker_runtime.errors import SetLostError, WrongArgumentError


class ProcessSets:
    """Numbers and their ranks; the set 0 has all ranks."""

    def __init__(self, rank: int, size: int, generation: int = 0) -> None:
        self._rank = rank
        self._generation = generation
        self._members = {GLOBAL_SET: Members(GLOBAL_SET, tuple(range(size)), rank, generation)}
        self._marks: dict[int, object] = {}
        self._lost: dict[int, tuple[int, ...]] = {}  # members of the former generations, by their ranks there
        self._superseded: set[int] = set()
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

    def look_up(self, number: int) -> Members | None:
        """A set, of which this rank need not be a member; None where there is none."""
        return self._members.get(number)

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

    def find_mark(self, number: int) -> object:
        """Tells a set apart from others that have had its number, through all generations; None where there is none."""
        return self._marks.get(number)

    def is_current(self, number: int) -> bool:
        """Whether no other set may have the same ranks: it has all its members, and was not superseded."""
        return number not in self._lost and number not in self._superseded

    def supersede(self) -> None:
        """An elastic function begins again in place: it makes its sets again, beside those that there are."""
        self._superseded.update(self._marks)

    def list_lost(self, number: int) -> tuple[int, ...]:
        """The members that a set has lost since it was made, by their former ranks."""
        return self._lost.get(number, ())

    def move_from(self, former: "ProcessSets", ranks: Mapping[int, int]) -> None:
        """Have the sets of the generation before, of those members that are left.

        Args:
            former: that generation's.
            ranks: of each rank that is left, its new one.
        """
        for number in former.numbers:
            if not former.is_current(number):
                self._superseded.add(number)
            if number != GLOBAL_SET:
                before = former.list_ranks(number)
                self._marks[number] = former.find_mark(number)
                self._put(number, tuple(sorted(ranks[rank] for rank in before if rank in ranks)), -1 - number)
                lost = {*former.list_lost(number), *(rank for rank in before if rank not in ranks)}
                if lost:
                    self._lost[number] = tuple(sorted(lost))

    def find_free(self) -> int:
        """The least number that no set has."""
        return next(number for number in range(1, len(self._members) + 1) if number not in self._members)

    def add(self, number: int, ranks: tuple[int, ...], version: int) -> None:
        """A set was made; or one of the generation before was made known in this one."""
        if number not in self._members or not self.count(number):
            self._marks[number] = object()
            self._lost.pop(number, None)
            self._superseded.discard(number)
        self._put(number, ranks, version)

    def remove(self, number: int) -> None:
        """A set is gone."""
        del self._members[number], self._versions[number], self._marks[number]
        self._lost.pop(number, None)
        self._superseded.discard(number)

    def _put(self, number: int, ranks: tuple[int, ...], version: int) -> None:
        self._members[number] = Members(number, ranks, self._rank, self._generation)
        self._versions[number] = version


_LONG = 8000  # characters; in UTF-8 each has up to four bytes
_MAX_BYTES = 4 * _LONG  # a question and whatever is derived from its name have room for twice as many


class Names:
    """Counts unnamed operations; for any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[tuple[int, str], int] = {}  # by set and kind
        self._joins = 0  # that have been completed

    def make(self, kind: str, name: str | None, process_set: int) -> str:
        """The name of the next operation: "allreduce.loss", or "allreduce.noname.3".

        Raises:
            WrongArgumentError: the name is no text, or cannot travel.
        """
        if name is not None:
            if not isinstance(name, str):
                raise WrongArgumentError(f"{kind}: name is {name!r}; give a str, or None")
            if len(name) > _LONG or not name.isascii():
                _check(kind, name)
            return f"{kind}.{name}"
        key = process_set, kind
        with self._lock:
            count = self._counts[key] = self._counts.get(key, 0) + 1
            return f"{kind}.noname.{f'{self._joins}.' if self._joins else ''}{count}"

    def count_join(self) -> None:
        """All ranks have joined."""
        with self._lock:
            self._joins += 1
            self._counts.clear()

    def forget(self, process_set: int) -> None:
        """The set is gone."""
        with self._lock:
            self._counts = {key: count for key, count in self._counts.items() if key[0] != process_set}


def _check(kind: str, name: str) -> None:
    try:
        count = len(name.encode())
    except UnicodeEncodeError as error:
        raise WrongArgumentError(f"{kind}: name is {name[:40]!r}, which is no text that can travel: {error}") from None
    if count > _MAX_BYTES:
        raise WrongArgumentError(f"{kind}: name begins with {name[:40]!r} and has {count} bytes; give a shorter one")
