"""The distributed optimizer: wraps a torch optimizer so that each step uses the gradients of all ranks."""

import operator
import os
import warnings
from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, SupportsIndex

import torch
from torch.nn.parameter import is_lazy

from worker_runtime.account import ACCOUNT
from worker_runtime.api.process_set import ProcessSet, check_process_set, global_process_set
from worker_runtime.collectives.combination import Combination, choose_reduction
from worker_runtime.coordination.ordering.requests import Reduction
from worker_runtime.errors import WrongArgumentError
from worker_runtime.membership.runtime import RUNTIME
from worker_runtime.reduction import GradientReducer, Settings
from worker_runtime.reduction.adasum import AdasumReducer
from worker_runtime.reduction.finite import make_finite_check
from worker_runtime.reduction.parameters import NamedParameters
from worker_runtime.reduction.replicas import ReplicaCheck, read_interval
from worker_runtime.reduction.settings import Compressor, check_compression, read_predivide
from worker_runtime.torch.compression import Compression
from worker_runtime.torch.proxies import (
    AdasumOptimizer,
    AllreduceOptimizer,
    OptimizerT,
    check_optimizer,
    list_parameters,
    make_proxy,
    read_passes,
    unwrap,
)
from worker_runtime.torch.sharding import refuse_parts

# Horovod's names of the classes, which programs import for annotations and isinstance().
_DistributedOptimizer, _DistributedAdasumOptimizer = AllreduceOptimizer, AdasumOptimizer

_TITLE = "DistributedOptimizer"
_PAIR = 2
_SHOWN = 5  # of the parameters without a name
_WIRE_DTYPES = ((Compression.fp16, torch.float16), (Compression.bf16, torch.bfloat16))  # merged into the averaging


def find_reducer(optimizer: object) -> GradientReducer | None:
    """The object that averages an optimizer's gradients; None for a plain optimizer or for Adasum."""
    reducer = None
    if isinstance(optimizer, AllreduceOptimizer):
        reducer = getattr(optimizer, "_reducer", None)
    if isinstance(reducer, GradientReducer):
        return reducer
    return None


