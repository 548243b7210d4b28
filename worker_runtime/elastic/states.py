"""State that outlives failures and changes of the job."""

import copy
import os
import queue
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from worker_runtime.checkpoints import all_ranks
from worker_runtime.engine import objects
from worker_runtime.errors import CheckpointError, HostsUpdatedInterrupt
from worker_runtime.membership.notifications import HOSTS_REMOVED
from worker_runtime.membership.runtime import RUNTIME
from worker_runtime.rendezvous import read_checkpoint

_NO_FILES = (
    "a {} cannot be kept in files; derive it from ObjectState, or give it the methods to_checkpoint() and "
    "from_checkpoint(kept)"
)

BroadcastObject = Callable[[Any], Any]


class State:
    """What a training function needs to go on elsewhere; subclasses say how it is saved, restored and synchronised.

    Args:
        bcast_object: gives every rank the object of rank 0.
        get_rank: tells this worker's rank.
    """

    def __init__(self, bcast_object: BroadcastObject, get_rank: Callable[[], int]) -> None:
        self._bcast_object = bcast_object
        self._rank = get_rank
        self._host_messages: queue.Queue[tuple[float, int]] = queue.Queue()
        self._last_updated_timestamp: float = 0
        self._reset_callbacks: list[Callable[[], None]] = []
        self._commits = 0
        self._size: int | None = None  # of the job when the function began; None while no function runs with this
        self._is_begun = False  # a function has run with this, or with what the others have of it

    def register_reset_callbacks(self, callbacks: Iterable[Callable[[], None]]) -> None:
        """Have functions called, in this order, after each change of the job: for what depends on size or rank.

        In an elastic job a loss need not interrupt anybody. Then they are called at the next `check_host_updates`.
        """
        self._reset_callbacks.extend(callbacks)

    def on_reset(self) -> None:
        """The worker has joined the job anew."""
        self._host_messages = queue.Queue()
        self.adapt()

    def adapt(self) -> None:
        """The job has another size than before, or this worker another rank: reset, and call what waits for that."""
        self.reset()
        for callback in self._reset_callbacks:
            callback()

    def on_hosts_updated(self, timestamp: float, update_res: int) -> None:
        """Hosts have come or gone; the next `check_host_updates` acts on it. For any thread.

        Args:
            timestamp: when; later ones are greater.
            update_res: HOSTS_REMOVED, HOSTS_ADDED, or both; 0 when what was told before is undone.
        """
        self._host_messages.put((timestamp, update_res))

    def commit(self) -> None:
        """Save the state, then look for changed hosts; all ranks must call it equally often.

        Raises: what `check_host_updates` raises.
        """
        self._commits += 1
        self.save()
        if RUNTIME.recovery is not None:
            RUNTIME.recovery.note_commit()
        self.check_host_updates()

    def check_host_updates(self) -> None:
        """Raise on all ranks when rank 0 knows that hosts have come or gone; all ranks must call it equally often.

        So it does when ranks were lost while all others went on, if the state waits for that: see `waits_for_reset`.
        Under `elastic.run` the function begins again, as after all changes. Where the job has checkpoints and is told
        to stop, the state is saved there, and this worker ends with exit code 75.

        Raises:
            HostsUpdatedInterrupt: they have.
            SystemExit: the job is told to stop, and the state is saved.
            CheckpointError: it could not be saved, on all ranks alike.
            HorovodInternalError: a rank has gone.
        """
        earlier, update = self._last_updated_timestamp, 0
        while not self._host_messages.empty():
            timestamp, what = self._host_messages.get()
            if timestamp > self._last_updated_timestamp:
                self._last_updated_timestamp = timestamp
                update = update | what if what else 0
        is_due = self._size is not None and self.waits_for_reset()
        earlier, self._last_updated_timestamp, update, is_due = self._bcast_object(
            (earlier, self._last_updated_timestamp, update, is_due)
        )
        self._end_where_told()
        if self._last_updated_timestamp > earlier and update:
            raise HostsUpdatedInterrupt(skip_sync=update == HOSTS_REMOVED)
        if is_due:
            raise RanksLostInterrupt

    def _end_where_told(self) -> None:
        folder = read_checkpoint(os.environ)
        if folder is not None and self._size is not None and RUNTIME.is_stopping():
            self.save()
            path = all_ranks.save(self, folder, self._bcast_object, gather_objects, self._rank())
            if self._rank() == 0:
                all_ranks.tell(f"the state is saved in {path}; the same command goes on from there")
            sys.exit(os.EX_TEMPFAIL)

    def save(self) -> None:
        """Keep a copy of the state in this process's memory."""
        raise NotImplementedError

    def load(self, directory: str | os.PathLike[str]) -> bool:
        """Go on from the newest checkpoint in a folder that is whole; all ranks must call it at the same place.

        Rank 0 reads it, and gives it to all. A newer one that is damaged is skipped, which is said on standard error. A
        checkpoint is a pickle: loading it can execute whatever somebody has written there.

        Args:
            directory: in which `save(directory)` has written.

        Returns:
            Whether there was one; else nothing has changed.

        Raises:
            CheckpointError: none of those that there are can be read, or what is read does not fit; on all ranks alike.
            HorovodInternalError: a rank has gone.
        """
        return all_ranks.load(self, Path(directory), self._bcast_object, gather_objects, self._rank())

    def to_checkpoint(self) -> Any:  # noqa: ANN401 - whatever can be pickled
        """What was saved last, for a file; asked for on rank 0."""
        raise CheckpointError(_NO_FILES.format(type(self).__name__))

    def from_checkpoint(self, kept: Any) -> None:  # noqa: ANN401 - see above
        """Set this rank's state to what was in a file; called on rank 0, and a sync follows."""
        del kept
        raise CheckpointError(_NO_FILES.format(type(self).__name__))

    def describe_course(self) -> Any:  # noqa: ANN401 - as above
        """What else a job of the same size needs to go on to the last bit; asked for on rank 0."""

    def resume_course(self, course: Any, restore_random: Callable[[], None]) -> None:  # noqa: ANN401 - as above
        """Go on so, on every rank.

        Args:
            course: of `describe_course()`.
            restore_random: sets the generators of random numbers; for use where something is drawn that was drawn
                already.
        """

    def restore(self) -> None:
        """Return to what was saved last."""
        raise NotImplementedError

    def sync(self) -> None:
        """Give all ranks the state of rank 0."""
        raise NotImplementedError

    def reset(self) -> None:
        """Adapt to another size or rank; there may be nothing to adapt."""

    def needs_sync(self) -> bool:
        """Whether ranks may differ although all have come through the same program; the same on all ranks."""
        return False

    def waits_for_reset(self) -> bool:
        """Whether ranks were lost without an interruption, and something here depends on how many there are."""
        return bool(self._reset_callbacks) and self._size != count_ranks()


