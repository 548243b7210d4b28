"""The distributed optimizer: the user's own optimizer, which is handed averaged gradients.

It is an MXNet optimizer for every check, and for everything but `update` it *is* the user's: what is read, written or
called reaches that one, so that what a Trainer or a Module sets on it (`rescale_grad` above all) counts.

MXNet hands an optimizer its gradients in small portions, first layer first: the worst way to average them. As many as
it says it can update at once (`aggregate_num`), though, it gets in one call. So it says that it can update all,
averages them in one go, last layer first, and then updates in the portions that the user's optimizer wants.

MXNet saves the momenta of a trainer together with its optimizer, and lets the one that it loads take the place of its
own. A distributed one would so get into trainers that are to have none, and be lost where one must be. One class of
MXNet's does all of the saving and loading, the `Updater`, for trainers, modules and key-value stores alike. So two of
its methods are replaced, when the first distributed optimizer is made: others may replace them too, before or after.
They do as before where no distributed one is concerned; where one is, it stays what and where it is, and the optimizer
in it is saved and loaded.
"""

import sys
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import mxnet as mx
from mxnet.optimizer import Updater

from worker_runtime.api.calls import begin_call, make_allreduce
from worker_runtime.api.process_set import ProcessSet, check_process_set, global_process_set
from worker_runtime.mxnet.arrays import copy_back, fill_parts, sum_parts, to_host, view_for_writing
from worker_runtime.mxnet.errors import raises_mxnet_errors
from worker_runtime.mxnet.gradients import ArrayReducer, Gradient, is_alone, make_settings
from worker_runtime.reduction.settings import read_group_count, read_predivide

Many = (list, tuple)
_TITLE = "DistributedOptimizer"


class DistributedOptimizer(mx.optimizer.Optimizer):  # type: ignore[misc]  # mxnet has no types
    """Lets `optimizer` update with the average of the workers' gradients.

    For `gluon.Trainer(params, hvd.DistributedOptimizer(opt), kvstore=None)` and for
    `module.fit(..., kvstore=None, optimizer=hvd.DistributedOptimizer(opt))`. After an update the gradients are the
    averaged ones, on all ranks the same to the last bit; factors such as `rescale_grad` count as without it, so that
    `trainer.step(batch_size)` divides by the batch size of one worker. (Horovod loses that with a Trainer.)

    Every attribute but `update`, `update_multi_precision` and `aggregate_num` is the wrapped optimizer's, also for
    writing. `Trainer.save_states` saves the wrapped optimizer, so that any trainer can load it, in a single process
    too; `load_states` lets what any trainer has saved take the wrapped one's place. Pickled by itself, it is the
    wrapped optimizer with its settings.

    All ranks must update the same weights at the same time, each on one context: `DistributedTrainer` knows how to
    train on several, with parameters that some ranks do not use, and with the loss scaling of `mxnet.contrib.amp`.

    Args:
        optimizer: any of MXNet's, or the user's own; one that is already distributed is wrapped anew.
        gradient_predivide_factor: gradients are divided by it before the sum, and multiplied after.
        num_groups: gradients travel in that many groups; 0 lets them travel as is fastest.
        process_set: the ranks that average. Others may use the optimizer too; they update by themselves.

    Raises:
        TypeError: `optimizer` is none, or another argument is of a wrong kind.
        ValueError: the factor is 0 or not finite, or `num_groups` negative. At an update: of weights on several
            contexts, or with `mxnet.contrib.amp`.
        HorovodInternalError: at an update: Horovod has not been initialized, the ranks do not have the same gradients,
            or a reduction failed.
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
        own["_reducers"] = {}  # by the first weight of those that are updated together
        own["_context"] = None

    def __getattribute__(self, name: str) -> Any:  # noqa: ANN401 - of the wrapped optimizer
        if name in _OWN or (name.startswith("__") and name.endswith("__")):
            return object.__getattribute__(self, name)
        return getattr(object.__getattribute__(self, "_optimizer"), name)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(self._optimizer, name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self._optimizer, name)

    def __reduce__(self) -> tuple[type["DistributedOptimizer"], tuple[object, ...]]:
        return type(self), (self._optimizer, self._gradient_predivide_factor, self._num_groups, self._process_set)

    @property
    def aggregate_num(self) -> int:
        """How many weights one call updates: all that there are."""
        return sys.maxsize

    def update(self, index: Any, weight: Any, grad: Any, state: Any) -> None:  # noqa: ANN401 - one, or lists
        """Average gradients and update weights: one, or lists of them; see `mx.optimizer.Optimizer.update`."""
        self._average(index, weight, grad)
        self._hand_over("update", index, weight, grad, state)

    def update_multi_precision(self, index: Any, weight: Any, grad: Any, state: Any) -> None:  # noqa: ANN401 - as above
        """As `update`; weights in half precision may have masters in single."""
        self._average(index, weight, grad)
        self._hand_over("update_multi_precision", index, weight, grad, state)

    def _average(self, index: Any, weight: Any, grad: Any) -> None:  # noqa: ANN401 - as above
        if is_alone(self._process_set):
            return
        if not isinstance(index, Many):
            self._check_use(index, weight)
            self._average_one(str(index), grad)
        elif index:
            self._check_use(index[0], weight[0])
            self._average_many([str(one) for one in index], grad)

    @raises_mxnet_errors
    def _average_one(self, name: str, grad: mx.nd.NDArray) -> None:
        """At once: there is nothing to wait for, or to pack it with."""
        call = begin_call("allreduce", name, self._process_set)
        with call.preparing():
            total = sum_parts([grad])
            home = to_host(total)
            view = view_for_writing(home)
            how = make_settings(self._gradient_predivide_factor).how
            operation = make_allreduce(call, [view], how, [view])
        call.engine.run(operation)
        copy_back(home, total)
        fill_parts(total, [grad])

    def _average_many(self, names: Sequence[str], grads: Sequence[mx.nd.NDArray]) -> None:
        reducer = self._find_reducer(names[0])
        with reducer.preparing():
            totals = [sum_parts([grad]) for grad in grads]
            reducer.reduce([Gradient(name, total) for name, total in zip(names, totals, strict=True)])
        for total, grad in zip(totals, grads, strict=True):
            fill_parts(total, [grad])

    def _find_reducer(self, key: str) -> ArrayReducer:
        """That of the weights which begin with this one: in each step they are the same."""
        reducers: dict[str, ArrayReducer] = self._reducers
        if key not in reducers:
            settings = make_settings(self._gradient_predivide_factor)
            reducers[key] = ArrayReducer(settings, self._process_set, self._num_groups)
        return reducers[key]

    def _hand_over(self, method: str, index: Any, weight: Any, grad: Any, state: Any) -> None:  # noqa: ANN401 - as above
        """Have the wrapped optimizer update, as many weights at once as it can."""
        update = getattr(self._optimizer, method)
        if not isinstance(index, Many):
            update(index, weight, grad, state)
            return
        portion = self._optimizer.aggregate_num
        if portion > 0:
            for begin in range(0, len(index), portion):
                part = slice(begin, begin + portion)
                update(index[part], weight[part], grad[part], state[part])
        else:
            for one in zip(index, weight, grad, state, strict=True):
                update(*one)

    def _check_use(self, index: object, weight: mx.nd.NDArray) -> None:
        """Refuse what would let the workers' weights drift apart."""
        own = vars_of(self)
        if own["_context"] is None:
            own["_context"] = weight.context
        elif own["_context"] != weight.context:
            raise ValueError(
                f"DistributedOptimizer updates weights on {own['_context']} and on {weight.context}, but one worker "
                "trains on one context with it: give each worker its own, mx.cpu(hvd.local_rank()) for example, or "
                "use hvd.DistributedTrainer, which sums over contexts"
            )
        trainer = getattr(self._optimizer.param_dict.get(index), "_trainer", None)
        if getattr(trainer, "_amp_loss_scaler", None) is not None:
            raise ValueError(
                "mxnet.contrib.amp lets a plain Trainer skip a step when its own worker's gradients overflow, since it "
                "looks for overflows before they are averaged: use hvd.DistributedTrainer, where all workers skip it"
            )


