"""Deferred broadcasts of Gluon parameters that some rank has not initialized: each rank takes part after its own.

A layer that infers its input's size initializes its parameters in the first forward, at another time on each rank. So
the ranks cannot broadcast them in `broadcast_parameters`. Instead the parameter gets a hook: when it is initialized,
its rank submits the broadcast and continues. The root never waits: it sends a copy of its values, since its program may
continue to train. The other ranks take the root's values when the parameter is used next. All uses of a parameter go
through one method (`_check_and_get`), so the broadcasts of a layer's parameters run together.

A program may request several broadcasts of one parameter, with other roots or sets. They run in their order: a root
first receives what it must receive, and only then waits, before it sends.

The methods are replaced in the parameter, not in its class. Copies of it, pickled or not, have no hooks.
"""

import weakref
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import mxnet as mx
import torch

from worker_runtime.api.calls import begin_call
from worker_runtime.api.failed_calls import await_all
from worker_runtime.api.process_set import ProcessSet
from worker_runtime.collectives.broadcast import Broadcast
from worker_runtime.coordination.operation import Handle
from worker_runtime.errors import HorovodInternalError
from worker_runtime.membership.runtime import RUNTIME
from worker_runtime.mxnet.arrays import make_array, view_for_reading
from worker_runtime.mxnet.mxnet_errors import raises_mxnet_errors

_INITIALIZE, _LOOK, _STATE = _HOOKS = "_init_impl", "_check_and_get", "__getstate__"  # what is replaced


class DeferredBroadcast(NamedTuple):
    """One broadcast that a program has requested.

    name: the name of the broadcast, the same on all ranks.
    root_rank: the rank in the job that sends.
    process_set: the ranks that take part.
    """

    name: str
    root_rank: int
    process_set: ProcessSet


class NotBroadcastError(HorovodInternalError):
    """The deferred broadcast of a parameter failed.

    Cause: A rank was lost while a parameter was broadcast.
    Remedy: Call `broadcast_parameters()` again on all ranks.
    """

    def __init__(self, name: str, cause: str) -> None:
        super().__init__(
            f"the parameter '{name}' may differ between ranks, since its broadcast failed: {cause.rstrip('.')}; "
            "call broadcast_parameters() again on all ranks"
        )


def defer_all(deferred: Sequence[tuple[mx.gluon.Parameter, DeferredBroadcast]]) -> None:
    """Broadcast parameters when they are initialized, now if they already are, and again at each initialization.

    All ranks of a set must call this for the same parameters in the same order, also if they are initialized here.

    Raises:
        ValueError: an operation of this name is in flight.
        HorovodInternalError: a broadcast can no longer run.
        MXNetError: the MXNet operation that computes a parameter failed. The other parameters are deferred.
    """
    failures = []
    for parameter, broadcast in deferred:
        hook = _find_hook(parameter)
        if hook is None or not hook.is_current:
            hook = _Hook(parameter)
        try:
            hook.add(broadcast)
        except (ValueError, RuntimeError) as error:  # also MXNetError
            failures.append(error)
    if failures:
        raise failures[0]


def complete_deferred(parameter: mx.gluon.Parameter) -> None:
    """Complete the deferred broadcasts of a parameter that is now initialized and broadcast again on all ranks.

    Their errors are ignored.
    """
    hook = _find_hook(parameter)
    if hook is not None:
        hook.conclude()


def withdraw_deferred(parameter: mx.gluon.Parameter) -> None:
    """Forget the deferred broadcasts of a parameter that gets other values on all ranks."""
    for name in _HOOKS:
        vars(parameter).pop(name, None)


class _Pending(NamedTuple):
    handle: Handle[list[torch.Tensor]]
    is_root: bool

    @property
    def must_await(self) -> bool:
        """Whether the next use of the parameter waits for it: to receive a value, or because it is done."""
        return not self.is_root or self.handle.is_done()


