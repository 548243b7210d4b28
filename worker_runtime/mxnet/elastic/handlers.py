"""The handlers of MXNet's objects, which save, restore and synchronize them, and put them into checkpoints.

Copies are in the host's memory, and a copy overwrites the earlier one where it fits. MXNet's engine makes them in the
background, in the order of all other operations: `save()` enqueues them, and does not wait.
"""

import pickle
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import mxnet as mx

from worker_runtime.elastic.exchange import broadcast_object
from worker_runtime.elastic.handlers import StateHandler
from worker_runtime.elastic.states import check_names
from worker_runtime.mxnet.deferred import copy_to_all, list_arrays, withdraw_deferred
from worker_runtime.mxnet.elastic.copies import await_engine, copy_arrays
from worker_runtime.mxnet.functions import (
    broadcast_optimizer_state,
    broadcast_parameters,
    list_updaters,
    load_states,
)
from worker_runtime.mxnet.gradients import ArrayReducer
from worker_runtime.mxnet.optimizer import DistributedOptimizer, find_reducer, unwrap, vars_of
from worker_runtime.mxnet.trainer import DistributedTrainer

_TITLE = "the elastic state"

Arrays = Mapping[str, Sequence[mx.nd.NDArray]]  # by name, one for each context


class ArraysHandler(StateHandler):
    """Saves arrays that have names."""

    _saved: dict[str, mx.nd.NDArray] | None = None

    @abstractmethod
    def list_all(self) -> Arrays:
        """The object's arrays that exist, with all values that the job has sent."""

    def save(self) -> None:
        """Copy the arrays of the first context to the host's memory; enqueued."""
        self._saved = copy_arrays({name: arrays[0] for name, arrays in self.list_all().items()}, self._saved)

    def restore(self) -> None:
        """Copy the saved arrays to all contexts, after all operations that MXNet has enqueued."""
        await_engine()
        for name, arrays in self.list_all().items():
            if name in self.saved:
                copy_to_all(self.saved[name], arrays)

    @property
    def saved(self) -> dict[str, mx.nd.NDArray]:
        """The saved arrays."""
        return self._saved or {}

    def to_checkpoint(self) -> Any:
        """Return the saved arrays, as those of NumPy."""
        return {name: array.asnumpy() for name, array in self.saved.items()}


class NetHandler(ArraysHandler):
    """Saves a Gluon block, or a ParameterDict: its parameters, and the running means of BatchNorm.

    A parameter that is not initialized is saved as such. If it is initialized when the state is restored, it is
    initialized once more: what it has learned since is gone.
    """

    def save(self) -> None:
        """Copy the parameters, and note which of them are not initialized."""
        super().save()
        self._late = {
            name: parameter._deferred_init  # noqa: SLF001 - nothing else tells
            for name, parameter in self._listed.items()
            if name not in self.saved
        }

    def restore(self) -> None:
        """Restore the parameters, and forget their gradients."""
        for parameter in self._parameters.values():
            withdraw_deferred(parameter)
        super().restore()
        for name, parameter in self._parameters.items():
            if name in self._late:
                if list_arrays(parameter):
                    _initialize_again(parameter, self._late[name])
            elif not list_arrays(parameter):
                parameter._load_init(self.saved[name], None)  # noqa: SLF001 - as `load_parameters` does
        self.reset()

    def reset(self) -> None:
        """Forget the gradients of an interrupted step: those that accumulate would be added to the next one's."""
        for parameter in self._parameters.values():
            if list_arrays(parameter) and parameter.grad_req != "null":
                _forget_gradient(parameter)

    def sync(self) -> None:
        """Broadcast the parameters of rank 0. Ranks initialize parameters that only rank 0 knows."""
        own = {name: parameter.shape for name, parameter in self._parameters.items() if list_arrays(parameter)}
        shapes = broadcast_object(own, "elastic.shapes")
        for name, parameter in self._parameters.items():
            if name in shapes and name not in own and parameter._deferred_init:  # noqa: SLF001 - nothing else tells
                parameter.shape = shapes[name]
                parameter._finish_deferred_init()  # noqa: SLF001 - as the first forward does
        broadcast_parameters(self._parameters, root_rank=0, prefix=f"elastic.{self.name}.")

    def to_checkpoint(self) -> Any:
        """Return the saved parameters, and the names of those that are not initialized."""
        return {"arrays": super().to_checkpoint(), "late": sorted(self._late)}

    def from_checkpoint(self, kept: Any) -> Any:
        """Load the parameters, and initialize those that have no shape yet."""
        check_names([*kept["arrays"], *kept["late"]], self._parameters)
        for name, values in kept["arrays"].items():
            array = mx.nd.array(values, dtype=values.dtype)
            parameter = self._parameters[name]
            parameter._load_init(array.as_np_ndarray() if mx.util.is_np_array() else array, None)  # noqa: SLF001 - MXNet has no public way
        return self.value

    def list_all(self) -> Arrays:
        """See `ArraysHandler`; `_check_and_get` first receives deferred broadcasts."""
        self._listed = self._parameters  # kept for `save`: to collect them takes a while
        found = self._listed.items()
        return {name: each._check_and_get(each._data, list) for name, each in found if list_arrays(each)}  # noqa: SLF001 - list_data() refuses sparse ones

    @property
    def _parameters(self) -> dict[str, mx.gluon.Parameter]:
        value = self.value
        return dict((value.collect_params() if isinstance(value, mx.gluon.Block) else value).items())


