"""Allreduce and its variants under Horovod's names and signatures."""

from collections.abc import Sequence

import mxnet as mx

from worker_runtime.api.calls import begin_call, make_allreduce
from worker_runtime.api.process_set import ProcessSet, global_process_set
from worker_runtime.api.reductions import choose_reduction
from worker_runtime.collectives import Combination
from worker_runtime.mxnet.arrays import bring_home, make_array, take_all_back, view_for_reading, view_for_writing
from worker_runtime.mxnet.boundary import gives_up
from worker_runtime.mxnet.ops.prepared import Prepared


@gives_up("allreduce")
def allreduce(  # noqa: PLR0917 - Horovod's signature
    tensor: mx.nd.NDArray,
    average: bool | None = None,  # noqa: FBT001 - Horovod's signature
    name: str | None = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    op: int | None = None,
) -> mx.nd.NDArray:
    """Combine arrays of one shape and dtype over the ranks of a set: postscale * reduce(prescale * x).

    It returns when the result is there; Horovod returns at once, and raises where the result is read. Not
    differentiable, as in Horovod.

    Args:
        tensor: dense, of any shape, also without dimensions or elements, of `mx.nd` or `mx.np`, of the dtypes and on
            the contexts in `worker_runtime.mxnet.arrays`; left alone.
        average: deprecated; True for `op=Average`, False for `op=Sum`.
        name: by which the ranks' calls find each other and messages call it; without one, calls are counted.
        priority: without effect, as in all functions here: what is ready on all ranks first runs first.
        prescale_factor: multiplies before; integers in float64, truncated toward zero.
        postscale_factor: multiplies after, likewise.
        process_set: the ranks that take part.
        op: Average (if none is given), Sum, Adasum, Min, Max or Product. The average of integers is their exact sum
            divided by the size, truncated toward zero; sums and products of integers wrap around.

    Returns:
        A new array of the same shape and dtype on the same context, equal on all ranks of the set.

    Raises:
        TypeError: it is no array of MXNet.
        ValueError: a wrong argument, also a dtype that has no such reduction, or a name that is in flight; nothing was
            sent.
        HorovodInternalError: the ranks do not agree on dtype, shape, op or factors; the operation failed; or Horovod
            has not been initialized.
        MXNetError: what the array was to be computed by has failed; nothing was sent.
    """
    del priority
    how = Combination(choose_reduction(op, average), prescale_factor, postscale_factor)
    return _prepare(tensor, how, name, process_set).run()


@gives_up("allreduce")
def allreduce_async(  # noqa: PLR0917 - Horovod's signature
    tensor: mx.nd.NDArray,
    average: bool | None = None,  # noqa: FBT001 - Horovod's signature
    name: str | None = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    op: int | None = None,
) -> int:
    """Begin an `allreduce`; Horovod has none for MXNet. It waits until MXNet has computed the array, and no longer.

    Returns:
        A handle for `poll` and `synchronize`, which gives the new array. Until then nothing must be enqueued that
        writes to `tensor`.

    Raises:
        TypeError: as `allreduce`.
        ValueError: as `allreduce`.
        HorovodInternalError: Horovod has not been initialized, or its group has failed.
        MXNetError: as `allreduce`.
    """
    del priority
    how = Combination(choose_reduction(op, average), prescale_factor, postscale_factor)
    return _prepare(tensor, how, name, process_set).begin()


@gives_up("allreduce")
def allreduce_(  # noqa: PLR0917 - Horovod's signature
    tensor: mx.nd.NDArray,
    average: bool | None = None,  # noqa: FBT001 - Horovod's signature
    name: str | None = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    op: int | None = None,
) -> mx.nd.NDArray:
    """`allreduce` in place: the result replaces the values of `tensor`, which is returned.

    It waits first until what was enqueued and reads the array is done. Raises as `allreduce`.
    """
    del priority
    how = Combination(choose_reduction(op, average), prescale_factor, postscale_factor)
    return _prepare(tensor, how, name, process_set, in_place=True).run()


@gives_up("allreduce")
def allreduce_async_(  # noqa: PLR0917 - Horovod's signature
    tensor: mx.nd.NDArray,
    average: bool | None = None,  # noqa: FBT001 - Horovod's signature
    name: str | None = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    op: int | None = None,
) -> int:
    """Begin an `allreduce_`: `synchronize` gives `tensor`, of which nothing must be enqueued until then."""
    del priority
    how = Combination(choose_reduction(op, average), prescale_factor, postscale_factor)
    return _prepare(tensor, how, name, process_set, in_place=True).begin()


