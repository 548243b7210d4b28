"""The distributed trainer: Gluon's own, which steps as one process with the whole batch would."""

import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import mxnet as mx

from worker_runtime.api.process_set import ProcessSet, check_process_set, global_process_set
from worker_runtime.mxnet.arrays import fill_parts, sum_parts
from worker_runtime.mxnet.compression import Compression
from worker_runtime.mxnet.gradients import ArrayReducer, Gradient, is_alone, make_settings
from worker_runtime.mxnet.optimizer import DistributedOptimizer, unwrap
from worker_runtime.reduction.settings import Compressor, check_compression, read_group_count, read_predivide

_TITLE = "DistributedTrainer"
_FRESHNESS = "ignore_stale_grad=True"  # the exchange that it makes
_DICTS = (dict, mx.gluon.ParameterDict)


class PrefixError(AssertionError, TypeError):
    """The prefix is no text. AssertionError as in Horovod.

    Cause: The argument `prefix` is no text.
    Remedy: Give a str, or None.
    """

    def __init__(self, prefix: object) -> None:
        super().__init__(f"DistributedTrainer: prefix is {prefix!r}; it must be a str, or None")


class DistributedTrainer(mx.gluon.Trainer):  # type: ignore[misc]  # mxnet has no types
    """A `gluon.Trainer` whose steps use the gradients of all workers.

    `step(batch_size)` updates with the mean over the workers of gradient / batch_size: the batch size is one worker's,
    the sum over its contexts. Parameters on several contexts are summed over these first (Horovod takes the first
    one's). `allreduce_grads()`, a change of the gradients and `update(batch_size)` do the same in three steps; in
    between the gradients are the averaged ones, not yet divided by the batch size. After a step all workers have the
    same parameters, to the last bit. What is said of `gluon.Trainer` holds: learning rates, `save_states`,
    `mxnet.contrib.amp`.

    `step(..., ignore_stale_grad=True)`, on all ranks, lets each use other parameters: where a parameter was used by
    some, it is updated on all, and the others count as zeros. So does `update(..., ignore_stale_grad=True)` after
    `allreduce_grads()`, which for this makes one more small exchange.

    A subclass may override `_allreduce_grads`, and must leave averages behind: `_scale` holds no 1 / size. In Horovod
    it does where the backend sums (gloo, MPI) and does not where it averages (NCCL). Here it never does, since what
    lies between `allreduce_grads` and `update`, such as clipping, is to see averages.

    Errors of the reduction, and those of MXNet's own computation of a gradient, are raised by `step` and
    `allreduce_grads`, which wait for the gradients.

    Args:
        params: a dict, a ParameterDict (`net.collect_params()`) or a list of Parameters, the same on all ranks. Their
            order should be that of their use: the last ones are sent first.
        optimizer: a name or an optimizer of MXNet. A distributed one is unwrapped, with a warning.
        optimizer_params: of an optimizer that is given by name.
        compression: `Compression.none` or `Compression.fp16`, or an object with `compress` and `decompress`, through
            which then each gradient passes by itself.
        gradient_predivide_factor: gradients are divided by it before the sum, and multiplied after.
        prefix: by which the ranks' trainers find each other, and of the gradients' names in messages, where the
            parameter's number follows. Trainers of one prefix, or of none, must be made in the same order on all ranks.
        num_groups: gradients travel in that many groups; 0 lets them travel as is fastest.
        process_set: the ranks that average. Others may have the trainer too; they step by themselves.

    The arguments of Horovod before 0.24 (`gradient_predivide_factor, prefix, num_groups` from the fourth place on) are
    understood where the fourth is a number, with a DeprecationWarning.

    Raises:
        ValueError: `params` are no parameters, the factor is 0 or not finite, or `num_groups` negative.
        TypeError: a Trainer was given instead, there is no optimizer, or another argument is of a wrong kind.
        AssertionError: `prefix` is no text, or MXNet's own checks failed.
        HorovodInternalError: Horovod has not been initialized. At a step: the ranks do not have the same gradients, or
            a reduction failed; the gradients are then undefined.
    """

    def __init__(  # noqa: PLR0917 - Horovod's signature
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
                "a number in the fourth place is taken as gradient_predivide_factor; give it by name",
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
                "DistributedTrainer averages by itself: it takes the optimizer out of its DistributedOptimizer",
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
        self._shares_freshness = False
        self._agreed: list[tuple[mx.gluon.Parameter, bool]] = []  # which are new on some rank, until the update
        super().__init__(params, optimizer, optimizer_params, kvstore=None)
        listed = params.values() if isinstance(params, _DICTS) else params
        self._forward_order = [self._param2idx[parameter.name] for parameter in listed]
        settings = make_settings(self._gradient_predivide_factor, compression)
        self._reducer = ArrayReducer(settings, process_set, num_groups, self._prefix)

    def step(self, batch_size: int, ignore_stale_grad: bool = False) -> None:  # noqa: FBT001, FBT002 - Gluon's signature
        """Average the gradients and update the parameters; see the class.

        Args:
            batch_size: how many samples this worker's gradients are the sum of.
            ignore_stale_grad: parameters without a new gradient are left alone, unless another worker has one. The same
                on all ranks.
        """
        self._shares_freshness = ignore_stale_grad
        try:
            with self._reducer.preparing():  # what Gluon does first, and may fail at
                self._check_and_rescale_grad(self._scale / batch_size)
                self._prepare_store()
            super().step(batch_size, ignore_stale_grad)
        finally:
            self._shares_freshness = False

    def allreduce_grads(self) -> None:
        """Average the gradients, for `update`, which may then ignore stale ones."""
        self._shares_freshness = True
        try:
            with self._reducer.preparing():
                self._prepare_store()
            super().allreduce_grads()
        finally:
            self._shares_freshness = False

    def _prepare_store(self) -> None:
        """Make sure that all parameters are initialised, of which Gluon decides how to update them."""
        if not self._kv_initialized:
            self._init_kvstore()

    def _allreduce_grads(self) -> None:
        """Average the gradients; Horovod's name, under which subclasses override it."""
        parameters = [(index, self._params[index]) for index in self._forward_order]
        trained = [(index, parameter) for index, parameter in parameters if parameter.grad_req != "null"]
        alone = is_alone(self._process_set)
        with self._reducer.preparing():
            parts = [parameter.list_grad() for _, parameter in trained]
            if alone and not any(len(each) > 1 for each in parts):
                return
            names = [f"{self._prefix}{index}" for index, _ in trained]
            if self._shares_freshness:
                self._share_freshness(names, [parameter for _, parameter in trained])
            totals = [sum_parts(each) for each in parts]
            if not alone:
                self._reducer.reduce([Gradient(name, total) for name, total in zip(names, totals, strict=True)])
        for total, each in zip(totals, parts, strict=True):
            fill_parts(total, each)

    def _share_freshness(self, names: Sequence[str], parameters: Sequence[mx.gluon.Parameter]) -> None:
        """Find out which gradients are new on some rank; where they are not, they become zeros.

        Those that are new nowhere stay as they are: the program may have made them in its own way.
        """
        found = [any(data._fresh_grad for data in parameter.list_data()) for parameter in parameters]  # noqa: SLF001 - MXNet's only way to tell
        agreed = found if is_alone(self._process_set) else self._reducer.find_any(_FRESHNESS, names, found)
        for parameter, is_fresh in zip(parameters, agreed, strict=True):
            for data, gradient in zip(parameter.list_data(), parameter.list_grad(), strict=True):
                if is_fresh and not data._fresh_grad:  # noqa: SLF001 - the same
                    gradient[:] = 0
        self._agreed = list(zip(parameters, agreed, strict=True))

    def _update(self, ignore_stale_grad: bool = False) -> None:  # noqa: FBT001, FBT002 - Gluon's signature
        """Update: with stale gradients ignored, what is new on some rank, and so on all the same."""
        agreed, self._agreed = self._agreed, []
        if ignore_stale_grad:
            for parameter, is_fresh in agreed:
                for data in parameter.list_data():
                    data._fresh_grad = is_fresh  # noqa: SLF001 - MXNet's only way to say it
        super()._update(ignore_stale_grad)


def _read_old_places(
    factor: float, fifth: float | str | None, sixth: str | int | None, group_count: int
) -> tuple[float, str | None, int]:
    """The factor, the prefix and the number of groups, where the last two may stand one place too early."""
    prefix = next((given for given in (fifth, sixth) if isinstance(given, str)), None)
    return factor, prefix, sixth if isinstance(sixth, int) else group_count
