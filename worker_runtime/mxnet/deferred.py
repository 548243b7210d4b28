"""Broadcasts of a Gluon parameter that some rank has not initialised yet: each takes part when its own one is.

A layer that learns its input's size in the first forward initialises its parameters then, each rank at its own time.
So the ranks cannot meet in `broadcast_parameters`. Instead the parameter is hooked: whenever it is initialised, its
rank asks for the broadcast, and goes on. The root never waits: it sends a copy of its values, since its program may
train on meanwhile. The others take the root's values over where the parameter is looked at next, which whoever uses it
does through one method (`_check_and_get`); so all parameters of a layer are under way together.

Both methods are replaced in the one parameter, not in its class. Copies of it, pickled or not, have neither hook.
"""

import weakref
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import mxnet as mx
import torch

from worker_runtime.calls import await_all, begin_call
from worker_runtime.collectives import Broadcast
from worker_runtime.handles import Handle
from worker_runtime.mxnet.arrays import make_array, view_for_reading
from worker_runtime.process_set import ProcessSet
from worker_runtime.runtime import RUNTIME

_INITIALISE, _LOOK, _STATE = _HOOKS = "_init_impl", "_check_and_get", "__getstate__"  # what is replaced


class Wish(NamedTuple):
    """One broadcast that a program has called for.

    name: under which the parameter is broadcast, the same on all ranks.
    root_rank: whose values; its rank in the job.
    process_set: the ranks that take part.
    """

    name: str
    root_rank: int
    process_set: ProcessSet


def defer(parameter: mx.gluon.Parameter, wish: Wish) -> None:
    """Broadcast a parameter when it is initialised, now if it is already, and each time that it is initialised again.

    All ranks of the set call it for the same parameters in the same order, those that have them initialised too.

    Raises:
        ValueError: the name is in flight.
        HorovodInternalError: the broadcast cannot run any more.
    """
    hook = getattr(vars(parameter).get(_INITIALISE), "__self__", None)
    if not isinstance(hook, _Hook) or not hook.is_current:
        hook = _Hook(parameter)
    hook.add(wish)


class _Pending(NamedTuple):
    handle: Handle[list[torch.Tensor]]
    is_root: bool

    @property
    def is_to_be_awaited(self) -> bool:
        """Whoever looks at the parameter needs its end: to receive a value, or because it has come already."""
        return not self.is_root or self.handle.is_done()


class _Hook:
    """What is replaced in one parameter, in one generation."""

    def __init__(self, parameter: mx.gluon.Parameter) -> None:
        self._parameter = weakref.ref(parameter)  # it holds this object
        self._executor = RUNTIME.executor
        self._wishes: list[Wish] = []  # that are not asked for yet, since the parameter is not initialised
        self._last: Wish | None = None
        self._counts: Counter[str] = Counter()
        self._pending: list[_Pending] = []
        vars(parameter).pop(_LOOK, None)  # of an earlier generation
        vars(parameter).update({_INITIALISE: self._initialise, _STATE: self._get_state})

    @property
    def is_current(self) -> bool:
        """The generation is the present one."""
        return RUNTIME.is_initialized and RUNTIME.executor is self._executor

    def add(self, wish: Wish) -> None:
        """One more broadcast is called for."""
        self._wishes.append(wish)
        self._last = wish
        parameter = self._find_parameter()
        if list_arrays(parameter):
            self._ask(parameter)

    def _initialise(self, *given: object, **more: object) -> None:
        """In place of `_init_impl`: the parameter gets values of its own; the root's are asked for."""
        parameter = self._find_parameter()
        getattr(type(parameter), _INITIALISE)(parameter, *given, **more)
        if self.is_current:
            if not self._wishes and self._last is not None:
                self._wishes.append(self._last)
            self._ask(parameter)

    def _look(self, *given: object, **more: object) -> Any:  # noqa: ANN401 - MXNet's
        """In place of `_check_and_get`: the parameter has the root's values before anybody sees it."""
        self._settle()
        parameter = self._find_parameter()
        return getattr(type(parameter), _LOOK)(parameter, *given, **more)

    def _get_state(self) -> dict[str, Any]:
        """In place of `__getstate__`: a copy is a parameter as MXNet makes them."""
        self._settle()
        return {name: value for name, value in vars(self._find_parameter()).items() if name not in _HOOKS}

    def _ask(self, parameter: mx.gluon.Parameter) -> None:
        """Take part in the broadcasts that are called for: with copies, so that nobody need leave the array alone."""
        array = list_arrays(parameter)[0]
        for wish in self._wishes:
            self._counts[wish.name] += 1
            count = self._counts[wish.name]  # a name may be in flight from the time before
            call = begin_call("broadcast", wish.name if count == 1 else f"{wish.name}.{count}", wish.process_set)
            is_root = wish.root_rank == call.among.rank
            view = view_for_reading(array)
            tensor = view.clone() if is_root else torch.empty_like(view)
            operation = Broadcast([tensor], wish.root_rank, call.among, call.name, [tensor])
            self._pending.append(_Pending(call.executor.submit(operation), is_root))
        self._wishes.clear()
        vars(parameter)[_LOOK] = self._look

    def _settle(self) -> None:
        """Wait for the root's values and take them over; as root, only see to what is done."""
        done = [pending for pending in self._pending if pending.is_to_be_awaited]
        waiting = self._pending = [pending for pending in self._pending if pending not in done]
        parameter = self._find_parameter()
        if not waiting:
            vars(parameter).pop(_LOOK, None)
        if not self.is_current:  # to a root it is nothing that it has left before the others
            done = [pending for pending in done if not pending.is_root]
        await_all([pending.handle for pending in done])
        received = [pending.handle for pending in done if not pending.is_root]
        if received:
            arrays = list_arrays(parameter)
            spread(make_array(received[-1].wait()[0], arrays[0]), arrays)

    def _find_parameter(self) -> mx.gluon.Parameter:
        """The parameter, which is there whenever one of its methods is called."""
        return self._parameter()


def list_arrays(parameter: mx.gluon.Parameter) -> list[mx.nd.NDArray]:
    """A parameter's arrays, one for each context; none where it is not initialised. They are not looked at."""
    return parameter._data or []  # noqa: SLF001 - data() would look


def spread(source: mx.nd.NDArray, arrays: Sequence[mx.nd.NDArray]) -> None:
    """Give all arrays of a parameter, on whatever contexts, the values of `source`; enqueued, not waited for."""
    with mx.autograd.pause():
        for array in arrays:
            if array is not source:
                source.astype(array.dtype, copy=False).copyto(array)
