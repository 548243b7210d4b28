"""The distributed optimizer: a proxy of the user's optimizer, which averages gradients before each update.

The proxy passes every `isinstance` check for an MXNet optimizer. All attributes but its own are read from and written
to the user's optimizer, so that settings of a Trainer or a Module (`rescale_grad` above all) reach it.

MXNet's `Updater` gets all gradients of a step in one call. It sorts them by dtype, and updates weights in portions of
`aggregate_num`, the first layer first, which is the worst order for averaging. It also saves a trainer's states
together with the optimizer, and replaces the optimizer on loading: with a proxy, a plain trainer would load the proxy,
and a distributed one would lose it. So `keep_wrappers` replaces three methods of `Updater` when the first proxy is
created. They average all gradients together, the last layer first, before the user's optimizer updates; and they save
and load the user's optimizer, and keep the proxy in its place. Without a proxy they do what MXNet's methods do.

A key-value store that updates weights calls the optimizer from C, where all errors of Python are lost. The replaced
`KVStore.set_optimizer` refuses a proxy.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import mxnet as mx
from mxnet.kvstore import KVStore
from mxnet.optimizer import Updater

from worker_runtime.account import ACCOUNT
from worker_runtime.api.calls import begin_call, make_allreduce
from worker_runtime.api.process_set import ProcessSet, check_process_set, global_process_set
from worker_runtime.mxnet.arrays import copy_back, fill_parts, sum_parts, to_host, view_for_writing
from worker_runtime.mxnet.gradients import ArrayReducer, Gradient, is_alone, make_settings
from worker_runtime.mxnet.mxnet_errors import raises_mxnet_errors
from worker_runtime.reduction.settings import read_group_count, read_predivide

Many = (list, tuple)
_TITLE = "DistributedOptimizer"


class DistributedOptimizer(mx.optimizer.Optimizer):  # type: ignore[misc]  # mxnet has no types
    """Wrap `optimizer` so that each update uses the average of the workers' gradients.

    Use it as `gluon.Trainer(params, hvd.DistributedOptimizer(opt), kvstore=None)` or as
    `module.fit(..., kvstore=None, optimizer=hvd.DistributedOptimizer(opt))`. After an update the gradients are the
    averaged ones, bit for bit the same on all ranks. `rescale_grad` keeps its effect, so `trainer.step(batch_size)`
    divides by the batch size of one worker. (Horovod ignores it with a Trainer.)

    All attributes but `update` and `update_multi_precision` are those of the wrapped optimizer.
    `Trainer.save_states` saves the wrapped optimizer, so that any trainer can load it, also in a single process.
    `load_states` loads what any trainer has saved, and keeps this wrapper.

    All ranks must update the same weights at the same time, each rank on one context. For several contexts, for
    parameters that some ranks do not use, or for the loss scaling of `mxnet.contrib.amp`, use `DistributedTrainer`.

    Args:
        optimizer: an MXNet optimizer, or your own subclass. A distributed one is unwrapped and wrapped again.
        gradient_predivide_factor: gradients are divided by it before the sum and multiplied by it after.
        num_groups: the number of groups in which gradients are reduced together; 0 for buckets by size.
        process_set: the ranks whose gradients are averaged. On other ranks the optimizer updates locally.

    Raises:
        TypeError: `optimizer` is not an MXNet optimizer, or an argument has a wrong type.
        ValueError: the factor is 0 or not finite, or `num_groups` is negative. From an update: the weights are on
            several contexts, a key-value store updates them, or `mxnet.contrib.amp` scales the loss.
        HorovodInternalError: from an update: Horovod has not been initialized; the ranks have different gradients; or a
            reduction failed.
    """

    def __init__(
        self,
        optimizer: mx.optimizer.Optimizer,
        gradient_predivide_factor: float = 1.0,
        num_groups: int = 0,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        if not isinstance(optimizer, mx.optimizer.Optimizer):
            raise TypeError(
                f"DistributedOptimizer needs an optimizer, for example mx.optimizer.create('sgd'), not "
                f"{type(optimizer).__name__}"
            )
        keep_wrappers()
        own = vars_of(self)
        own["_optimizer"] = unwrap(optimizer)
        own["_gradient_predivide_factor"] = read_predivide(_TITLE, gradient_predivide_factor)
        own["_num_groups"] = read_group_count(_TITLE, num_groups)
        check_process_set(_TITLE, process_set)
        own["_process_set"] = process_set
        own["_reducers"] = {}  # by the first of the weights that are updated together
        own["_context"] = None
        ACCOUNT.note_optimizer()

    def __getattribute__(self, name: str) -> Any:
        if name in _OWN_ATTRIBUTES or (name.startswith("__") and name.endswith("__")):
            return object.__getattribute__(self, name)
        return getattr(object.__getattribute__(self, "_optimizer"), name)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(self._optimizer, name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self._optimizer, name)

    def __reduce__(self) -> tuple[type["DistributedOptimizer"], tuple[object, ...]]:
        return type(self), (self._optimizer, self._gradient_predivide_factor, self._num_groups, self._process_set)

    def update(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        """Average gradients, then update one weight or a list of weights; see `mx.optimizer.Optimizer.update`."""
        with self._averaging(index, weight, grad):
            self._optimizer.update(index, weight, grad, state)

    def update_multi_precision(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        """Like `update`; float16 weights may have float32 master copies."""
        with self._averaging(index, weight, grad):
            self._optimizer.update_multi_precision(index, weight, grad, state)

    @contextmanager
    def _averaging(self, index: Any, weight: Any, grad: Any) -> Iterator[None]:
        """Average, then update in the context. A list has all weights of a step; a single one is no step."""
        ACCOUNT.begin_step()
        self._average(index, weight, grad)
        yield
        if isinstance(index, Many):
            ACCOUNT.end_step()

    def _average(self, index: Any, weight: Any, grad: Any) -> None:
        if isinstance(index, Many):
            if index:
                self._average_many(index, weight, grad)
        elif not is_alone(self._process_set):
            self._check_use(index, weight)
            self._average_one(str(index), grad)

    @raises_mxnet_errors
    def _average_one(self, name: str, grad: mx.nd.NDArray) -> None:
        """Average a single gradient by a plain allreduce."""
        call = begin_call("allreduce", name, self._process_set)
        with call.preparing():
            total = sum_parts([grad])
            host_copy = to_host(total)
            view = view_for_writing(host_copy)
            how = make_settings(self._gradient_predivide_factor).how
            operation = make_allreduce(call, [view], how, [view])
        call.engine.run(operation)
        copy_back(host_copy, total)
        fill_parts(total, [grad])

    def _average_many(self, index: Sequence[Any], weights: Sequence[Any], grads: Sequence[mx.nd.NDArray]) -> None:
        names = [str(one) for one in index]
        reducer = self._find_reducer(names[0])
        if reducer.is_idle:
            reducer.reduce(())
            return
        self._check_use(index[0], weights[0])
        with reducer.preparing():
            totals = [sum_parts([grad]) for grad in grads]
            reducer.reduce([Gradient(name, total) for name, total in zip(names, totals, strict=True)])
        for total, grad in zip(totals, grads, strict=True):
            fill_parts(total, [grad])
        reducer.settle(None)

    def _find_reducer(self, key: str) -> ArrayReducer:
        """The reducer of the weights that begin with this one; each step updates the same ones together."""
        reducers: dict[str, ArrayReducer] = self._reducers
        if key not in reducers:
            settings = make_settings(self._gradient_predivide_factor)
            reducers[key] = ArrayReducer(settings, self._process_set, self._num_groups, show=self._show_name)
        return reducers[key]

    def _show_name(self, index: str) -> str:
        """The weight's own name in place of its index, where the optimizer knows it."""
        number = int(index) if index.isdecimal() else index
        parameter = self._optimizer.param_dict.get(number)
        return str(getattr(parameter, "name", self._optimizer.idx2name.get(number, index)))

    def _check_use(self, index: object, weight: mx.nd.NDArray) -> None:
        """Raise ValueError for uses that would make the workers' weights differ."""
        own = vars_of(self)
        if own["_context"] is None:
            own["_context"] = weight.context
        elif own["_context"] != weight.context:
            raise ValueError(
                f"DistributedOptimizer updates weights on {own['_context']} and on {weight.context}, but supports one "
                "context for each worker: give each worker one, for example mx.cpu(hvd.local_rank()), or use "
                "hvd.DistributedTrainer, which sums over contexts"
            )
        trainer = getattr(self._optimizer.param_dict.get(index), "_trainer", None)
        if getattr(trainer, "_amp_loss_scaler", None) is not None:
            raise ValueError(
                "mxnet.contrib.amp makes a plain Trainer skip a step when the gradients of its own worker overflow, "
                "since it checks them before they are averaged: use hvd.DistributedTrainer, where all workers skip it"
            )


