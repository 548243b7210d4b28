"""Broadcasts of a Gluon parameter that some rank has not initialised yet: each takes part when its own one is.

A layer that learns its input's size in the first forward initialises its parameters then, each rank at its own time. So
the ranks cannot meet in `broadcast_parameters`. Instead the parameter is hooked: whenever it is initialised, its rank
asks for the broadcast, and goes on. The root never waits: it sends a copy of its values, since its program may train on
meanwhile. The others take the root's values over where the parameter is looked at next. All uses of a parameter go
through one method (`_check_and_get`); so all parameters of a layer are under way together.

A program may call for several broadcasts of one parameter, of other roots or in other sets. They take place in their
order: what a root is still to receive it takes over before it sends, and this once it waits for it.

Both methods are replaced in the one parameter, not in its class. Copies of it, pickled or not, have neither hook.
"""

import weakref
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import mxnet as mx
import torch

from worker_runtime.api.calls import begin_call
from worker_runtime.api.failures import await_all
from worker_runtime.api.process_set import ProcessSet
from worker_runtime.collectives.broadcast import Broadcast
from worker_runtime.coordination.operation import Handle
from worker_runtime.errors import HorovodInternalError
from worker_runtime.membership.runtime import RUNTIME
from worker_runtime.mxnet.arrays import make_array, view_for_reading
from worker_runtime.mxnet.errors import raises_mxnet_errors

_INITIALISE, _LOOK, _STATE = _HOOKS = "_init_impl", "_check_and_get", "__getstate__"  # what is replaced


class DeferredBroadcast(NamedTuple):
    """One broadcast that a program has called for.

    name: under which the parameter is broadcast, the same on all ranks.
    root_rank: whose values; its rank in the job.
    process_set: the ranks that take part.
    """

    name: str
    root_rank: int
    process_set: ProcessSet


class NotBroadcastError(HorovodInternalError):
    """A parameter was to have another rank's values, or to give its own, and could not.

    Cause: A rank was lost while a parameter was broadcast.
    Remedy: Call `broadcast_parameters()` again on all ranks.
    """

    def __init__(self, name: str, cause: str) -> None:
        super().__init__(
            f"the parameter '{name}' may differ between ranks, since its broadcast has failed: {cause.rstrip('.')}; "
            "call broadcast_parameters() again on all ranks"
        )


def defer_all(deferred: Sequence[tuple[mx.gluon.Parameter, DeferredBroadcast]]) -> None:
    """Broadcast parameters when they are initialised, now if they are already, and each time that they are again.

    All ranks of a set call it for the same parameters in the same order, those that have them initialised too.

    Raises:
        ValueError: a name is in flight.
        HorovodInternalError: a broadcast cannot run any more.
        MXNetError: what a parameter was to be computed by has failed; the others are deferred all the same.
    """
    failures = []
    for parameter, broadcast in deferred:
        hook = _find_hook(parameter)
        if hook is None or not hook.is_current:
            hook = _Hook(parameter)
        try:
            hook.add(broadcast)
        except (ValueError, RuntimeError) as error:  # also MXNet's own
            failures.append(error)
    if failures:
        raise failures[0]


def complete_deferred(parameter: mx.gluon.Parameter) -> None:
    """See to the end of what was deferred, where all ranks have the parameter by now and broadcast it anew.

    Whether it has failed does not matter any more.
    """
    hook = _find_hook(parameter)
    if hook is not None:
        hook.conclude()


class _Pending(NamedTuple):
    handle: Handle[list[torch.Tensor]]
    is_root: bool

    @property
    def is_to_be_awaited(self) -> bool:
        """The next look at the parameter waits for its end: to receive a value, or because it has come already."""
        return not self.is_root or self.handle.is_done()