@gives_up("grouped_allreduce")
def grouped_allreduce(  # noqa: PLR0917 - Horovod's signature
    tensors: Sequence[mx.nd.NDArray],
    average: bool | None = None,  # noqa: FBT001 - Horovod's signature
    name: str | None = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    op: int | None = None,
) -> Sequence[mx.nd.NDArray]:
    """`allreduce` of several arrays as one operation: all of them run, or none.

    Args:
        tensors: of any shapes and dtypes; the same on all ranks. Without any, nothing is done.
        average: as in `allreduce`, and so are the others.
        name: of the group.
        priority: without effect.
        prescale_factor: for all.
        postscale_factor: for all.
        process_set: the ranks that take part.
        op: for all.

    Returns:
        New arrays, in the order of the call; where none are given, what is given.

    Raises:
        TypeError: as `allreduce`.
        ValueError: as `allreduce`.
        HorovodInternalError: as `allreduce`.
        MXNetError: as `allreduce`.
    """
    del priority
    how = Combination(choose_reduction(op, average), prescale_factor, postscale_factor)
    return _prepare_all(tensors, how, name, process_set).run() if tensors else tensors


@gives_up("grouped_allreduce")
def grouped_allreduce_async(  # noqa: PLR0917 - Horovod's signature
    tensors: Sequence[mx.nd.NDArray],
    average: bool | None = None,  # noqa: FBT001 - Horovod's signature
    name: str | None = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    op: int | None = None,
) -> int:
    """Begin a `grouped_allreduce` of at least one array: `synchronize` gives a list; else as `allreduce_async`."""
    del priority
    how = Combination(choose_reduction(op, average), prescale_factor, postscale_factor)
    return _prepare_all(tensors, how, name, process_set).begin()


@gives_up("grouped_allreduce")
def grouped_allreduce_(  # noqa: PLR0917 - Horovod's signature
    tensors: Sequence[mx.nd.NDArray],
    average: bool | None = None,  # noqa: FBT001 - Horovod's signature
    name: str | None = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    op: int | None = None,
) -> Sequence[mx.nd.NDArray]:
    """`grouped_allreduce` in place: the results replace the values of `tensors`, which are returned."""
    del priority
    how = Combination(choose_reduction(op, average), prescale_factor, postscale_factor)
    return _prepare_all(tensors, how, name, process_set, in_place=True).run() if tensors else tensors


@gives_up("grouped_allreduce")
def grouped_allreduce_async_(  # noqa: PLR0917 - Horovod's signature
    tensors: Sequence[mx.nd.NDArray],
    average: bool | None = None,  # noqa: FBT001 - Horovod's signature
    name: str | None = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    op: int | None = None,
) -> int:
    """Begin a `grouped_allreduce_` of at least one array; `synchronize` gives them, as a list."""
    del priority
    how = Combination(choose_reduction(op, average), prescale_factor, postscale_factor)
    return _prepare_all(tensors, how, name, process_set, in_place=True).begin()


def _prepare(
    array: mx.nd.NDArray, how: Combination, name: str | None, process_set: ProcessSet, *, in_place: bool = False
) -> Prepared[mx.nd.NDArray]:
    prepared = _prepare_all([array], how, name, process_set, kind="allreduce", in_place=in_place)
    return Prepared(prepared.call, prepared.operation, lambda results: prepared.convert(results)[0])


def _prepare_all(
    arrays: Sequence[mx.nd.NDArray],
    how: Combination,
    name: str | None,
    process_set: ProcessSet,
    *,
    kind: str = "grouped_allreduce",
    in_place: bool = False,
) -> Prepared[list[mx.nd.NDArray]]:
    given = list(arrays)
    call = begin_call(kind, name, process_set)
    if in_place:
        homes = list(map(bring_home, given))
        views = list(map(view_for_writing, homes))
        return Prepared(call, make_allreduce(call, views, how, views), lambda _: take_all_back(homes, given))
    views = [view_for_reading(array) for array in given]
    return Prepared(call, make_allreduce(call, views, how), lambda results: list(map(make_array, results, given)))
