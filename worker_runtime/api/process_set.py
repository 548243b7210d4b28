"""Process sets: subsets of the job's ranks that communicate among themselves."""

import itertools
import operator
import weakref
from collections.abc import Iterable
from typing import Self

from worker_runtime.collectives.agreements import AddSet, RemoveSet
from worker_runtime.coordination.operation import Members
from worker_runtime.coordination.ordering.requests import GLOBAL_SET
from worker_runtime.engine.engine import Engine
from worker_runtime.errors import WrongArgumentError
from worker_runtime.membership.runtime import RUNTIME

_KEYS = itertools.count()
_SETS: weakref.WeakValueDictionary[int, "ProcessSet"] = weakref.WeakValueDictionary()


def find_process_set(key: int) -> "ProcessSet":
    """The set of this `key`. Compiled graphs refer to sets by their keys."""
    return _SETS[key]


_NOT_JOINED = (
    ": the other workers train already, and this one joins them in hvd.elastic.run(); add process sets in the function "
    "that it runs"
)


class ProcessSet:
    """A subset of the job's ranks. It can communicate after `init(process_sets=...)` or `add_process_set`.

    These register it: it gets an id, the same on all ranks. When an elastic job loses ranks and continues in place, a
    registered set keeps its surviving members under their new ranks. `shutdown()` and the restart of an elastic
    function unregister all sets: call `add_process_set` again.

    Args:
        ranks_or_comm: the ranks, in any order. (Horovod also takes an MPI communicator; hvdrun does not.)

    Raises:
        ValueError: the ranks are not integers, or a rank is given twice.
    """

    mpi_comm = None

    def __init__(self, ranks_or_comm: Iterable[int]) -> None:
        self._ranks = read_ranks("ProcessSet", ranks_or_comm)
        self.key = next(_KEYS)
        _SETS[self.key] = self
        self._registration: tuple[weakref.ref[Engine], int, object] | None = None

    @property
    def ranks(self) -> list[int] | None:
        """The ranks of the set in ascending order; None for the global set before `init()`.

        For a registered set these are the surviving members, by their present ranks. For an unregistered set they are
        the ranks that you gave.
        """
        members = self._find()
        return list(self._ranks if members is None else members.ranks)

    @property
    def process_set_id(self) -> int | None:
        """The id of the set, the same on all ranks; None where the set is not registered."""
        members = self._find()
        if members is None:
            return None
        return members.number

    def _find(self) -> Members | None:
        """The present members of the set, also on ranks that are not in it; None where it is not registered."""
        registration = self._registration
        if registration is None or not RUNTIME.is_initialized:
            return None
        engine, number, identity = registration
        if engine() is not RUNTIME.engine:
            return None
        sets = RUNTIME.engine.process_sets  # those of one generation
        if sets.find_identity(number) is identity:
            return sets.look_up(number)
        return None

    def find_number(self, title: str) -> int:
        """The id of the set; for the functions of the API.

        Args:
            title: the operation, for the error message.

        Raises:
            ValueError: the set is not registered.
        """
        number = self.process_set_id
        if number is None:
            RUNTIME.engine  # noqa: B018 - raises unless initialized, which is the better reason
            raise ValueError(f"{title}: {self} does not exist, or has not been registered{self._explain_end()}.")
        return number

    def _explain_end(self) -> str:
        """The reason why the set is no longer registered; empty where it never was."""
        if self._registration is None:
            return ""
        return (
            ": hvd.shutdown() and each restart of a function under hvd.elastic.run unregister all process sets; call "
            "hvd.add_process_set() again, inside that function, with ranks of the present job"
        )

    def size(self) -> int | None:
        """The number of ranks in the set; None where the set is not registered."""
        members = self._find()
        if members is None:
            return None
        return members.size

    def rank(self) -> int | None:
        """This worker's rank within the set, 0 to size() - 1; None where the set is not registered.

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
        """Whether this worker is in the set; None for the global set before `init()`.

        Raises:
            ValueError: Horovod has not been initialized.
        """
        own = RUNTIME.engine.rank
        members = self._find()
        if members is None:
            return own in self._ranks
        return members.rank in members.ranks

    def register(self, engine: Engine, number: int | None) -> None:
        """Store the set's number in a generation, or None after its removal; for this module."""
        identity = None
        if number is not None:
            identity = engine.process_sets.find_identity(number)
        if number is None or identity is None:
            self._registration = None
        else:
            self._registration = (weakref.ref(engine), number, identity)

    def adopt(self, engine: Engine) -> bool:
        """Take the id of the registered set of the same ranks; return False where there is none. For the API."""
        if self.process_set_id is None:
            sets, ranks = engine.process_sets, tuple(self.ranks or ())
            same = [each for each in sets.numbers if sets.is_current(each) and sets.list_ranks(each) == ranks]
            if same:
                self.register(engine, same[0])
        return self.process_set_id is not None

    def __deepcopy__(self, memo: dict[int, object]) -> Self:
        """The set itself: a copied torch module communicates in the same set."""
        return self

    def __reduce__(self) -> str | tuple[type["ProcessSet"], tuple[tuple[int, ...]]]:
        """Pickle the ranks only: the copy is not registered."""
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
        if members is None:
            return None
        return list(members.ranks)

    @property
    def process_set_id(self) -> int:
        return GLOBAL_SET

    def _find(self) -> Members | None:
        if RUNTIME.is_initialized:
            return RUNTIME.engine.process_sets.look_up(GLOBAL_SET)
        return None

    def included(self) -> bool | None:
        if RUNTIME.is_initialized:
            return True
        return None

    def __reduce__(self) -> str:
        return "global_process_set"


