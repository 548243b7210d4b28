"""Reducescatter and its variants under Horovod's names and signatures, whose order differs from allreduce's."""

from collections.abc import Sequence

import mxnet as mx

from worker_runtime.api.calls import begin_call
from worker_runtime.api.process_set import ProcessSet, global_process_set
from worker_runtime.api.reductions import Average, choose_scatter_reduction
from worker_runtime.collectives import Combination, Reducescatter
from worker_runtime.mxnet.arrays import make_array, view_for_reading
from worker_runtime.mxnet.boundary import gives_up
from worker_runtime.mxnet.ops.prepared import Prepared


@gives_up("reducescatter")
def reducescatter(  # noqa: PLR0917 - Horovod's signature
    tensor: mx.nd.NDArray,
    op: int = Average,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> mx.nd.NDArray:
    """Combine arrays over the ranks of a set, of which each rank gets its part of the rows.

    Not differentiable, as in Horovod.

    Args:
        tensor: as in `allreduce`, of at least one dimension, of the same shape and dtype on all ranks; left alone.
        op: Average or Sum; of integers as in `allreduce`.
        name: by which the ranks' calls find each other and messages call it; without one, calls are counted.
        priority: without effect.
        process_set: the ranks that take part.
        prescale_factor: multiplies before; integers in float64, truncated toward zero.
        postscale_factor: multiplies after, likewise.

    Returns:
        This rank's rows, in a new array on the same context: where they cannot be divided evenly, the first ranks have
        one more each; there may be none.

    Raises:
        TypeError: it is no array of MXNet.
        ValueError: a wrong argument, also an array without dimensions, or a name that is in flight; nothing was sent.
        HorovodInternalError: the op is another one; the ranks do not agree on dtype, shape, op or factors; one of them
            has joined; the operation failed; or Horovod has not been initialized.
        MXNetError: what the array was to be computed by has failed; nothing was sent.
    """
    del priority
    how = Combination(choose_scatter_reduction(op), prescale_factor, postscale_factor)
    return _prepare(tensor, how, name, process_set).run()


@gives_up("reducescatter")
def reducescatter_async(  # noqa: PLR0917 - Horovod's signature
    tensor: mx.nd.NDArray,
    op: int = Average,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """Begin a `reducescatter`, as `allreduce_async` does an allreduce; `synchronize` gives this rank's rows."""
    del priority
    how = Combination(choose_scatter_reduction(op), prescale_factor, postscale_factor)
    return _prepare(tensor, how, name, process_set).begin()


@gives_up("grouped_reducescatter")
def grouped_reducescatter(  # noqa: PLR0917 - Horovod's signature
    tensors: Sequence[mx.nd.NDArray],
    op: int = Average,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Sequence[mx.nd.NDArray]:
    """`reducescatter` of several arrays as one operation: all of them run, or none.

    Args:
        tensors: each as in `reducescatter`. Without any, nothing is done.
        op: for all, and so are the others.
        name: of the group.
        priority: without effect.
        process_set: the ranks that take part.
        prescale_factor: for all.
        postscale_factor: for all.

    Returns:
        This rank's rows of each, in the order of the call; where none are given, what is given.

    Raises:
        TypeError: as `reducescatter`.
        ValueError: as `reducescatter`.
        HorovodInternalError: as `reducescatter`.
        MXNetError: as `reducescatter`.
    """
    del priority
    how = Combination(choose_scatter_reduction(op), prescale_factor, postscale_factor)
    return _prepare_all(tensors, how, name, process_set).run() if tensors else tensors


@gives_up("grouped_reducescatter")
def grouped_reducescatter_async(  # noqa: PLR0917 - Horovod's signature
    tensors: Sequence[mx.nd.NDArray],
    op: int = Average,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """Begin a `grouped_reducescatter` of at least one array: `synchronize` gives a list."""
    del priority
    how = Combination(choose_scatter_reduction(op), prescale_factor, postscale_factor)
    return _prepare_all(tensors, how, name, process_set).begin()


def _prepare(
    array: mx.nd.NDArray, how: Combination, name: str | None, process_set: ProcessSet
) -> Prepared[mx.nd.NDArray]:
    prepared = _prepare_all([array], how, name, process_set, kind="reducescatter")
    return Prepared(prepared.call, prepared.operation, lambda results: prepared.convert(results)[0])


def _prepare_all(
    arrays: Sequence[mx.nd.NDArray],
    how: Combination,
    name: str | None,
    process_set: ProcessSet,
    *,
    kind: str = "grouped_reducescatter",
) -> Prepared[list[mx.nd.NDArray]]:
    given = list(arrays)
    call = begin_call(kind, name, process_set)
    operation = Reducescatter([view_for_reading(array) for array in given], how, call.among, call.name)
    return Prepared(call, operation, lambda results: list(map(make_array, results, given)))
