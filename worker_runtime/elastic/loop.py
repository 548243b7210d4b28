"""The loop that runs a training function with its state: `hvd.elastic.run`.

Without failures or changes of the job, it synchronizes the state once and calls the function. After a failure or a
change it restores the last commit if necessary, rejoins the job, and runs the function again.
"""

import os
from collections.abc import Callable
from functools import partial, wraps
from typing import Concatenate, ParamSpec, TypeVar

from worker_runtime.account import ACCOUNT
from worker_runtime.checkpoints.folder import CheckpointFolder
from worker_runtime.elastic import exchange
from worker_runtime.elastic.states import RanksLostInterrupt, State
from worker_runtime.errors import HorovodInternalError, HostsUpdatedInterrupt, InitializationError
from worker_runtime.membership.runtime import RUNTIME
from worker_runtime.rendezvous import Action, JoinReason, RecoveryDecision, read_checkpoint

# After this many failures of the same reason without a commit in between, the error is the program's own: it is raised.
MAX_REPEATED_FAILURES = 3

notification_manager = RUNTIME.notifications  # by Horovod's name

Parameters = ParamSpec("Parameters")
ResultT = TypeVar("ResultT")
StateT = TypeVar("StateT", bound=State)

# Rejoins the job, given the reason and the error text; returns the recovery decision of all ranks, if there is one.
Enter = Callable[[JoinReason, str], RecoveryDecision | None]


def run_fn(
    func: Callable[Concatenate[StateT, Parameters], ResultT], reset: Callable[[], None]
) -> Callable[Concatenate[StateT, Parameters], ResultT]:
    """Decorate a training function so that it survives changes of the job; with Horovod's name and arguments.

    Args:
        func: the training function; its first argument is the state.
        reset: rejoins the job.
    """
    return run_through(func, lambda *_: reset())


def run_through(
    func: Callable[Concatenate[StateT, Parameters], ResultT], enter: Enter
) -> Callable[Concatenate[StateT, Parameters], ResultT]:
    """Like `run_fn`, with an `enter` that takes the reason, and returns the recovery decision."""

    @wraps(func)
    def wrapper(state: StateT, *args: Parameters.args, **kwargs: Parameters.kwargs) -> ResultT:
        notification_manager.register_listener(state)
        ACCOUNT.begin_function()
        try:
            is_late = RUNTIME.join_late()
            with RUNTIME.declare_state():
                return _repeat(partial(func, state, *args, **kwargs), state, enter, must_reset=is_late)
        finally:
            ACCOUNT.end_function()
            state._size = None  # noqa: SLF001 - of this package
            notification_manager.remove_listener(state)

    return wrapper  # type: ignore[return-value]  # the state may also be given by keyword


def _repeat(train: Callable[[], ResultT], state: State, enter: Enter, *, must_reset: bool) -> ResultT:
    """Synchronize the state and train, until the function returns or raises something else than a change of the job.

    Args:
        train: the training function.
        state: its state. Reset callbacks may run collectives, so a rank can be lost in one.
        enter: rejoins the job.
        must_reset: reset the state first.
    """
    skip_sync = False
    failures: list[tuple[str, int]] = []
    while True:
        reason: JoinReason | None
        failure: HorovodInternalError | None = None
        was_initialized = RUNTIME.is_initialized
        try:
            _begin(state, must_reset=must_reset, must_sync=not skip_sync)
            ACCOUNT.begin_training()
            return train()
        except RanksLostInterrupt:
            skip_sync = not state.needs_sync()
            reason = None
            RUNTIME.engine.supersede_sets()
        except HorovodInternalError as error:
            failures.append((str(error), state._commits))  # noqa: SLF001 - of this package
            has_left = was_initialized and not RUNTIME.is_initialized
            if has_left or failures[-MAX_REPEATED_FAILURES:] == failures[-1:] * MAX_REPEATED_FAILURES:
                raise  # the program called shutdown(), or fails again and again: the error is its own
            failure = error
            skip_sync = False
            reason = JoinReason.RESTORE
        except HostsUpdatedInterrupt as interrupt:
            skip_sync = interrupt.skip_sync and not state.needs_sync()
            reason = JoinReason.RESIZE

        if reason is not None:
            ACCOUNT.begin_recovery()
            notification_manager.forget()
            decision = _enter(enter, reason, failure)
            ACCOUNT.note_formed(RUNTIME.engine.generation if RUNTIME.is_initialized else 0)
            action = None
            if reason is JoinReason.RESTORE:
                action = Action.RESTORE
            if decision is not None:
                action = action or decision.action
                is_same = action is Action.RESIZE and decision.removed_only
                skip_sync = skip_sync and is_same  # others may have come in the meantime
            if action is Action.RESTORE:
                state.restore()  # not earlier: until here this rank's operations could still write to tensors
                ACCOUNT.note_restored()
        must_reset = True