def add_process_set(process_set: ProcessSet | Iterable[int]) -> ProcessSet:
    """Register a process set. All ranks of the job must call this in the same order, also ranks outside the set.

    HOROVOD_DYNAMIC_PROCESS_SETS=1, which Horovod requires, is not needed.

    Args:
        process_set: a `ProcessSet`, or its ranks.

    Returns:
        The registered set. Its `process_set_id` is the smallest unused number.

    Raises:
        ValueError: the set is empty, has a rank that does not exist, or is already registered (this object, or another
            set of these ranks).
        HorovodInternalError: the ranks give different sets, or Horovod has not been initialized.
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
    """Unregister a process set. All ranks of the job must call this; it waits for all of them.

    Args:
        process_set: the return value of `add_process_set`.

    Returns:
        True; False where the set is not registered or is the global set.

    Raises:
        ValueError: the argument is not a `ProcessSet`.
        HorovodInternalError: the ranks give different sets, or Horovod has not been initialized.
    """
    engine = RUNTIME.engine
    everyone = engine.find_members(GLOBAL_SET, "remove_process_set")
    number = None
    if isinstance(process_set, ProcessSet):
        number = process_set.process_set_id
    if process_set is global_process_set or (number is None and isinstance(process_set, ProcessSet)):
        return False
    # All its ranks were lost: the others have nothing to agree on.
    if number is not None and not process_set.ranks:
        process_set.register(engine, None)
        return True

    name = engine.make_name("remove_process_set", None)
    with engine.preparing(GLOBAL_SET, name):
        check_process_set("remove_process_set", process_set)
    engine.run(RemoveSet(number, everyone, name))
    process_set.register(engine, None)
    return True


def _read_new(engine: Engine, process_set: ProcessSet) -> tuple[int, ...]:
    """The ranks of a set to register, checked against the job and the registered sets."""
    ranks = tuple(process_set.ranks or ())
    if not ranks or ranks[0] < 0 or ranks[-1] >= engine.size:
        advice = _NOT_JOINED if RUNTIME.is_late else ""
        raise ValueError(f"a process set needs ranks from 0 to {engine.size - 1}; got {list(ranks)}{advice}")
    sets = engine.process_sets
    own = process_set.process_set_id
    for number in sets.numbers:
        if sets.is_current(number) and (number == own or sets.list_ranks(number) == ranks):
            raise ValueError(
                f"Attempted to add a duplicate process set: {process_set}; process set {number} has these ranks now: "
                "use that set, or remove it first"
            )
    return ranks


def check_process_set(title: str, process_set: object) -> None:
    """Raise WrongArgumentError unless the argument is a ProcessSet (not its id or its ranks)."""
    if not isinstance(process_set, ProcessSet):
        raise WrongArgumentError(
            f"{title}: process_set is {process_set!r}; give a ProcessSet, as hvd.add_process_set(ranks) makes it"
        )


def read_ranks(title: str, ranks: Iterable[int]) -> tuple[int, ...]:
    """The ranks that a program gives, as a sorted tuple.

    Raises:
        ValueError: a rank is not an integer, or is given twice.
    """
    try:
        read = sorted(operator.index(rank) for rank in ranks)
    except TypeError:
        raise ValueError(
            f"{title}: give ranks as integers, for example [0, 1]; got {ranks!r} (hvdrun takes no MPI communicators)"
        ) from None
    if len(set(read)) != len(read):
        raise ValueError(f"{title}: {read} has a rank twice")
    return tuple(read)


global_process_set: ProcessSet = _GlobalProcessSet()