# What does not reach the wrapped optimizer.
_OWN = frozenset(
    {
        *("_optimizer", "_gradient_predivide_factor", "_num_groups", "_process_set", "_reducers", "_context"),
        *(name for name in vars(DistributedOptimizer) if not name.startswith("__")),
    }
)


def vars_of(optimizer: DistributedOptimizer) -> dict[str, Any]:
    """The wrapper's own attributes."""
    found: dict[str, Any] = object.__getattribute__(optimizer, "__dict__")
    return found


def unwrap(optimizer: mx.optimizer.Optimizer) -> mx.optimizer.Optimizer:
    """The user's own optimizer, whether it is distributed or not."""
    return vars_of(optimizer)["_optimizer"] if isinstance(optimizer, DistributedOptimizer) else optimizer


@cache
def keep_wrappers() -> None:
    """Let wrappers stay in their places and out of files, from now on and in all of MXNet."""
    Updater.get_states = _make_getter(Updater.get_states)
    Updater.set_states = _make_setter(Updater.set_states)


def _make_getter(get: Callable[[Any, bool], bytes]) -> Callable[[Any, bool], bytes]:
    """In place of `Updater.get_states`: with what is wrapped."""

    def get_states(updater: Any, dump_optimizer: bool = False) -> bytes:  # noqa: ANN401, FBT001, FBT002 - MXNet's signature
        own = updater.optimizer
        updater.optimizer = unwrap(own)
        try:
            return get(updater, dump_optimizer)
        finally:
            updater.optimizer = own

    return get_states


def _make_setter(put: Callable[[Any, bytes], None]) -> Callable[[Any, bytes], None]:
    """In place of `Updater.set_states`: what is loaded is wrapped as the one before was, or not at all."""

    def set_states(updater: Any, states: bytes) -> None:  # noqa: ANN401 - an Updater
        own = updater.optimizer
        put(updater, states)
        loaded = updater.optimizer
        if loaded is own:  # the states have come without one
            return
        updater.optimizer = unwrap(loaded)
        if isinstance(own, DistributedOptimizer):
            vars_of(own)["_optimizer"] = updater.optimizer
            updater.optimizer = own

    return set_states