def _forget_gradient(parameter: mx.gluon.Parameter) -> None:
    """Make a gradient that no step has used have no effect."""
    for array in list_arrays(parameter):
        array._fresh_grad = False  # noqa: SLF001 - MXNet's only way to say it
    if parameter.grad_req == "add":
        for gradient in parameter.list_grad():
            gradient[:] = 0  # zero_grad() refuses arrays of mx.np


def _initialize_again(parameter: mx.gluon.Parameter, how: tuple[Any, ...]) -> None:
    """Initialize a parameter that has a shape by now.

    Args:
        parameter: the parameter.
        how: what its deferred initialization was; empty if the program had not initialized it.
    """
    parameter._data = parameter._grad = None  # noqa: SLF001 - there is no other way
    parameter._deferred_init = how  # noqa: SLF001 - MXNet has no public way
    parameter._finish_deferred_init()  # noqa: SLF001 - as the first forward does


class _Extras(NamedTuple):
    """What an optimizer needs and does not pickle.

    multipliers: the `lr_mult` and `wd_mult` of each parameter of a trainer, by index.
    scaler: the values of the scaler that `amp.init_trainer` has made, if it was called.
    """

    multipliers: dict[int, tuple[float, float]]
    scaler: dict[str, Any] | None


class OptimizerHandler(StateHandler):
    """Saves the optimizer of a trainer or a module: states, update counts, settings and the loss scaler of amp.

    The settings include the `lr_mult` and `wd_mult` of a trainer's parameters, which MXNet's optimizer lacks.
    """

    _states: Any = None

    def save(self) -> None:
        """Copy the states of the first context, and the settings."""
        updater = self._updaters[0]
        self._states = copy_arrays(updater.states, self._states)
        self._settings = pickle.dumps(unwrap(updater.optimizer))
        self._extras = self._read_extras()

    def restore(self) -> None:
        """Restore what `save()` saved last."""
        await_engine()
        self._load(self._states, pickle.loads(self._settings), self._extras)  # noqa: S301 - of this process

    def sync(self) -> None:
        """Broadcast the states and the settings of rank 0 without running a step."""
        broadcast_optimizer_state(self.value, root_rank=0)
        self._load_extras(broadcast_object(self._read_extras(), "elastic.extras"))

    def to_checkpoint(self) -> Any:
        """Return the saved states, settings and extras."""
        return pickle.dumps((self._states, pickle.loads(self._settings), self._extras))  # noqa: S301 - of this process

    def from_checkpoint(self, kept: Any) -> Any:
        """Load them."""
        self._load(*pickle.loads(kept))  # noqa: S301 - trusted like the program itself
        return self.value

    def get_extra_state(self) -> Any:
        """Return the plans of gradient buckets of what is distributed, by the key of each reducer."""
        return {key: reducer.plan_inputs for key, reducer in self._reducers.items()} or None

    def load_extra_state(self, extra: Any, restore_random: Callable[[], None]) -> None:
        """Use these plans of gradient buckets."""
        del restore_random
        optimizer = self._updaters[0].optimizer
        for key, own in extra.items():
            reducer = self._reducers.get(key)
            if isinstance(optimizer, DistributedOptimizer):
                reducer = find_reducer(optimizer, key)
            if reducer is not None:
                reducer.resume(own)

    @property
    def _updaters(self) -> Sequence[mx.optimizer.Updater]:
        return list_updaters(_TITLE, self.value)

    @property
    def _reducers(self) -> dict[str, ArrayReducer]:
        if isinstance(self.value, DistributedTrainer):
            return {"": self.value.reducer}
        optimizer = self._updaters[0].optimizer
        return vars_of(optimizer)["_reducers"] if isinstance(optimizer, DistributedOptimizer) else {}

    def _load(self, states: Any, optimizer: mx.optimizer.Optimizer, extras: _Extras) -> None:
        load_states(self.value, self._updaters, states, optimizer)
        self._load_extras(extras)

    def _read_extras(self) -> _Extras:
        parameters = self._updaters[0].optimizer.param_dict
        scaler = getattr(self.value, "_amp_loss_scaler", None)
        return _Extras(
            multipliers={index: (each.lr_mult, each.wd_mult) for index, each in parameters.items()},
            scaler=None if scaler is None else dict(vars(scaler)),
        )

    def _load_extras(self, extras: _Extras) -> None:
        parameters = self._updaters[0].optimizer.param_dict
        for index in parameters.keys() & extras.multipliers.keys():
            parameters[index].lr_mult, parameters[index].wd_mult = extras.multipliers[index]
        scaler = getattr(self.value, "_amp_loss_scaler", None)
        if scaler is not None and extras.scaler is not None:
            vars(scaler).update(extras.scaler)
