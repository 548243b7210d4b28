"""Process sets as programs see them: some of the job's ranks, which communicate among themselves.

A set is an object of the program's; registered, it has a number that all ranks know. Where the job goes on in place
without ranks that were lost, the object has the others' new numbers. After `shutdown()`, and when an elastic function
begins again, the object is there, its number is not.
"""

import itertools
import operator
import weakref
from collections.abc import Iterable
from typing import Self

from worker_runtime.collectives.agreements import AddSet, RemoveSet
from worker_runtime.coordination.operation import Members
from worker_runtime.coordination.ordering.questions import GLOBAL_SET
from worker_runtime.engine.engine import Engine
from worker_runtime.errors import WrongArgumentError
from worker_runtime.membership.runtime import RUNTIME

_KEYS = itertools.count()
_SETS: weakref.WeakValueDictionary[int, "ProcessSet"] = weakref.WeakValueDictionary()


def find_process_set(key: int) -> "ProcessSet":
    """The set of this `key`, by which a compiled graph names it."""
    return _SETS[key]


_NOT_JOINED = (
    ": the other workers train already, and this one joins them in hvd.elastic.run(); add process sets in the function "
    "that it runs"
)


class ProcessSet:
    """Some of the job's ranks.

    Args:
        ranks_or_comm: the ranks, in any order. (Horovod takes an MPI communicator too; there is no MPI here.)

    Raises:
        ValueError: something else was given, or a rank twice.
    """

    mpi_comm = None

    def __init__(self, ranks_or_comm: Iterable[int]) -> None:
        self._ranks = read_ranks("ProcessSet", ranks_or_comm)
        self.key = next(_KEYS)
        _SETS[self.key] = self
        self._registration: tuple[weakref.ref[Engine], int, object] | None = None

    @property
    def ranks(self) -> list[int] | None:
        """The ranks in the job, in order; None of the global set before `init()`.

        Those of a registered set are the members that are left, by the numbers that they have now; otherwise they are
        those that the program has given.
        """
        members = self._find()
        return list(self._ranks if members is None else members.ranks)

    @property
    def process_set_id(self) -> int | None:
        """The set's number; None where it is not registered."""
        members = self._find()
        return None if members is None else members.number

    def _find(self) -> Members | None:
        """The set as it is at present, also for those who are not in it; None where it is not registered."""
        registration = self._registration
        if registration is None or not RUNTIME.is_initialized:
            return None
        engine, number, mark = registration
        if engine() is not RUNTIME.engine:
            return None
        sets = RUNTIME.engine.process_sets  # those of one generation
        return sets.look_up(number) if sets.find_mark(number) is mark else None

    def find_number(self, title: str) -> int:
        """The set's number, for an operation.

        Args:
            title: of the operation, for the message.

        Raises:
            ValueError: the set is not registered.
        """
        number = self.process_set_id
        if number is None:
            RUNTIME.engine  # noqa: B018 - raises unless initialised, which is the better reason
            raise ValueError(f"{title}: {self} does not exist, or has not been registered{self._explain_end()}.")
        return number

    def _explain_end(self) -> str:
        """Why it is not registered any more, if it was before the job was formed anew."""
        if self._registration is None:
            return ""
        return (
            ": it was, but all process sets end with hvd.shutdown(), and when a function under hvd.elastic.run begins "
            "again; call hvd.add_process_set() anew, inside that function, with ranks that there are now"
        )

    def size(self) -> int | None:
        """How many ranks it has; None where it is not registered."""
        members = self._find()
        return None if members is None else members.size

    def rank(self) -> int | None:
        """This worker's rank within the set; None where it is not registered.

        Raises:
            ValueError: this worker is not in the set.
        """
        members = self._find()
        if members is None:
            return None
        if members.rank not in members.ranks:
            raise ValueError(f"Rank {members.rank} is not a member of {self}.")
        return members.position

    def included(self) -> bool | None:
        """Whether this worker is in the set; None as long as its ranks are not known.

        Raises:
            ValueError: Horovod has not been initialized.
        """
        own = RUNTIME.engine.rank
        members = self._find()
        return own in self._ranks if members is None else members.rank in members.ranks

    def register(self, engine: Engine, number: int | None) -> None:
        """Note the set's number in a generation; None when it was removed. For this module."""
        mark = None if number is None else engine.process_sets.find_mark(number)
        self._registration = None if number is None or mark is None else (weakref.ref(engine), number, mark)

    def __deepcopy__(self, memo: dict[int, object]) -> Self:
        """The set itself: a copied module still communicates in the same one."""
        return self

    def __reduce__(self) -> str | tuple[type["ProcessSet"], tuple[tuple[int, ...]]]:
        """Pickled it is its ranks: a registration cannot be sent."""
        return ProcessSet, (tuple(self.ranks or ()),)

    def __repr__(self) -> str:
        return f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks}, mpi_comm=None)"