def DistributedOptimizer(  # noqa: N802 - Horovod's name and signature
    optimizer: OptimizerT,
    named_parameters: Iterable[tuple[str, torch.Tensor]] | None = None,
    compression: Compressor = Compression.none,
    backward_passes_per_step: int = 1,
    op: int = Reduction.AVERAGE,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: int | Sequence[Sequence[torch.Tensor]] | None = None,
    sparse_as_dense: bool = False,
    process_set: ProcessSet = global_process_set,
) -> OptimizerT:
    """Wrap `optimizer` so that each step uses the gradients of all ranks.

    The result is an instance of the optimizer's own class, and shares its state, options, schedulers and checkpoints.
    All ranks must have the same parameters in the same order. A parameter without a gradient on some rank counts as
    zeros there. After a step every parameter's gradient is the averaged one, bit for bit the same on all ranks.

    You can add or unfreeze parameters later, and between two steps change dtype, shape or memory format on all ranks
    (`model.double()`). If you create two distributed optimizers of one parameter, the newer one averages it: the next
    step of the older one raises SupersededError.

    Do not read or change gradients between `backward()` and the return of `step()` or `synchronize()`. To change them
    before the step, for example to clip them:

        loss.backward()
        optimizer.synchronize()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        with optimizer.skip_synchronize():
            optimizer.step()

    A `torch.amp.GradScaler` works as usual (`scaler.unscale_(optimizer)`, `scaler.step(optimizer)`). It finds the same
    infinities on all ranks, because gradients are averaged before it checks them.

    Args:
        optimizer: any torch optimizer, with or without state. A distributed one is unwrapped and wrapped again.
        named_parameters: `model.named_parameters()`: names for messages. It must name all of the optimizer's
            parameters; None numbers them.
        compression: `Compression.none`, `fp16` or `bf16`, or your own object with `compress` and `decompress`, which
            then compresses each gradient separately.
        backward_passes_per_step: the gradients of this many backward passes are summed locally before they are sent.
            For their mean, divide the loss by this number.
        op: Average, Sum, Min, Max or Product of the ranks' gradients. With Adasum each rank steps with its own
            gradients, and the steps are combined; `synchronize()` then does nothing.
        gradient_predivide_factor: with Average, gradients are divided by it before the sum and multiplied by it after.
        num_groups: deprecated; use `groups`.
        groups: the gradients of a group are reduced together. A number divides the parameters into that many groups of
            about equal length. Lists of parameters give the groups; other parameters are bucketed as without groups.
            None or 0: no groups.
        sparse_as_dense: reduce sparse gradients as dense ones. Otherwise their elements are gathered.
        process_set: the ranks whose gradients are averaged. On other ranks the optimizer steps locally.

    Raises:
        ValueError: an argument is wrong.
        NotImplementedError: op=Adasum with a process set other than the global one.
        HorovodInternalError: Horovod has not been initialized. `step()`, `synchronize()` and `backward()` raise it
            where the ranks' parameters or arguments differ (the message names both sides; you can continue with the
            next step), or after a rank was lost.
    """
    check_optimizer(_TITLE, optimizer)
    check_process_set(_TITLE, process_set)
    check_compression(_TITLE, compression)
    reduction = choose_reduction(op)
    predivide = read_predivide(_TITLE, gradient_predivide_factor)
    if predivide != 1.0 and reduction is not Reduction.AVERAGE:
        raise ValueError("gradient_predivide_factor is supported only with op=Average")
    if num_groups != 0:
        warnings.warn("num_groups is deprecated; give the number as groups", DeprecationWarning, stacklevel=2)
        if groups is None:
            groups = num_groups
    passes = read_passes(backward_passes_per_step)
    size = RUNTIME.engine.size
    ACCOUNT.note_optimizer()
    if reduction is Reduction.ADASUM and size > 1 and process_set is not global_process_set:
        raise NotImplementedError("op=Adasum is supported only in the global process set; leave process_set out")
    plain = unwrap(optimizer)
    names = read_names(plain, named_parameters)
    refuse_parts(_TITLE, (parameter for _, parameter in list_parameters(plain, names)), process_set)
    attributes: dict[str, Any] = {
        "_names": names,
        "_compression": compression,
        "op": reduction,
        "process_set": process_set,
    }
    chosen_groups = read_groups(list_parameters(plain, names), groups)

    def find_set() -> int:
        return process_set.find_number(_TITLE)

    own = None if compression is Compression.none else compression

    def list_own() -> list[tuple[str, torch.Tensor]]:
        return list_parameters(plain, names)

    check = _make_check(plain, list_own, reduction)
    if reduction is Reduction.ADASUM:
        adasum = AdasumReducer(
            list_own, lambda: RUNTIME.engine, find_set, own, check, finite=make_finite_check(os.environ, waits=True)
        )
        return make_proxy(AdasumOptimizer, plain, __name__, adasum, _passes=passes, **attributes)
    wire_dtype = next((dtype for known, dtype in _WIRE_DTYPES if known is compression), None)
    settings = Settings(
        how=Combination(reduction, 1.0 / predivide, predivide),
        wire_dtype=wire_dtype,
        compressor=own if wire_dtype is None else None,
        sparse_as_dense=sparse_as_dense,
    )
    reducer = GradientReducer(
        list_own,
        lambda: RUNTIME.engine,
        settings,
        passes=passes,
        groups=chosen_groups,
        find_set=find_set,
        check=check,
        finite=make_finite_check(os.environ),
    )
    flags = {"_is_synchronized": False, "_is_unscaled": False, "_skips_synchronize": False}
    return make_proxy(AllreduceOptimizer, plain, __name__, reducer, **flags, **attributes)


