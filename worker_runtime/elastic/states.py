"""The state of elastic training, which survives failures and changes of the job."""

import copy
import os
import queue
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from worker_runtime.account import ACCOUNT, Part
from worker_runtime.checkpoints import all_ranks
from worker_runtime.elastic import exchange
from worker_runtime.elastic.exchange import gather_objects
from worker_runtime.engine.pickling import find_pickling_error
from worker_runtime.errors import CheckpointError, HostsUpdatedInterrupt, WrongArgumentError
from worker_runtime.membership.notifications import HOSTS_REMOVED
from worker_runtime.membership.runtime import RUNTIME
from worker_runtime.rendezvous import read_checkpoint
from worker_runtime.snapshots.random_states import is_generator

_NO_FILES = (
    "a {} cannot be saved in a checkpoint; derive it from ObjectState, or give it the methods to_checkpoint() and "
    "from_checkpoint(kept)"
)

BroadcastObject = Callable[[Any], Any]


class State:
    """The base class of states. A subclass implements `save`, `restore` and `sync`.

    Args:
        bcast_object: broadcasts an object from rank 0, and returns it on all ranks.
        get_rank: returns this worker's rank.
    """

    def __init__(self, bcast_object: BroadcastObject, get_rank: Callable[[], int]) -> None:
        self._bcast_object = bcast_object
        self._rank = get_rank
        self._host_messages: queue.Queue[tuple[float, int]] = queue.Queue()
        self._last_updated_timestamp: float = 0
        self._reset_callbacks: list[Callable[[], None]] = []
        self._commits = 0
        self._size: int | None = None  # the job's size when the function started; None while no function runs
        self._is_begun = False  # a function has run with this state, here or on the rank that it came from
        self._is_checked = False  # the plain attributes could be pickled

    def register_reset_callbacks(self, callbacks: Iterable[Callable[[], None]]) -> None:
        """Register functions that are called after each change of the job, for settings that depend on size or rank.

        They are called in the order of registration. After a loss that did not interrupt the training they are called
        at the next `commit` or `check_host_updates`.
        """
        self._reset_callbacks.extend(callbacks)

    def on_reset(self) -> None:
        """Called after the worker has rejoined the job."""
        self._host_messages = queue.Queue()
        self.adapt()

    def adapt(self) -> None:
        """Adapt to a changed size or rank: call `reset()`, then the reset callbacks."""
        self.reset()
        for callback in self._reset_callbacks:
            callback()

    def on_hosts_updated(self, timestamp: float, update_res: int) -> None:
        """Note added or removed hosts for the next `check_host_updates`. Any thread may call this.

        Args:
            timestamp: orders the notices; later notices have greater ones.
            update_res: HOSTS_REMOVED, HOSTS_ADDED, or their bitwise or; 0 withdraws the earlier notices.
        """
        self._host_messages.put((timestamp, update_res))

    def commit(self) -> None:
        """Save the state in memory, then call `check_host_updates`. All ranks must call this equally often.

        Raises:
            HostsUpdatedInterrupt, SystemExit, CheckpointError, HorovodInternalError: see `check_host_updates`.
        """
        self._commits += 1
        with ACCOUNT.covering(Part.COMMIT):
            self.save()
        ACCOUNT.note_commit()
        if RUNTIME.recovery is not None:
            RUNTIME.recovery.note_commit()
        self.check_host_updates()

    def check_host_updates(self) -> None:
        """Raise HostsUpdatedInterrupt on all ranks if hosts were added or removed. All ranks call it equally often.

        `elastic.run` then restarts the function. Rank 0's knowledge decides. The method also raises after ranks were
        lost without an interruption, if the state depends on the number of ranks (see `waits_for_reset`). In a job with
        `--checkpoint` that has received a stop notice, it saves the state and exits with code 75.

        Raises:
            HostsUpdatedInterrupt: the job changes, or has changed.
            SystemExit: the job stops, and the state is saved.
            CheckpointError: the state could not be saved; raised on all ranks.
            HorovodInternalError: a rank was lost.
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
        self._stop_if_noticed()
        if self._last_updated_timestamp > earlier and update:
            raise HostsUpdatedInterrupt(skip_sync=update == HOSTS_REMOVED)
        if is_due:
            raise RanksLostInterrupt

    def _stop_if_noticed(self) -> None:
        """Save a checkpoint and exit, if the job has checkpoints and has received a stop notice."""
        folder = read_checkpoint(os.environ)
        if folder is not None and self._size is not None and RUNTIME.is_stopping():
            self.save()
            path = all_ranks.save(self, folder, self._bcast_object, gather_objects, self._rank())
            if self._rank() == 0:
                all_ranks.tell(f"the state is saved in {path}; the same command continues from there")
            sys.exit(os.EX_TEMPFAIL)

    def save(self) -> None:
        """Keep a copy of the state in this process's memory."""
        raise NotImplementedError

    def load(self, directory: str | os.PathLike[str]) -> bool:
        """Load the newest complete checkpoint of a folder. All ranks must call this at the same place of the program.

        Rank 0 reads the checkpoint, and broadcasts it. Damaged checkpoints are skipped with a warning on standard
        error. Checkpoints are pickles: load only what you trust, since loading can execute code.

        Args:
            directory: the folder of `save(directory)` or `--checkpoint`.

        Returns:
            True; False if the folder has no checkpoint, and then nothing has changed.

        Raises:
            CheckpointError: no checkpoint is readable, or its content does not fit this state; raised on all ranks.
            HorovodInternalError: a rank was lost.
        """
        return all_ranks.load(self, Path(directory), self._bcast_object, gather_objects, self._rank())

    def to_checkpoint(self) -> Any:
        """Return what `save()` saved last, for a checkpoint. Called on rank 0."""
        raise CheckpointError(_NO_FILES.format(type(self).__name__))

    def from_checkpoint(self, kept: Any) -> None:
        """Load the return value of `to_checkpoint()`. Called on rank 0; a `sync()` follows."""
        del kept
        raise CheckpointError(_NO_FILES.format(type(self).__name__))

    def get_extra_state(self) -> Any:
        """Return what else a job of the same size needs to continue bit for bit. Called on rank 0."""

    def load_extra_state(self, extra: Any, restore_random: Callable[[], None]) -> None:
        """Continue from the return value of `get_extra_state()`. Called on all ranks.

        Args:
            extra: the return value of `get_extra_state()`.
            restore_random: restores the random generators; call it after drawing numbers that the earlier job had
                drawn already.
        """

    def restore(self) -> None:
        """Restore what `save()` saved last."""
        raise NotImplementedError

    def sync(self) -> None:
        """Broadcast the state of rank 0 to all ranks."""
        raise NotImplementedError

    def reset(self) -> None:
        """Adapt to a changed size or rank. Does nothing by default."""

    def needs_sync(self) -> bool:
        """Whether the ranks' states may differ, although all run the same program. The same result on all ranks."""
        return False

    def waits_for_reset(self) -> bool:
        """Whether a recovery without an interrupt has removed ranks, and the state depends on their number."""
        return bool(self._reset_callbacks) and self._size != exchange.count_ranks()