def _enter(enter: Enter, reason: JoinReason, failure: HorovodInternalError | None) -> RecoveryDecision | None:
    """Rejoin the job. If the job rejects this worker, raise the program's failure with the rejection added.

    The program sees one traceback, that of its own failure, and one message.
    """
    text = "" if failure is None else str(failure)
    try:
        return enter(reason, text)
    except InitializationError as rejection:
        if failure is None:
            raise
        cause = rejection.cause
    if cause in text:
        raise failure

    message = f"{text.rstrip('.')}; the function cannot restart: {cause}"
    error = HorovodInternalError(message).with_traceback(failure.__traceback__)
    error.__cause__, error.__context__ = failure.__cause__, failure.__context__  # the failure may be the program's own
    error.__suppress_context__ = failure.__suppress_context__
    raise error


def run(
    func: Callable[Concatenate[StateT, Parameters], ResultT],
) -> Callable[Concatenate[StateT, Parameters], ResultT]:
    """Decorate a training function so that it survives failures and changes of the job.

    The wrapped function synchronizes the state from rank 0, then calls `func`. After a HorovodInternalError it restores
    the last commit; after a HostsUpdatedInterrupt it keeps the state. In both cases the worker rejoins the job, and
    `func` runs again. Other exceptions are raised. A HorovodInternalError is raised when it occurs three times with
    the same message and without a commit in between.

    Most losses of ranks raise neither exception in an elastic job: the surviving ranks complete or repeat the step with
    the gradients that they still hold, and continue. If the state depends on the number of ranks (it has reset
    callbacks, or a sampler with samples of the lost ranks), `func` restarts at the next commit or
    `check_host_updates`. That restart keeps the state as it is.

    Args:
        func: the training function; its first argument is the state.

    Returns:
        A function of the same arguments, with the return value of `func`.
    """
    return run_through(func, RUNTIME.rejoin)


def _begin(state: State, *, must_reset: bool, must_sync: bool) -> None:
    """Reset and synchronize the state before the function runs."""
    if must_reset:
        state.on_reset()
        notification_manager.repeat_to(state)  # notices that came during the rejoin
    if must_sync:
        _synchronize(state)
        if RUNTIME.recovery is not None:
            RUNTIME.recovery.note_synced()
    state._size = exchange.count_ranks()  # noqa: SLF001 - of this package


def _synchronize(state: State) -> None:
    """Broadcast the state of rank 0. At the start of a job with `--checkpoint`, load the newest checkpoint instead."""
    folder = read_checkpoint(os.environ)
    if folder is None:
        state.sync()
        return
    RUNTIME.uses_checkpoints = True
    is_begun = state._bcast_object(state._is_begun)  # noqa: SLF001 - of this package
    if not is_begun and RUNTIME.engine.rank == 0:
        CheckpointFolder(folder).check_writable()  # now rather than after hours of training
    if is_begun or not state.load(folder):
        state.sync()
    state._is_begun = True  # noqa: SLF001 - of this package