class RanksLostInterrupt(HostsUpdatedInterrupt):
    """Ranks were lost and the others have gone on: the function begins again among those who are there already."""

    def __init__(self) -> None:
        super().__init__(skip_sync=True)


class ObjectState(State):
    """State of plain Python objects, which are attributes of it.

    Args:
        bcast_object: gives every rank the object of rank 0.
        get_rank: tells this worker's rank.
        **kwargs: the attributes and their values, which can be pickled.
    """

    def __init__(self, bcast_object: BroadcastObject, get_rank: Callable[[], int], **kwargs: object) -> None:
        super().__init__(bcast_object, get_rank)
        self._saved_state: dict[str, Any] = dict(kwargs)
        for name, value in kwargs.items():
            setattr(self, name, value)
        self.save()

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...  # noqa: ANN401 - the program has named and typed it

    def save(self, directory: str | os.PathLike[str] | None = None) -> None:
        """Keep copies, so that changes inside lists, dicts and arrays can be undone too, as Horovod cannot.

        Args:
            directory: write a checkpoint there as well, from which `load(directory)` goes on in another job; rank 0
                writes it, and the two newest stay. All ranks must then call this at the same place.

        Raises:
            CheckpointError: it could not be written, on all ranks alike; the checkpoints before are as they were.
            HorovodInternalError: a rank has gone.
        """
        self._saved_state = {name: _copy(getattr(self, name)) for name in self._saved_state}
        if directory is not None:
            all_ranks.save(self, Path(directory), self._bcast_object, gather_objects, self._rank())

    def to_checkpoint(self) -> Any:  # noqa: ANN401 - whatever can be pickled
        """The attributes."""
        return self._saved_state

    def from_checkpoint(self, kept: Any) -> None:  # noqa: ANN401 - as above
        """Set the attributes.

        Raises:
            CheckpointError: they have other names.
        """
        check_names(kept, self._saved_state)
        for name, value in kept.items():
            setattr(self, name, value)

    def restore(self) -> None:
        """Set the attributes to what was saved last."""
        for name, value in self._saved_state.items():
            setattr(self, name, _copy(value))

    def sync(self) -> None:
        """Give all ranks the attributes of rank 0, which count as saved then."""
        if self._saved_state:
            synced = self._bcast_object({name: getattr(self, name) for name in self._saved_state})
            for name, value in synced.items():
                setattr(self, name, value)
            ObjectState.save(self)


def check_names(kept: Iterable[str], own: Iterable[str]) -> None:
    """Raise a CheckpointError unless a checkpoint keeps what a state has."""
    theirs, ours = (", ".join(sorted(names)) or "nothing" for names in (kept, own))
    if theirs != ours:
        raise CheckpointError(f"it keeps {theirs}, and the state has {ours}")


def gather_objects(value: Any, name: str) -> list[Any]:  # noqa: ANN401 - any object
    """The objects of all ranks, under a name of the operation; a program that is no job is alone."""
    return objects.allgather_object(RUNTIME.engine, value, name) if RUNTIME.is_initialized else [value]


def count_ranks() -> int:
    """How many ranks the job has now; 1 before `init()`."""
    return RUNTIME.engine.size if RUNTIME.is_initialized else 1


def _copy(value: Any) -> Any:  # noqa: ANN401 - any object
    """A copy of plain data: containers, arrays, tensors. Other objects may belong together, and stay themselves."""
    kind = type(value)
    if kind in (list, tuple, set, frozenset):
        return kind(_copy(item) for item in value)
    if kind is deque:
        return deque((_copy(item) for item in value), value.maxlen)
    if kind in (dict, OrderedDict, defaultdict, Counter):
        copied = copy.copy(value)  # with what a missing key gives
        for key, item in value.items():
            copied[key] = _copy(item)
        return copied
    if kind is bytearray or hasattr(value, "__array__"):
        is_result = not getattr(value, "is_leaf", True)  # of operations that autograd follows: it copies no such tensor
        return copy.deepcopy(value.detach() if is_result else value)
    return value