class _Hook:
    """The replaced methods of one parameter, in one generation.

    Args:
        parameter: the parameter; its values may be set later.
    """

    def __init__(self, parameter: mx.gluon.Parameter) -> None:
        self._parameter = weakref.ref(parameter)  # weak, since the parameter holds this object
        self._engine = RUNTIME.engine
        self._waiting: list[DeferredBroadcast] = []  # not submitted yet
        self._lasting: dict[ProcessSet, DeferredBroadcast] = {}  # the last of each set, in their order
        self._has_asked = False
        self._counts: Counter[tuple[ProcessSet, str]] = Counter()
        self._pending: list[_Pending] = []
        self._failure = ""  # the reason why the ranks may differ
        vars(parameter).pop(_LOOK, None)  # the hook of an earlier generation
        vars(parameter).update({_INITIALIZE: self._initialize, _STATE: self._get_state})

    @property
    def is_current(self) -> bool:
        """Whether the hook belongs to the present generation."""
        return RUNTIME.is_initialized and RUNTIME.engine is self._engine

    def add(self, broadcast: DeferredBroadcast) -> None:
        """Add a broadcast, and submit it if the parameter is initialized."""
        self._failure = ""
        self._waiting.append(broadcast)
        self._lasting.pop(broadcast.process_set, None)
        self._lasting[broadcast.process_set] = broadcast
        parameter = self._find_parameter()
        if list_arrays(parameter):
            self._ask(parameter)

    def conclude(self) -> None:
        """Complete all broadcasts, and ignore their errors."""
        with suppress(NotBroadcastError):  # another broadcast follows
            self._settle()
        self._failure = ""

    def _initialize(self, *given: object, **more: object) -> None:
        """Replaces `_init_impl`: initialize the parameter, and submit its broadcasts."""
        parameter = self._find_parameter()
        initialize = getattr(type(parameter), _INITIALIZE)
        # A parameter with values keeps them, and changes its contexts.
        if list_arrays(parameter):
            initialize(parameter, *given, **more)
            return
        self._failure = ""
        vars(parameter).pop(_LOOK, None)  # MXNet's initialization calls it too
        initialize(parameter, *given, **more)
        if self.is_current:
            if self._has_asked:
                self._waiting += self._lasting.values()
            self._ask(parameter)

    def _look(self, *given: object, **more: object) -> Any:
        """Replaces `_check_and_get`: receive the root's values before the program uses the parameter."""
        self._settle()
        parameter = self._find_parameter()
        return getattr(type(parameter), _LOOK)(parameter, *given, **more)

    def _get_state(self) -> dict[str, Any]:
        """Replaces `__getstate__`: a copy has no hooks."""
        self._settle()
        return {name: value for name, value in vars(self._find_parameter()).items() if name not in _HOOKS}

    @raises_mxnet_errors
    def _ask(self, parameter: mx.gluon.Parameter) -> None:
        """Submit the waiting broadcasts, up to one that this rank sends after values that it has still to receive."""
        self._has_asked = True
        vars(parameter)[_LOOK] = self._look
        array = list_arrays(parameter)[0]
        while self._waiting:
            is_root = self._waiting[0].root_rank == self._engine.rank
            if is_root and not all(pending.is_root for pending in self._pending):
                break
            try:
                self._submit(self._waiting.pop(0), array, is_root=is_root)
            except Exception as error:
                self._failure = f"{type(error).__name__}: {error}"
                raise

    def _submit(self, broadcast: DeferredBroadcast, array: mx.nd.NDArray, *, is_root: bool) -> None:
        """Submit one broadcast of a copy, so that the program may change the array."""
        key = broadcast.process_set, broadcast.name
        self._counts[key] += 1
        count = self._counts[key]  # the name may be in flight from an earlier initialization
        call = begin_call(
            "broadcast", broadcast.name if count == 1 else f"{broadcast.name}.{count}", broadcast.process_set
        )
        with call.preparing():
            view = view_for_reading(array)
            if is_root:
                tensor = view.clone()
            else:
                tensor = torch.empty_like(view)
            operation = Broadcast([tensor], broadcast.root_rank, call.among, call.name, [tensor])
        self._pending.append(_Pending(call.engine.submit(operation), is_root))

    def _settle(self) -> None:
        """Wait for the root's values and copy them; on the root only finish completed broadcasts.

        Raises:
            NotBroadcastError: a broadcast failed, now or before.
        """
        parameter = self._find_parameter()
        self._receive(parameter)
        while self._waiting and self.is_current and list_arrays(parameter):
            self._ask(parameter)
            self._receive(parameter)
        if self._failure:
            raise NotBroadcastError(parameter.name, self._failure)
        if not self._pending:
            vars(parameter).pop(_LOOK, None)

    def _receive(self, parameter: mx.gluon.Parameter) -> None:
        done = [pending for pending in self._pending if pending.must_await]
        self._pending = [pending for pending in self._pending if pending not in done]
        # A root may have left before the others have received.
        if not self.is_current:
            done = [pending for pending in done if not pending.is_root]
        try:
            await_all(self._engine, [pending.handle for pending in done])
        except HorovodInternalError as error:
            self._failure = str(error)
            return
        received = [pending.handle for pending in done if not pending.is_root]
        if received:
            arrays = list_arrays(parameter)
            copy_to_all(make_array(self._engine.wait(received[-1])[0], arrays[0]), arrays)

    def _find_parameter(self) -> mx.gluon.Parameter:
        """The parameter, which exists whenever one of its methods is called."""
        return self._parameter()


def _find_hook(parameter: mx.gluon.Parameter) -> _Hook | None:
    hook = getattr(vars(parameter).get(_INITIALIZE), "__self__", None)
    if isinstance(hook, _Hook):
        return hook
    return None


def list_arrays(parameter: mx.gluon.Parameter) -> list[mx.nd.NDArray]:
    """A parameter's arrays, one for each context, without running hooks; empty where it is not initialized."""
    return parameter._data or []  # noqa: SLF001 - data() would run the hook


def copy_to_all(source: mx.nd.NDArray, arrays: Sequence[mx.nd.NDArray]) -> None:
    """Copy the values of `source` to all arrays of a parameter on any contexts; enqueued, without waiting."""
    with mx.autograd.pause():
        for array in arrays:
            if array is not source:
                source.astype(array.dtype, copy=False).copyto(array)
