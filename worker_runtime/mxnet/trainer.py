"""The distributed trainer: a Gluon trainer whose steps use the gradients of all ranks."""

import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import mxnet as mx

from worker_runtime.account import ACCOUNT
from worker_runtime.api.process_set import ProcessSet, check_process_set, global_process_set
from worker_runtime.mxnet.arrays import fill_parts, sum_parts
from worker_runtime.mxnet.compression import Compression
from worker_runtime.mxnet.deferred import list_arrays
from worker_runtime.mxnet.gradients import ArrayReducer, Gradient, is_alone, make_settings
from worker_runtime.mxnet.optimizer import DistributedOptimizer, unwrap
from worker_runtime.reduction.settings import Compressor, check_compression, read_group_count, read_predivide

_TITLE = "DistributedTrainer"
_FRESHNESS = "ignore_stale_grad=True"  # the name of its exchange, for messages
_DICTS = (dict, mx.gluon.ParameterDict)


class PrefixError(AssertionError, TypeError):
    """The prefix is not a str. It is an AssertionError too, as in Horovod.

    Cause: The argument `prefix` is not a str.
    Remedy: Give a str, or None.
    """

    def __init__(self, prefix: object) -> None:
        super().__init__(f"DistributedTrainer: prefix is {prefix!r}; it must be a str, or None")