class _GlobalProcessSet(ProcessSet):
    """The set of all ranks, which needs no registration."""

    def __init__(self) -> None:
        super().__init__(())

    @property
    def ranks(self) -> list[int] | None:
        members = self._find()
        return None if members is None else list(members.ranks)

    @property
    def process_set_id(self) -> int:
        return GLOBAL_SET

    def _find(self) -> Members | None:
        return RUNTIME.engine.process_sets.look_up(GLOBAL_SET) if RUNTIME.is_initialized else None

    def included(self) -> bool | None:
        return True if RUNTIME.is_initialized else None

    def __reduce__(self) -> str:
        return "global_process_set"


def add_process_set(process_set: ProcessSet | Iterable[int]) -> ProcessSet:
    """Register a process set; all ranks of the job call it, in the same order, members or not.

    Horovod wants HOROVOD_DYNAMIC_PROCESS_SETS=1 for this; here it is always possible.

    Args:
        process_set: the set, or its ranks.

    Returns:
        The set, with its `process_set_id`: the least number that no set has.

    Raises:
        ValueError: the set has no ranks or some that do not exist, or these ranks, or this object, are registered.
        HorovodInternalError: the ranks do not agree, or Horovod has not been initialized.
    """
    engine = RUNTIME.engine
    everyone = engine.find_members(GLOBAL_SET, "add_process_set")
    name = engine.make_name("add_process_set", None)
    with engine.preparing(GLOBAL_SET, name):
        if not isinstance(process_set, ProcessSet):
            process_set = ProcessSet(process_set)
        ranks = _read_new(engine, process_set)
    process_set.register(engine, engine.run(AddSet(ranks, everyone, name)))
    return process_set


def remove_process_set(process_set: ProcessSet) -> bool:
    """Drop a process set; all ranks of the job call it, and it waits for all. The object is unregistered then.

    Args:
        process_set: as `add_process_set` has returned it.

    Returns:
        Whether it was registered, and is not the global set.

    Raises:
        HorovodInternalError: the ranks do not agree, or Horovod has not been initialized.
    """
    engine = RUNTIME.engine
    everyone = engine.find_members(GLOBAL_SET, "remove_process_set")
    number = process_set.process_set_id if isinstance(process_set, ProcessSet) else None
    if process_set is global_process_set or (number is None and isinstance(process_set, ProcessSet)):
        return False
    if number is not None and not process_set.ranks:  # all of them were lost: the others have nothing to agree on
        process_set.register(engine, None)
        return True
    name = engine.make_name("remove_process_set", None)
    with engine.preparing(GLOBAL_SET, name):
        check_process_set("remove_process_set", process_set)
    engine.run(RemoveSet(number, everyone, name))
    process_set.register(engine, None)
    return True


def _read_new(engine: Engine, process_set: ProcessSet) -> tuple[int, ...]:
    """The ranks of a set that is to be registered."""
    ranks = tuple(process_set.ranks or ())
    if not ranks or ranks[0] < 0 or ranks[-1] >= engine.size:
        advice = _NOT_JOINED if RUNTIME.is_late else ""
        raise ValueError(f"a process set needs ranks from 0 to {engine.size - 1}; got {list(ranks)}{advice}")
    sets = engine.process_sets
    own = process_set.process_set_id
    for number in sets.numbers:
        if sets.is_current(number) and (number == own or sets.list_ranks(number) == ranks):
            raise ValueError(
                f"Attempted to add a duplicate process set: {process_set}; process set {number} has these ranks (after "
                "a recovery, those that its members have now): use that set, or remove it first"
            )
    return ranks


def check_process_set(title: str, process_set: object) -> None:
    """Raise WrongArgumentError unless this is a process set, and not its number or its ranks."""
    if not isinstance(process_set, ProcessSet):
        raise WrongArgumentError(
            f"{title}: process_set is {process_set!r}; give a ProcessSet, as hvd.add_process_set(ranks) makes it"
        )


def read_ranks(title: str, ranks: Iterable[int]) -> tuple[int, ...]:
    """Ranks that a program has given, in order.

    Raises:
        ValueError: they are no integers, or one is there twice.
    """
    try:
        read = sorted(operator.index(rank) for rank in ranks)
    except TypeError:
        raise ValueError(
            f"{title}: give ranks as integers, for example [0, 1]; got {ranks!r} (there is no MPI, whose communicators "
            "Horovod takes)"
        ) from None
    if len(set(read)) != len(read):
        raise ValueError(f"{title}: a rank stands twice in {read}")
    return tuple(read)


global_process_set: ProcessSet = _GlobalProcessSet()