class RanksLostInterrupt(HostsUpdatedInterrupt):
    """Restarts the function among the present ranks, after ranks were lost and the others have continued."""

    def __init__(self) -> None:
        super().__init__(skip_sync=True)


class ObjectState(State):
    """A state of plain Python objects, which are its attributes.

    Args:
        bcast_object: broadcasts an object from rank 0, and returns it on all ranks.
        get_rank: returns this worker's rank.
        **kwargs: the attributes and their values, which must be picklable.
    """

    def __init__(self, bcast_object: BroadcastObject, get_rank: Callable[[], int], **kwargs: object) -> None:
        super().__init__(bcast_object, get_rank)
        self._saved_state: dict[str, Any] = dict(kwargs)
        for name, value in kwargs.items():
            setattr(self, name, value)
        self.save()

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...

    def save(self, directory: str | os.PathLike[str] | None = None) -> None:
        """Copy the attributes, with the contents of lists, dicts, arrays and random generators.

        Horovod does not copy these contents.

        Args:
            directory: also write a checkpoint into this folder, for `load(directory)` in another job. Rank 0 writes it;
                the two newest checkpoints are kept. All ranks must then call this at the same place of the program.

        Raises:
            CheckpointError: the checkpoint could not be written; raised on all ranks. Earlier checkpoints are intact.
            HorovodInternalError: a rank was lost.
        """
        self._saved_state = _copy({name: getattr(self, name) for name in self._saved_state}, {})
        if directory is not None:
            all_ranks.save(self, Path(directory), self._bcast_object, gather_objects, self._rank())

    def to_checkpoint(self) -> Any:
        """Return the saved attributes."""
        return self._saved_state

    def from_checkpoint(self, kept: Any) -> None:
        """Set the attributes.

        Raises:
            CheckpointError: the checkpoint has attributes of other names.
        """
        check_names(kept, self._saved_state)
        for name, value in kept.items():
            setattr(self, name, value)

    def restore(self) -> None:
        """Set the attributes to their values at the last `save()`."""
        for name, value in _copy(self._saved_state, {}).items():
            setattr(self, name, value)

    def sync(self) -> None:
        """Broadcast the attributes of rank 0 to all ranks, and save them.

        Raises:
            ValueError: an attribute cannot be pickled; raised on all ranks, where the first call finds it.
        """
        self._receive()
        ObjectState.save(self)

    def _receive(self) -> None:
        """Broadcast the attributes of rank 0 to all ranks."""
        if self._saved_state:
            own = {name: getattr(self, name) for name in self._saved_state}
            if not self._is_checked:
                _check_picklable(own)
                self._is_checked = True
            synced = self._bcast_object(own)
            for name, value in synced.items():
                setattr(self, name, value)


