"""State that outlives failures and changes of the job, and the loop that runs a training function with it.

In a job that nothing happens to, `run` synchronises the state once and calls the function. What a worker does when
others come or go begins here: its state returns to what was committed last, it joins the job anew, and the function
runs again.

Long because Horovod has the states and the loop in one module, which programs name.
"""

import copy
import os
import queue
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from worker_runtime.checkpoints import all_ranks
from worker_runtime.environment import read_checkpoint
from worker_runtime.errors import CheckpointError, HorovodInternalError, HostsUpdatedInterrupt, InitializationError
from worker_runtime.membership import Decision, Verdict, Wish
from worker_runtime.notifications import HOSTS_REMOVED
from worker_runtime.runtime import RUNTIME
from worker_runtime.stopping import stopping

# So often may an operation fail for one reason, without a commit in between, before it is taken for the program's own.
MAX_REPEATED_FAILURES = 3

notification_manager = RUNTIME.notifications  # by Horovod's name

Parameters = ParamSpec("Parameters")
ResultT = TypeVar("ResultT")
StateT = TypeVar("StateT", bound="State")

_NO_FILES = (
    "a {} cannot be kept in files; derive it from ObjectState, or give it the methods to_checkpoint() and "
    "from_checkpoint(kept)"
)

# Joins as one that restores its state, or keeps it, and tells what the others do; with why, where it restores.
Enter = Callable[[Wish, str], Verdict | None]
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
            raise _RanksLostInterrupt

    def _end_where_told(self) -> None:
        folder = read_checkpoint(os.environ)
        if folder is not None and self._size is not None and stopping():
            self.save()
            path = all_ranks.save(self, folder, self._bcast_object, self._rank())
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
        return all_ranks.load(self, Path(directory), self._bcast_object, self._rank())

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
        return bool(self._reset_callbacks) and self._size != _count_ranks()


class _RanksLostInterrupt(HostsUpdatedInterrupt):
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
            all_ranks.save(self, Path(directory), self._bcast_object, self._rank())

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


def run_fn(
    func: Callable[Concatenate[StateT, Parameters], ResultT], reset: Callable[[], None]
) -> Callable[Concatenate[StateT, Parameters], ResultT]:
    """Make a function of a state run through changes of the job.

    Args:
        func: trains, given the state and whatever more.
        reset: joins the job anew.
    """
    return run_through(func, lambda *_: reset())


def run_through(
    func: Callable[Concatenate[StateT, Parameters], ResultT], enter: Enter
) -> Callable[Concatenate[StateT, Parameters], ResultT]:
    """As `run_fn`; `enter` joins as one that restores its state, or keeps it, and tells what the others do."""

    @wraps(func)
    def wrapper(state: StateT, *args: Parameters.args, **kwargs: Parameters.kwargs) -> ResultT:
        notification_manager.register_listener(state)
        try:
            if RUNTIME.join_late():
                state.on_reset()
            with RUNTIME.declare_state():
                return _repeat(partial(func, state, *args, **kwargs), state, enter)
        finally:
            state._size = None  # noqa: SLF001 - of this module
            notification_manager.remove_listener(state)

    return wrapper  # type: ignore[return-value]  # it may be called with the state's name too