class StoreUpdatesError(ValueError):
    """A key-value store is to update weights with a distributed optimizer.

    Cause: A Trainer or a Module with a `DistributedOptimizer` has a key-value store: an object, or the default one for
        several contexts.
    Remedy: Pass `kvstore=None`.
    """

    def __init__(self) -> None:
        super().__init__(
            "DistributedOptimizer cannot update weights in a key-value store, which ignores errors, so that weights "
            "would differ between ranks: pass kvstore=None to the Trainer or to the Module"
        )


# The proxy's own attributes; all others are those of the wrapped optimizer.
_OWN_ATTRIBUTES = frozenset(
    {
        *("_optimizer", "_gradient_predivide_factor", "_num_groups", "_process_set", "_reducers", "_context"),
        *(name for name in vars(DistributedOptimizer) if not name.startswith("__")),
    }
)


def vars_of(optimizer: DistributedOptimizer) -> dict[str, Any]:
    """The proxy's own attributes."""
    found: dict[str, Any] = object.__getattribute__(optimizer, "__dict__")
    return found


def unwrap(optimizer: mx.optimizer.Optimizer) -> mx.optimizer.Optimizer:
    """The user's optimizer inside a distributed one; a plain optimizer is returned unchanged."""
    if isinstance(optimizer, DistributedOptimizer):
        return vars_of(optimizer)["_optimizer"]
    return optimizer