def read_names(
    optimizer: torch.optim.Optimizer, named_parameters: Iterable[tuple[str, torch.Tensor]] | None
) -> dict[torch.Tensor, str]:
    """The user's names of an optimizer's parameters; empty if the user gives none.

    Args:
        optimizer: a plain optimizer.
        named_parameters: (name, parameter) pairs; they may include parameters that the optimizer does not have.

    Raises:
        ValueError: the values are not pairs; a name or a parameter occurs twice; or a parameter of the optimizer is
            missing.
    """
    if named_parameters is None:
        return {}
    if not isinstance(named_parameters, Iterable):
        raise WrongArgumentError(f"named_parameters is {named_parameters!r}; give model.named_parameters()")
    pairs = list(named_parameters)
    if not all(_is_named(pair) for pair in pairs):
        raise ValueError("named_parameters must be (name, parameter) tuples, as model.named_parameters() gives them")
    names = [name for name, _ in pairs]
    duplicates = sorted({name for name in names if names.count(name) > 1})
    if duplicates:
        raise ValueError(f"named_parameters has these names more than once: {', '.join(duplicates)}")

    named: dict[torch.Tensor, str] = {}
    for name, parameter in pairs:
        if parameter in named:
            raise ValueError(f"named_parameters has one parameter under two names: {named[parameter]} and {name}")
        named[parameter] = name

    unnamed = [
        f"parameter {place} of group {number}, of shape {'unknown' if is_lazy(parameter) else list(parameter.shape)}"
        for number, group in enumerate(optimizer.param_groups)
        for place, parameter in enumerate(group["params"])
        if parameter not in named
    ]
    if unnamed:
        more = ""
        if len(unnamed) > _SHOWN:
            more = f", and {len(unnamed) - _SHOWN} more"
        raise ValueError(
            f"named_parameters lacks parameters of the optimizer: {'; '.join(unnamed[:_SHOWN])}{more}. Give "
            "model.named_parameters() of the model, or of all models, whose parameters the optimizer has; or leave "
            "named_parameters out"
        )
    return named


def read_groups(
    parameters: Sequence[tuple[str, torch.Tensor]], groups: int | Sequence[Sequence[torch.Tensor]] | None
) -> dict[torch.Tensor, int]:
    """The group of each parameter that has one.

    Args:
        parameters: the optimizer's parameters with their names, in the same order on all ranks.
        groups: the argument of `DistributedOptimizer`. Listed parameters that require no gradient are ignored.

    Raises:
        ValueError: the number is negative; a list has something else than parameters of the optimizer (frozen
            parameters of the model are allowed); or a parameter is in two groups.
        TypeError: `groups` is neither a number nor lists.
    """
    trained = [parameter for _, parameter in parameters if parameter.requires_grad]
    if groups is None:
        return {}
    # NumPy's integers are of this kind, too.
    if isinstance(groups, SupportsIndex):
        count = operator.index(groups)
        if count < 0:
            raise ValueError(f"groups should be a non-negative integer, or lists of parameters; got {groups}")
        if count:
            return {parameter: index * count // len(trained) for index, parameter in enumerate(trained)}
        return {}
    if not isinstance(groups, list | tuple):
        raise TypeError(f"groups should be a non-negative integer, or lists of parameters; got {groups!r}")
    return _read_lists({parameter for _, parameter in parameters}, groups)


def _make_check(
    plain: torch.optim.Optimizer, list_own: Callable[[], NamedParameters], reduction: Reduction
) -> ReplicaCheck | None:
    """The comparison of the replicas that the user has asked for; with Adasum each rank has its own state."""
    interval = read_interval(os.environ)
    if not interval:
        return None
    if reduction is Reduction.ADASUM:
        return ReplicaCheck(list_own, interval)
    return ReplicaCheck(list_own, interval, lambda parameter: getattr(plain, "state", {}).get(parameter, {}))


def _is_named(pair: object) -> bool:
    return (
        isinstance(pair, tuple)
        and len(pair) == _PAIR
        and isinstance(pair[0], str)
        and isinstance(pair[1], torch.Tensor)
    )


def _read_lists(known: AbstractSet[torch.Tensor], groups: Iterable[object]) -> dict[torch.Tensor, int]:
    chosen: dict[torch.Tensor, int] = {}
    for number, group in enumerate(groups):
        if isinstance(group, torch.Tensor) or not isinstance(group, Iterable):
            raise WrongArgumentError(f"groups should be lists of parameters; one of them is {type(group).__name__}")
        for parameter in group:
            if not isinstance(parameter, torch.Tensor):
                raise ValueError(f"groups must consist of torch.Tensor; got {type(parameter).__name__}")  # noqa: TRY004 - Horovod's error
            if parameter not in known and (parameter.requires_grad or not isinstance(parameter, torch.nn.Parameter)):
                raise ValueError(f"groups[{number}] has a tensor that is not a parameter of the optimizer")
            if parameter in chosen:
                raise ValueError("A parameter can only appear once in groups")
            chosen[parameter] = number
    return {parameter: number for parameter, number in chosen.items() if parameter.requires_grad}