def _repeat(train: Callable[[], ResultT], state: State, enter: Enter) -> ResultT:
    """Sync the state and train, until it ends in something else than a change of the job."""
    skip_sync = False
    failures: list[tuple[str, int]] = []
    while True:
        wish: Wish | None
        failure: HorovodInternalError | None = None
        was_initialized = RUNTIME.is_initialized
        try:
            if not skip_sync:
                _synchronise(state)
                _note_synced()
            state._size = _count_ranks()  # noqa: SLF001 - of this module
            return train()
        except _RanksLostInterrupt:
            skip_sync = not state.needs_sync()
            wish = None
            RUNTIME.executor.begin_again()
        except HorovodInternalError as error:
            failures.append((str(error), state._commits))  # noqa: SLF001 - of this module
            has_left = was_initialized and not RUNTIME.is_initialized
            if has_left or failures[-MAX_REPEATED_FAILURES:] == failures[-1:] * MAX_REPEATED_FAILURES:
                raise  # the program has left the job itself, or nothing has changed: it is its own fault
            failure = error
            skip_sync = False
            wish = Wish.RESTORE
        except HostsUpdatedInterrupt as interrupt:
            skip_sync = interrupt.skip_sync and not state.needs_sync()
            wish = Wish.RESIZE
        if wish is not None:
            notification_manager.forget()
            verdict = _enter(enter, wish, failure)
            decision = Decision.RESTORE if wish is Wish.RESTORE else None
            if verdict is not None:
                decision = decision or verdict.decision
                is_same = decision is Decision.RESIZE and verdict.removed_only
                skip_sync = skip_sync and is_same  # others may have come in the meantime
            if decision is Decision.RESTORE:
                state.restore()  # not before: what this rank has asked for, as gradients, has ended only now
        state.on_reset()
        notification_manager.repeat_to(state)  # what came while the job was joined anew


def _enter(enter: Enter, wish: Wish, failure: HorovodInternalError | None) -> Verdict | None:
    """Join anew; where nobody takes this worker any more, what has failed says more than that joining has.

    It is shown as it was in the program, and nothing else with it: one traceback, which ends in one sentence.
    """
    trouble = "" if failure is None else str(failure)
    try:
        return enter(wish, trouble)
    except InitializationError as error:
        if failure is None:
            raise
        cause = error.cause
    if cause in trouble:
        raise failure
    sentence = f"{trouble.rstrip('.')}; the function cannot begin again: {cause}"
    told = HorovodInternalError(sentence).with_traceback(failure.__traceback__)
    told.__cause__, told.__context__ = failure.__cause__, failure.__context__  # of one that the program has raised
    told.__suppress_context__ = failure.__suppress_context__
    raise told


def run(
    func: Callable[Concatenate[StateT, Parameters], ResultT],
) -> Callable[Concatenate[StateT, Parameters], ResultT]:
    """Decorate a function that trains, so that it survives failures and changes of the job.

    Its first argument is the state. The state is synchronised from rank 0, then the function runs. After a
    HorovodInternalError the state returns to the last commit; after a HostsUpdatedInterrupt it stays as it is; in both
    cases the worker joins the job anew, and the function runs again. Other exceptions pass through, and so does a
    HorovodInternalError that comes three times for the same reason without a commit in between.

    In an elastic job most losses raise neither: the ranks that are left finish or repeat the step with the gradients
    that they still hold, and go on. If the state has something that depends on how many they are (reset callbacks, a
    sampler that has dealt samples out to the lost), the function begins again at their next commit or
    `check_host_updates`; nothing is restored or synchronised for that.

    Returns:
        A function of the same arguments, which returns what `func` returns.
    """
    return run_through(func, RUNTIME.enter_anew)


def check_names(kept: Iterable[str], own: Iterable[str]) -> None:
    """Raise a CheckpointError unless a checkpoint keeps what a state has."""
    theirs, ours = (", ".join(sorted(names)) or "nothing" for names in (kept, own))
    if theirs != ours:
        raise CheckpointError(f"it keeps {theirs}, and the state has {ours}")


def _synchronise(state: State) -> None:
    """Give all ranks the state of rank 0; at the beginning of a job that has checkpoints, that of the newest one."""
    folder = read_checkpoint(os.environ)
    if folder is None:
        state.sync()
        return
    is_begun = state._bcast_object(state._is_begun)  # noqa: SLF001 - of this module
    if is_begun or not state.load(folder):
        state.sync()
    state._is_begun = True  # noqa: SLF001 - of this module


def _note_synced() -> None:
    if RUNTIME.recovery is not None:
        RUNTIME.recovery.note_synced()


def _count_ranks() -> int:
    return RUNTIME.executor.size if RUNTIME.is_initialized else 1


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