class _Hook:
    """What is replaced in one parameter, in one generation."""

    def __init__(self, parameter: mx.gluon.Parameter) -> None:
        self._parameter = weakref.ref(parameter)  # it holds this object
        self._engine = RUNTIME.engine
        self._waiting: list[DeferredBroadcast] = []  # that are not asked for yet
        self._lasting: dict[ProcessSet, DeferredBroadcast] = {}  # the last of each set, in their order
        self._has_asked = False
        self._counts: Counter[tuple[ProcessSet, str]] = Counter()
        self._pending: list[_Pending] = []
        self._failure = ""  # why the ranks may differ, as long as that is so
        vars(parameter).pop(_LOOK, None)  # of an earlier generation
        vars(parameter).update({_INITIALISE: self._initialise, _STATE: self._get_state})

    @property
    def is_current(self) -> bool:
        """The generation is the present one."""
        return RUNTIME.is_initialized and RUNTIME.engine is self._engine

    def add(self, broadcast: DeferredBroadcast) -> None:
        """One more broadcast is called for."""
        self._failure = ""
        self._waiting.append(broadcast)
        self._lasting.pop(broadcast.process_set, None)
        self._lasting[broadcast.process_set] = broadcast
        parameter = self._find_parameter()
        if list_arrays(parameter):
            self._ask(parameter)

    def conclude(self) -> None:
        """Let the parameter be as if it had never been late."""
        with suppress(NotBroadcastError):
            self._settle()
        self._failure = ""

    def _initialise(self, *given: object, **more: object) -> None:
        """In place of `_init_impl`: the parameter gets values of its own; the root's are asked for."""
        parameter = self._find_parameter()
        initialise = getattr(type(parameter), _INITIALISE)
        if list_arrays(parameter):  # it keeps its values, and changes its contexts
            initialise(parameter, *given, **more)
            return
        self._failure = ""
        vars(parameter).pop(_LOOK, None)  # MXNet looks at it, too
        initialise(parameter, *given, **more)
        if self.is_current:
            if self._has_asked:
                self._waiting += self._lasting.values()
            self._ask(parameter)

    def _look(self, *given: object, **more: object) -> Any:  # noqa: ANN401 - MXNet's
        """In place of `_check_and_get`: the parameter has the root's values before the program sees it."""
        self._settle()
        parameter = self._find_parameter()
        return getattr(type(parameter), _LOOK)(parameter, *given, **more)

    def _get_state(self) -> dict[str, Any]:
        """In place of `__getstate__`: a copy is a parameter as MXNet makes them."""
        self._settle()
        return {name: value for name, value in vars(self._find_parameter()).items() if name not in _HOOKS}

    @raises_mxnet_errors
    def _ask(self, parameter: mx.gluon.Parameter) -> None:
        """Take part in the broadcasts that are called for, up to one whose values are to come to this rank first."""
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
        """Take part in one of them: with a copy, so that the program may change the array."""
        key = broadcast.process_set, broadcast.name
        self._counts[key] += 1
        count = self._counts[key]  # a name may be in flight from the time before
        call = begin_call(
            "broadcast", broadcast.name if count == 1 else f"{broadcast.name}.{count}", broadcast.process_set
        )
        with call.preparing():
            view = view_for_reading(array)
            tensor = view.clone() if is_root else torch.empty_like(view)
            operation = Broadcast([tensor], broadcast.root_rank, call.among, call.name, [tensor])
        self._pending.append(_Pending(call.engine.submit(operation), is_root))

    def _settle(self) -> None:
        """Wait for the root's values and take them over; as root, only see to what is done.

        Raises:
            NotBroadcastError: it has failed, now or before.
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
        done = [pending for pending in self._pending if pending.is_to_be_awaited]
        self._pending = [pending for pending in self._pending if pending not in done]
        if not self.is_current:  # to a root it is nothing that it has left before the others
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
        """The parameter, which is there whenever one of its methods is called."""
        return self._parameter()


def _find_hook(parameter: mx.gluon.Parameter) -> _Hook | None:
    hook = getattr(vars(parameter).get(_INITIALISE), "__self__", None)
    return hook if isinstance(hook, _Hook) else None


def list_arrays(parameter: mx.gluon.Parameter) -> list[mx.nd.NDArray]:
    """A parameter's arrays, one for each context; none where it is not initialised. They are not looked at."""
    return parameter._data or []  # noqa: SLF001 - data() would look


def copy_to_all(source: mx.nd.NDArray, arrays: Sequence[mx.nd.NDArray]) -> None:
    """Give all arrays of a parameter, on whatever contexts, the values of `source`; enqueued, not waited for."""
    with mx.autograd.pause():
        for array in arrays:
            if array is not source:
                source.astype(array.dtype, copy=False).copyto(array)
