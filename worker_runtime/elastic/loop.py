"""The loop that runs a training function with its state.

In a job that nothing happens to, `run` synchronises the state once and calls the function. When ranks come or go, the
state returns to the last commit where it must, the worker joins the job anew, and the function runs again.
"""

import os
from collections.abc import Callable
from functools import partial, wraps
from typing import Concatenate, ParamSpec, TypeVar

from worker_runtime.checkpoints.folder import CheckpointFolder
from worker_runtime.elastic import states
from worker_runtime.elastic.states import RanksLostInterrupt, State
from worker_runtime.errors import HorovodInternalError, HostsUpdatedInterrupt, InitializationError
from worker_runtime.membership.runtime import RUNTIME
from worker_runtime.rendezvous import Decision, JoinReason, Verdict, read_checkpoint

# So often may an operation fail for one reason, without a commit in between, before it is taken for the program's own.
MAX_REPEATED_FAILURES = 3

notification_manager = RUNTIME.notifications  # by Horovod's name

Parameters = ParamSpec("Parameters")
ResultT = TypeVar("ResultT")
StateT = TypeVar("StateT", bound=State)

# Joins as one that restores its state, or keeps it, and tells what the others do; with why, where it restores.
Enter = Callable[[JoinReason, str], Verdict | None]


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
            state._size = None  # noqa: SLF001 - of this room
            notification_manager.remove_listener(state)

    return wrapper  # type: ignore[return-value]  # it may be called with the state's name too


def _repeat(train: Callable[[], ResultT], state: State, enter: Enter) -> ResultT:
    """Sync the state and train, until it ends in something else than a change of the job."""
    skip_sync = False
    failures: list[tuple[str, int]] = []
    while True:
        reason: JoinReason | None
        failure: HorovodInternalError | None = None
        was_initialized = RUNTIME.is_initialized
        try:
            if not skip_sync:
                _synchronise(state)
                _note_synced()
            state._size = states.count_ranks()  # noqa: SLF001 - of this room
            return train()
        except RanksLostInterrupt:
            skip_sync = not state.needs_sync()
            reason = None
            RUNTIME.engine.begin_again()
        except HorovodInternalError as error:
            failures.append((str(error), state._commits))  # noqa: SLF001 - of this room
            has_left = was_initialized and not RUNTIME.is_initialized
            if has_left or failures[-MAX_REPEATED_FAILURES:] == failures[-1:] * MAX_REPEATED_FAILURES:
                raise  # the program has left the job itself, or nothing has changed: it is its own fault
            failure = error
            skip_sync = False
            reason = JoinReason.RESTORE
        except HostsUpdatedInterrupt as interrupt:
            skip_sync = interrupt.skip_sync and not state.needs_sync()
            reason = JoinReason.RESIZE
        if reason is not None:
            notification_manager.forget()
            verdict = _enter(enter, reason, failure)
            decision = Decision.RESTORE if reason is JoinReason.RESTORE else None
            if verdict is not None:
                decision = decision or verdict.decision
                is_same = decision is Decision.RESIZE and verdict.removed_only
                skip_sync = skip_sync and is_same  # others may have come in the meantime
            if decision is Decision.RESTORE:
                state.restore()  # not before: what this rank has asked for, as gradients, has ended only now
        state.on_reset()
        notification_manager.repeat_to(state)  # what came while the job was joined anew


def _enter(enter: Enter, reason: JoinReason, failure: HorovodInternalError | None) -> Verdict | None:
    """Join anew; where nobody takes this worker any more, what has failed says more than that joining has.

    It is shown as it was in the program, and nothing else with it: one traceback, which ends in one sentence.
    """
    trouble = "" if failure is None else str(failure)
    try:
        return enter(reason, trouble)
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


def _synchronise(state: State) -> None:
    """Give all ranks the state of rank 0; at the beginning of a job that has checkpoints, that of the newest one."""
    folder = read_checkpoint(os.environ)
    if folder is None:
        state.sync()
        return
    is_begun = state._bcast_object(state._is_begun)  # noqa: SLF001 - of this room
    if not is_begun and RUNTIME.engine.rank == 0:
        CheckpointFolder(folder).check_writable()  # now, and not when the work of hours is to be saved
    if is_begun or not state.load(folder):
        state.sync()
    state._is_begun = True  # noqa: SLF001 - of this room


def _note_synced() -> None:
    if RUNTIME.recovery is not None:
        RUNTIME.recovery.note_synced()
