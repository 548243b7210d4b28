"""Broadcasts that make replicas equal before training: parameters and optimizer states from one rank."""

import copy
import pickle
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import mxnet as mx
import numpy as np

from worker_runtime.api.calls import Call, begin_call
from worker_runtime.api.functions import allgather_object, broadcast_object
from worker_runtime.api.process_set import ProcessSet, global_process_set
from worker_runtime.collectives.broadcast import Broadcast
from worker_runtime.collectives.tensor_operation import read_root
from worker_runtime.mxnet.arrays import check_array, to_host, view_for_reading, view_for_writing
from worker_runtime.mxnet.deferred import DeferredBroadcast, complete_deferred, copy_to_all, defer_all, list_arrays
from worker_runtime.mxnet.mxnet_errors import raises_mxnet_errors
from worker_runtime.mxnet.optimizer import adopt_settings

_TITLE = "broadcast_parameters"

Value = Any  # a Parameter of Gluon, or an array


@raises_mxnet_errors
def broadcast_parameters(
    params: Mapping[str, Value] | mx.gluon.ParameterDict,
    root_rank: int = 0,
    prefix: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> None:
    """Overwrite parameters in place with those of rank `root_rank`.

    Parameters that are initialized on all ranks are broadcast immediately. The broadcast of the others is deferred
    until each rank initializes them, usually in the first forward:

    - The root does not wait: it sends its present values, or the values of its initialization, and no later changes.
    - The other ranks wait where they first use the parameter, and then have the root's values. Values that they set
      before are overwritten.
    - An error of the broadcast is raised at each use of the parameter, until it is broadcast or initialized again.
    - If all ranks initialize the parameter again, it is broadcast again.
    - hvdrun's line about ranks that wait names a rank that does not initialize a parameter.

    So rank 0 alone may load a checkpoint before the call. Copies of a parameter (`copy`, `pickle`) are not broadcast.
    Several calls, also with other roots or process sets, take effect in their order. With three or more ranks, all
    ranks must use deferred parameters for the first time in the same order, also those of several models.

    Args:
        params: `block.collect_params()`, or a mapping of names to Gluon parameters or arrays, such as both results of
            `module.get_params()`. The names are the same on all ranks.
        root_rank: the rank in the job that sends, also when you give a process set.
        prefix: put in front of the names, to distinguish two models that use the same names.
        process_set: the ranks that take part.

    Raises:
        ValueError: `params` is something else; the root is not in the set; or names, shapes or dtypes differ between
            ranks. Nothing was sent.
        HorovodInternalError: the operation failed, or Horovod has not been initialized.
    """
    title = _TITLE
    if prefix:
        title = f"{_TITLE}.{prefix}"
    gathering = begin_call("allgather_object", title, process_set)
    among = gathering.among
    with gathering.preparing():
        named = _name_parameters(params, prefix or "")
        root_rank = read_root(title, root_rank, among.ranks)
        if among.size > 1:
            rows = _describe_all(named)
        else:
            rows = {}

    if among.size == 1:
        return
    tables = allgather_object(rows, title, process_set)
    late = _compare(dict(zip(among.ranks, tables, strict=True)))

    ready = [value for name, value in named.items() if name not in late]
    if ready:
        call = begin_call("broadcast", f"{prefix or ''}parameters", process_set)
        _broadcast_immediately(call, ready, root_rank)
    defer_all([(named[name], DeferredBroadcast(name, root_rank, process_set)) for name in late])


@raises_mxnet_errors
def broadcast_optimizer_state(
    trainer: mx.gluon.Trainer | mx.mod.BaseModule, root_rank: int = 0, process_set: ProcessSet = global_process_set
) -> None:
    """Broadcast the optimizer's states from rank `root_rank`, for example after it has loaded a checkpoint.

    This sends everything that `trainer.save_states` saves: momenta and other states, update counts and the optimizer's
    settings. Parameters may still be uninitialized on the other ranks.

    Args:
        trainer: a Gluon trainer with `kvstore=None`, or a distributed one; or a Module or BucketingModule whose
            optimizer was initialized with `kvstore=None`.
        root_rank: the rank in the job that sends, also when you give a process set.
        process_set: the ranks that take part.

    Raises:
        ValueError: `trainer` is something else; a key-value store has its states; or the root is not in the set.
        HorovodInternalError: the operation failed, or Horovod has not been initialized.
    """
    title = "broadcast_optimizer_state"
    call = begin_call("broadcast_object", title, process_set)
    with call.preparing():
        updaters = list_updaters(title, trainer)
        is_root = call.among.rank == read_root(title, root_rank, call.among.ranks)
        states = None
        if is_root:
            states = updaters[0].get_states(dump_optimizer=True)
    states = broadcast_object(states, root_rank, title, process_set)
    if not is_root:
        load_states(trainer, updaters, *pickle.loads(states))  # noqa: S301 - of the root, which has proved itself


def load_states(
    trainer: mx.gluon.Trainer | mx.mod.BaseModule,
    updaters: Sequence[mx.optimizer.Updater],
    states: Mapping[object, Any],
    loaded: mx.optimizer.Optimizer,
) -> None:
    """Continue with other states, and with the settings of a loaded optimizer.

    The trainer keeps its optimizer and its learning rate scheduler, to which the program may refer.

    Args:
        trainer: a trainer or a module.
        updaters: those of `list_updaters`.
        states: the states by index; they are copied.
        loaded: an unpickled optimizer.
    """
    optimizer = adopt_settings(updaters[0].optimizer, loaded)
    for updater in updaters:
        updater.states = copy.deepcopy(states)
        updater.states_synced = dict.fromkeys(states, False)  # the next update moves them to its context
        updater.optimizer = optimizer
    trainer._optimizer = optimizer  # noqa: SLF001 - as its own load_states does


def _broadcast_immediately(call: Call, values: Sequence[Value], root_rank: int) -> None:
    """Broadcast parameters and arrays that are initialized on all ranks."""
    with call.preparing():
        for value in values:
            if isinstance(value, mx.gluon.Parameter):
                complete_deferred(value)
        lists = [_list_arrays(value) for value in values]
        make_view = view_for_writing
        if call.among.rank == root_rank:
            make_view = view_for_reading
        host_copies = [to_host(arrays[0]) for arrays in lists]
        views = list(map(make_view, host_copies))
        operation = Broadcast(views, root_rank, call.among, call.name, views)
    call.engine.run(operation)
    for host_copy, arrays in zip(host_copies, lists, strict=True):
        copy_to_all(host_copy, arrays)


class ParametersDifferError(ValueError):
    """The ranks have different parameters. All ranks raise it.

    Cause: The ranks build different models.
    Remedy: Build the same model, with the same names, on all ranks.
    """

    def __init__(self, difference: str) -> None:
        super().__init__(f"{_TITLE}: {difference}; build the same model on all ranks, under the same names")


class _Row(NamedTuple):
    """The properties of a parameter that the ranks compare.

    shape, dtype: None where it is not initialized.
    """

    is_array: bool
    shape: tuple[int, ...] | None
    dtype: str | None


def list_updaters(title: str, trainer: object) -> Sequence[mx.optimizer.Updater]:
    """The updaters, which hold the states: one for each context of a trainer, or one for a module.

    Raises:
        ValueError: the argument is something else, or its states are in a key-value store.
    """
    if isinstance(trainer, mx.mod.BucketingModule):
        trainer = trainer._curr_module or trainer  # noqa: SLF001 - whose updater all its modules share
    if isinstance(trainer, mx.gluon.Trainer) and not trainer._update_on_kvstore:  # noqa: SLF001 - nothing else tells
        updaters: list[mx.optimizer.Updater] = trainer._updaters  # noqa: SLF001 - nothing else tells
        return updaters
    if not isinstance(trainer, mx.gluon.Trainer | mx.mod.BaseModule):
        raise ValueError(f"{title} takes a Trainer or a Module, not {type(trainer).__name__}")  # noqa: TRY004 - Horovod's error
    updater = getattr(trainer, "_updater", None)
    if updater is None:
        raise ValueError(
            f"{title}: there are no states outside a key-value store; create the Trainer with kvstore=None, or call "
            "the Module's init_optimizer(kvstore=None, ...) before"
        )
    return [updater]


def _name_parameters(params: object, prefix: str) -> dict[str, Value]:
    """The parameters with the names of their broadcasts, sorted by name."""
    if not isinstance(params, Mapping | mx.gluon.ParameterDict):
        raise ValueError(  # noqa: TRY004 - Horovod's error
            f"invalid params of type: {type(params).__name__}; give block.collect_params(), or a dict of names to "
            "parameters or arrays"
        )
    named = {f"{prefix}{name}": value for name, value in sorted(params.items())}
    for name, value in named.items():
        if not isinstance(value, mx.gluon.Parameter | mx.nd.NDArray):
            raise ValueError(f"{_TITLE}: '{name}' is of type {type(value).__name__}, not a parameter or an array")  # noqa: TRY004 - Horovod's error
    return named


def _list_arrays(value: Value) -> Sequence[mx.nd.NDArray]:
    """A parameter's arrays, one for each context; empty where it is not initialized."""
    if isinstance(value, mx.nd.NDArray):
        return [value]
    return list_arrays(value)


def _describe_all(named: Mapping[str, Value]) -> dict[str, _Row]:
    rows = {}
    for name, value in named.items():
        arrays = _list_arrays(value)
        try:
            for array in arrays:
                check_array(array)
        except ValueError as error:
            raise ValueError(f"{_TITLE}: '{name}': {error}") from None
        shape = dtype = None
        if arrays:
            shape, dtype = tuple(arrays[0].shape), np.dtype(arrays[0].dtype).name
        rows[name] = _Row(isinstance(value, mx.nd.NDArray), shape, dtype)
    return rows


def _compare(tables: Mapping[int, Mapping[str, _Row]]) -> list[str]:
    """The names of the parameters that are not initialized on all ranks.

    Args:
        tables: each rank's description of its parameters, by rank.

    Raises:
        ParametersDifferError: the ranks describe different parameters.
    """
    (first, table), *others = tables.items()
    late = []
    for rank, other in others:
        if unshared := sorted(table.keys() ^ other.keys()):
            owner, lacking = first, rank
            if unshared[0] not in table:
                owner, lacking = rank, first
            raise ParametersDifferError(f"rank {owner} has '{unshared[0]}' and rank {lacking} has not")

    for name in table:
        rows = {rank: rows[name] for rank, rows in tables.items()}
        known = {rank: row for rank, row in rows.items() if row.shape is not None}
        (rank, row), *more = (known or rows).items()
        for other_rank, other_row in more:
            if row != other_row:
                raise ParametersDifferError(
                    f"'{name}' is {row.dtype} of shape {row.shape} on rank {rank}, and {other_row.dtype} of shape "
                    f"{other_row.shape} on rank {other_rank}"
                )
        if len(known) < len(rows):
            if any(row.is_array for row in rows.values()):
                raise ParametersDifferError(f"'{name}' is an array on some ranks, and not initialized on others")
            late.append(name)
    return late