def adopt_settings(optimizer: mx.optimizer.Optimizer, loaded: mx.optimizer.Optimizer) -> mx.optimizer.Optimizer:
    """Give an optimizer the settings and counts of a loaded one, and return it; it keeps its parameters.

    It keeps its learning rate scheduler too, which gets the values of the loaded one. If the loaded optimizer is of
    another class, it takes the place of the other, inside a distributed one.
    """
    own = unwrap(optimizer)
    if type(own) is not type(loaded):
        loaded.param_dict = own.param_dict
        if own is optimizer:
            return loaded
        vars_of(optimizer)["_optimizer"] = loaded
        return optimizer
    settings = {name: value for name, value in vars(loaded).items() if name != "param_dict"}  # which is not pickled
    scheduler, theirs = own.lr_scheduler, loaded.lr_scheduler
    if scheduler is not None and type(scheduler) is type(theirs):
        vars(scheduler).update(vars(theirs))
        settings["lr_scheduler"] = scheduler
    vars(own).update(settings)
    return optimizer


def find_reducer(optimizer: mx.optimizer.Optimizer, key: str) -> ArrayReducer:
    """The reducer of a distributed optimizer for the weights that begin with this one."""
    reducer: ArrayReducer = optimizer._find_reducer(key)  # noqa: SLF001 - of this module
    return reducer


@cache
def keep_wrappers() -> None:
    """Replace methods of MXNet, so that proxies average, keep their places, and are neither saved nor in a store."""
    KVStore.set_optimizer = _make_refusal(KVStore.set_optimizer)
    Updater.__call__ = _make_caller(Updater.__call__)
    Updater.get_states = _make_getter(Updater.get_states)
    Updater.set_states = _make_setter(Updater.set_states)


@contextmanager
def _unwrapping(updater: Any) -> Iterator[None]:
    """A context in which the updater has the wrapped optimizer in place of a proxy."""
    own = updater.optimizer
    updater.optimizer = unwrap(own)
    try:
        yield
    finally:
        updater.optimizer = own


def _make_caller(call: Callable[[Any, Any, Any, Any], None]) -> Callable[[Any, Any, Any, Any], None]:
    """`Updater.__call__` that averages all gradients of a step first, where the updater has a proxy."""

    def update(updater: Any, index: Any, grad: Any, weight: Any) -> None:
        own = updater.optimizer
        if not (isinstance(own, DistributedOptimizer) and isinstance(index, Many)):
            call(updater, index, grad, weight)
            return
        with own._averaging(index, weight, grad), _unwrapping(updater):  # noqa: SLF001 - of this module
            call(updater, index, grad, weight)

    return update


def _make_refusal(put: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
    """`KVStore.set_optimizer` that refuses a proxy."""

    def set_optimizer(store: Any, optimizer: mx.optimizer.Optimizer) -> None:
        if isinstance(optimizer, DistributedOptimizer):
            raise StoreUpdatesError
        put(store, optimizer)

    return set_optimizer


def _make_getter(get: Callable[[Any, bool], bytes]) -> Callable[[Any, bool], bytes]:
    """`Updater.get_states` with the wrapped optimizer in place of a proxy."""

    def get_states(updater: Any, dump_optimizer: bool = False) -> bytes:
        with _unwrapping(updater):
            return get(updater, dump_optimizer)

    return get_states


def _make_setter(put: Callable[[Any, bytes], None]) -> Callable[[Any, bytes], None]:
    """`Updater.set_states` that puts a loaded optimizer into the proxy, where the updater has one."""

    def set_states(updater: Any, states: bytes) -> None:
        own = updater.optimizer
        put(updater, states)
        loaded = updater.optimizer
        # The states have no optimizer.
        if loaded is own:
            return
        updater.optimizer = unwrap(loaded)
        if isinstance(own, DistributedOptimizer):
            vars_of(own)["_optimizer"] = updater.optimizer
            updater.optimizer = own

    return set_states