class DistributedTrainer(mx.gluon.Trainer):  # type: ignore[misc]  # mxnet has no types
    """A `gluon.Trainer` whose steps use the gradients of all workers.

    `step(batch_size)` updates with the mean over the workers of gradient / batch_size. `batch_size` is that of one
    worker, summed over its contexts. The gradients of a parameter on several contexts are summed first (Horovod uses
    those of the first context only). After a step all workers have bit for bit the same parameters. Learning rates,
    `save_states` and `mxnet.contrib.amp` work as with `gluon.Trainer`.

    To change gradients before the update, for example to clip them, call `allreduce_grads()`, change the gradients,
    and call `update(batch_size)`. After `allreduce_grads()` the gradients are averaged over the workers, and not yet
    divided by the batch size.

    With `ignore_stale_grad=True`, given on all ranks, the ranks may use different parameters in a step. A parameter
    that some rank has used is updated on all; ranks that have not used it contribute zeros. This costs one small
    exchange. `allreduce_grads()` makes it too, so that `update(..., ignore_stale_grad=True)` can follow.

    A subclass may override `_allreduce_grads`. It must leave averages behind, because `_scale` does not contain 1 /
    size. (Horovod's does for gloo and MPI, and does not for NCCL.)

    `step` and `allreduce_grads` wait for the gradients. They raise the errors of the reduction, and those of MXNet's
    computation of the gradients.

    Args:
        params: a dict, a ParameterDict (`net.collect_params()`) or a list of Parameters, the same on all ranks. Best
            in the order of their use in forward: the last ones are sent first.
        optimizer: the name of an MXNet optimizer, or an optimizer. A distributed one is unwrapped, with a warning.
        optimizer_params: the arguments of an optimizer that you give by name.
        compression: `Compression.none`, `Compression.fp16`, or your own object with `compress` and `decompress`, which
            then compresses each gradient separately.
        gradient_predivide_factor: gradients are divided by it before the sum and multiplied by it after.
        prefix: distinguishes trainers, and begins the names of gradients in messages, before the parameter's index.
            Trainers of the same prefix, or without one, must be created in the same order on all ranks.
        num_groups: the number of groups in which gradients are reduced together; 0 for buckets by size.
        process_set: the ranks whose gradients are averaged. On other ranks the trainer steps locally.

    The positional arguments of Horovod before 0.24 (`gradient_predivide_factor, prefix, num_groups` from the fourth
    place on) are accepted if the fourth is a number, with a DeprecationWarning.

    Raises:
        ValueError: `params` has something else than parameters; the factor is 0 or not finite; or `num_groups` is
            negative.
        TypeError: you gave a Trainer or no optimizer, or an argument has a wrong type.
        AssertionError: `prefix` is not a str, or a check of MXNet failed.
        HorovodInternalError: Horovod has not been initialized. From a step: the ranks have different gradients, or a
            reduction failed; the gradients are then undefined.
    """

    _shares_freshness = False

    def __init__(
        self,
        params: Mapping[str, mx.gluon.Parameter] | Iterable[mx.gluon.Parameter],
        optimizer: str | mx.optimizer.Optimizer | None = None,
        optimizer_params: Mapping[str, Any] | None = None,
        compression: Compressor | float = Compression.none,
        gradient_predivide_factor: float | str | None = 1.0,
        prefix: str | int | None = None,
        num_groups: int = 0,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        if isinstance(params, mx.gluon.Trainer):
            raise TypeError(
                "DistributedTrainer takes the parameters and the optimizer, not a Trainer that has them: "
                "DistributedTrainer(net.collect_params(), 'sgd', {'learning_rate': 0.1})"
            )
        if optimizer is None:
            raise TypeError("DistributedTrainer needs an optimizer: a name, for example 'sgd', or one of MXNet's")

        if isinstance(compression, int | float):
            warnings.warn(
                "the number in the fourth place is used as gradient_predivide_factor; pass it by name",
                DeprecationWarning,
                stacklevel=2,
            )
            places = _read_old_places(compression, gradient_predivide_factor, prefix, num_groups)
            gradient_predivide_factor, prefix, num_groups = places
            compression = Compression.none
        if not isinstance(prefix, str | None):
            raise PrefixError(prefix)
        if isinstance(optimizer, DistributedOptimizer):
            warnings.warn(
                "DistributedTrainer averages gradients itself: it unwraps the DistributedOptimizer",
                stacklevel=2,
            )
            optimizer = unwrap(optimizer)
        if isinstance(params, Iterable) and not isinstance(params, _DICTS):
            params = list(params)

        self._prefix = prefix or ""
        self._num_groups = read_group_count(_TITLE, num_groups)
        self._gradient_predivide_factor = read_predivide(_TITLE, gradient_predivide_factor)
        check_compression(_TITLE, compression)
        check_process_set(_TITLE, process_set)
        self._process_set = process_set
        self._agreed: list[tuple[mx.gluon.Parameter, bool]] = []  # whether some rank's gradient is new; until update()

        super().__init__(params, optimizer, optimizer_params, kvstore=None)
        self.expect_scale()
        listed = params
        if isinstance(params, _DICTS):
            listed = params.values()
        self._forward_order = [self._param2idx[parameter.name] for parameter in listed]
        settings = make_settings(self._gradient_predivide_factor, compression)
        self._reducer = ArrayReducer(
            settings, process_set, num_groups, self._prefix, list_weights=self._list_weights, show=self._show_name
        )
        ACCOUNT.note_optimizer()

    def step(self, batch_size: int, ignore_stale_grad: bool = False) -> None:
        """Average the gradients and update the parameters; see the class.

        Args:
            batch_size: the number of samples of this worker, by which the gradients are divided.
            ignore_stale_grad: True skips parameters that have a new gradient on no rank; False raises Gluon's
                UserWarning for them. The same on all ranks.
        """
        ACCOUNT.begin_step()
        self._warn_of_scale()
        self._shares_freshness = ignore_stale_grad
        try:
            with self._reducer.reporting():  # Gluon's first actions, which may fail
                self._check_and_rescale_grad(self._scale / batch_size)
                self._prepare_store()
            self._allreduce_grads()
            self._update(ignore_stale_grad)
        finally:
            self._shares_freshness = False

    def allreduce_grads(self) -> None:
        """Average the gradients. Call `update` afterwards, with or without `ignore_stale_grad`."""
        ACCOUNT.begin_step()
        self._warn_of_scale()
        self._shares_freshness = True
        try:
            with self._reducer.reporting():
                self._prepare_store()
            super().allreduce_grads()
        finally:
            self._shares_freshness = False

    @property
    def reducer(self) -> ArrayReducer:
        """The reducer that averages the gradients."""
        return self._reducer

    def expect_scale(self) -> None:
        """Store the present `_scale` as the one that the program has not multiplied."""
        self._plain_scale: float | None = self._scale

    def _warn_of_scale(self) -> None:
        """Warn once where the program has multiplied the scale by the number of ranks, as it must with Horovod."""
        plain, size = self._plain_scale, self._process_set.size()
        scale = getattr(self, "_amp_original_scale", self._scale)  # MXNet's AMP changes the other in each step
        if plain is None or size is None or size == 1 or scale != plain * size:
            return
        self._plain_scale = None
        warnings.warn(
            f"{_TITLE}: the program has multiplied _scale by {size}, the number of workers, so its gradients are "
            f"{size} times the average: hvdrun averages without dividing _scale, as Horovod does; leave the "
            "multiplication out, or ignore this warning if you want the sum",
            stacklevel=3,
        )

    def _prepare_store(self) -> None:
        """Initialize Gluon's key-value store, which needs initialized parameters; it chooses how to update them."""
        if not self._kv_initialized:
            self._init_kvstore()
        if self._params_to_init:
            self._init_params()

    def _allreduce_grads(self) -> None:
        """Average the gradients. Subclasses written for Horovod override this method."""
        self._agreed = []  # also that of a step without an update
        parameters = [(index, self._params[index]) for index in self._forward_order]
        trained = [(index, parameter) for index, parameter in parameters if parameter.grad_req != "null"]

        with self._reducer.preparing():
            parts = [parameter.list_grad() for _, parameter in trained]
            if self._reducer.is_idle and not any(len(each) > 1 for each in parts):
                self._reducer.reduce(())
                return
            names = [f"{self._prefix}{index}" for index, _ in trained]
            if self._shares_freshness:
                self._share_freshness(names, [parameter for _, parameter in trained])
            totals = [sum_parts(each) for each in parts]
            self._reducer.reduce([Gradient(name, total) for name, total in zip(names, totals, strict=True)])

        for total, each in zip(totals, parts, strict=True):
            fill_parts(total, each)
        scaler = getattr(self, "_amp_loss_scaler", None)
        self._reducer.settle(None if scaler is None else scaler.loss_scale)

    def _list_weights(self) -> list[tuple[str, mx.nd.NDArray]]:
        """The trained weights that are initialized, each on its first context.

        Auxiliary values, such as the running mean of BatchNorm, differ between ranks, as in Horovod.
        """
        trained = (parameter for parameter in self._params if parameter.grad_req != "null")
        return [(parameter.name, data[0]) for parameter in trained if (data := list_arrays(parameter))]

    def _show_name(self, name: str) -> str:
        """The parameter's own name in place of its index."""
        index = name.removeprefix(self._prefix)
        return str(self._params[int(index)].name)

    def _share_freshness(self, names: Sequence[str], parameters: Sequence[mx.gluon.Parameter]) -> None:
        """Exchange which gradients are new. A gradient that is stale here and new on another rank becomes zeros.

        A gradient that is new on no rank stays unchanged: the program may have set it by other means than backward.
        """
        found = [any(data._fresh_grad for data in parameter.list_data()) for parameter in parameters]  # noqa: SLF001 - MXNet's only way to tell
        agreed = found
        if not is_alone(self._process_set):
            agreed = self._reducer.find_any(_FRESHNESS, names, found)
        for parameter, is_fresh in zip(parameters, agreed, strict=True):
            for data, gradient in zip(parameter.list_data(), parameter.list_grad(), strict=True):
                if is_fresh and not data._fresh_grad:  # noqa: SLF001 - MXNet's only way to tell
                    gradient[:] = 0
        self._agreed = list(zip(parameters, agreed, strict=True))

    def _update(self, ignore_stale_grad: bool = False) -> None:
        """Update the parameters; with `ignore_stale_grad` those that have a new gradient on some rank."""
        agreed, self._agreed = self._agreed, []
        if ignore_stale_grad:
            for parameter, is_fresh in agreed:
                for data in parameter.list_data():
                    data._fresh_grad = is_fresh  # noqa: SLF001 - MXNet's only way to say it
        super()._update(ignore_stale_grad)
        ACCOUNT.end_step()


def _read_old_places(
    factor: float, fifth: float | str | None, sixth: str | int | None, group_count: int
) -> tuple[float, str | None, int]:
    """The factor, the prefix and the number of groups of Horovod's earlier signature."""
    prefix = next((given for given in (fifth, sixth) if isinstance(given, str)), None)
    if isinstance(sixth, int):
        return factor, prefix, sixth
    return factor, prefix, group_count