def _check_picklable(values: Mapping[str, Any]) -> None:
    """Refuse what cannot be pickled on each rank. Else rank 0 would fail alone, and then each next rank 0."""
    for name, value in values.items():
        if fault := find_pickling_error(value):
            raise WrongArgumentError(
                f"the state's {name} cannot be pickled, and no other worker could get it ({fault}); keep it outside of "
                "the state"
            )


def check_names(kept: Iterable[str], own: Iterable[str]) -> None:
    """Raise a CheckpointError unless a checkpoint and a state have attributes of the same names."""
    theirs, ours = (", ".join(sorted(names)) or "nothing" for names in (kept, own))
    if theirs != ours:
        raise CheckpointError(f"it has {theirs}, and the state has {ours}")


def _copy(value: Any, memo: dict[int, Any]) -> Any:
    """A copy of plain data: containers, arrays, tensors and random generators.

    Other objects may refer to each other: they are shared.

    Args:
        value: what to copy.
        memo: the copies so far, by the ids of the originals: what is one object stays one, as with `copy.deepcopy`.
    """
    kind = type(value)
    if id(value) in memo:
        return memo[id(value)]

    if kind in (list, deque, dict, OrderedDict, defaultdict, Counter):
        copied = memo[id(value)] = copy.copy(value)  # keeps default_factory and maxlen
        for key, item in enumerate(value) if kind in (list, deque) else value.items():
            copied[key] = _copy(item, memo)
        return copied

    if kind in (tuple, set, frozenset):
        copied = kind(_copy(item, memo) for item in value)
    elif issubclass(kind, tuple) and hasattr(kind, "_make"):  # a named tuple
        copied = value._make(_copy(item, memo) for item in value)
    elif kind is bytearray or hasattr(kind, "__array__") or hasattr(kind, "asnumpy") or is_generator(value):
        # MXNet's arrays have asnumpy. The class is asked: an object may have attributes of all names, or raise errors.
        is_result = not getattr(value, "is_leaf", True)  # torch refuses to deepcopy results of autograd
        copied = copy.deepcopy(value.detach() if is_result else value, memo)
    else:
        return value

    memo[id(value)] = copied
    return copied
