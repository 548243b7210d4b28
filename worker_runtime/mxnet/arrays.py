"""MXNet's arrays as torch's tensors and the other way round, in the same memory: all that MXNet needs of its own here.

MXNet computes in the background: its engine runs what was enqueued, ordered by which operation reads and writes which
array. What happens through a view is unknown to the engine, so the order is kept by hand. Before a view is given out,
everything that was enqueued and writes to the array (and for writing: also what reads it) is waited for, with the
interpreter lock released. What is enqueued after the writing is done sees its results, since it runs later. Between the
two the array must be left alone, which the blocking operations see to by themselves.

A view holds the array's memory: the array itself may go. To make one takes some microseconds, and copies nothing.

To write to an array past the engine, one must wait for what was enqueued and reads it. MXNet offers that for one array
at a time, each by an operation of the engine's that does nothing and takes its turn: two changes of threads, in the
same queue as backward's operations. In `await_writable` one such operation stands for all the arrays, in the queue for
urgent ones.

There are views of the host's memory alone. An array on any other context is *foreign*: it is copied to the host, and
where it is to be overwritten, back. MXNet's engine orders these copies as all else that reads and writes the array.
"""

import ctypes
import math
from collections.abc import Sequence
from typing import Any

import torch  # first: it brings the libgomp that MXNet needs, and that a slim system lacks

import mxnet as mx  # isort: skip
import numpy as np
from mxnet.base import _LIB, MXNetError, check_call
from torch.utils.dlpack import from_dlpack, to_dlpack  # type: ignore[attr-defined]  # which torch does not export

# Which dtypes both have, and DLPack between them; MXNet's truth values and bfloat16 are not among them.
_CLASSES: dict[type, torch.dtype] = {
    np.float16: torch.float16,
    np.float32: torch.float32,
    np.float64: torch.float64,
    np.int8: torch.int8,
    np.uint8: torch.uint8,
    np.int32: torch.int32,
    np.int64: torch.int64,
}
# By what an array has as its dtype: NumPy's class in mx.nd, NumPy's dtype in mx.np.
DTYPES: dict[Any, torch.dtype] = {**_CLASSES, **{np.dtype(each): dtype for each, dtype in _CLASSES.items()}}

_OF_THE_HOST = {"cpu", "cpu_pinned", "cpu_shared"}  # MXNet's types of contexts whose memory is the host's
_HOME = mx.cpu(0)  # where arrays that are made of tensors lie


class Views:
    """The arrays of one call as tensors: `Arrays` of the API.

    Args:
        more: like what results are, beyond those of the arrays.
    """

    takes_none = True

    def __init__(self, *more: mx.nd.NDArray) -> None:
        self._more = more
        self._homes: list[mx.nd.NDArray] = []

    def read(self, arrays: Sequence[mx.nd.NDArray], *, in_place: bool) -> list[torch.Tensor]:
        """See `view_for_reading` and `view_for_writing`."""
        if not in_place:
            return list(map(view_for_reading, arrays))
        self._homes = list(map(to_host, arrays))
        return list(map(view_for_writing, self._homes))

    def wrap(
        self, results: Sequence[torch.Tensor], arrays: Sequence[mx.nd.NDArray], *, in_place: bool
    ) -> Sequence[mx.nd.NDArray]:
        """See `make_array` and `copy_back`."""
        if not in_place:
            return list(map(make_array, results, [*arrays, *self._more]))
        for home, array in zip(self._homes, arrays, strict=True):
            copy_back(home, array)
        return arrays


def view_for_reading(array: mx.nd.NDArray) -> torch.Tensor:
    """The array as a tensor that shares its memory, to be read.

    Waits until what was enqueued and writes to the array is done. As long as the tensor is read, nothing must be
    enqueued that writes to it.

    Args:
        array: of `mx.nd` or `mx.np`, dense, of one of the dtypes in `DTYPES`, on any context, of any shape, also
            without dimensions or elements; the whole or a slice. Of a foreign one it is a copy.

    Returns:
        A tensor of the same shape, on the CPU, row-major.

    Raises:
        TypeError: it is no array of MXNet.
        ValueError: it is sparse, or of another dtype.
        MXNetError: what the array was to be computed by has failed.
    """
    home = to_host(array)
    home.wait_to_read()
    return _view(home)


def view_for_writing(array: mx.nd.NDArray) -> torch.Tensor:
    """The array as a tensor that shares its memory, to be read and written.

    Waits until what was enqueued and reads or writes the array is done. Until the writing is done, nothing must be
    enqueued that reads or writes it; what is enqueued afterwards sees what was written.

    Args:
        array: as in `view_for_reading`, but not foreign: see `to_host`.

    Returns:
        A tensor of the same shape, on the CPU, row-major.

    Raises:
        TypeError: it is no array of MXNet.
        ValueError: it is sparse, or of another dtype.
        MXNetError: what the array was to be computed by has failed.
    """
    check_array(array)
    check_call(_LIB.MXNDArrayWaitToWrite(array.handle))
    return _view(array)


def to_host(array: mx.nd.NDArray) -> mx.nd.NDArray:
    """The array itself, or of a foreign one a copy on the host; enqueued, not waited for.

    Raises:
        TypeError: it is no array of MXNet.
        ValueError: it is sparse, or of another dtype.
    """
    check_array(array)
    if not is_foreign(array.context):
        return array
    with mx.autograd.pause():
        return array.copyto(_HOME)


def copy_back(home: mx.nd.NDArray, array: mx.nd.NDArray) -> None:
    """Give a foreign array the values of its copy; enqueued, so that what is enqueued afterwards sees them."""
    if home is not array:
        with mx.autograd.pause():
            home.copyto(array)


def is_foreign(context: mx.Context) -> bool:
    """Whether there can be no view of what lies there."""
    return context.device_type not in _OF_THE_HOST


def make_array(tensor: torch.Tensor, like: mx.nd.NDArray) -> mx.nd.NDArray:
    """A new tensor as an array, which owns its memory from now on.

    Args:
        tensor: row-major, on the CPU, of one of the dtypes in `DTYPES`; nothing else may write to it.
        like: on whose context the array shall be, and whether it is of `mx.nd` or `mx.np`. On `mx.cpu(0)` the memory is
            shared; to any other context MXNet copies it.

    Returns:
        An array of the same shape and dtype.
    """
    array = mx.nd.from_dlpack(to_dlpack(tensor if tensor.numel() else _make_compact(tensor)))
    if isinstance(like, mx.np.ndarray):
        array = array.as_np_ndarray()
    context = like.context
    return array if context == _HOME else array.as_in_context(context)


def check_array(array: mx.nd.NDArray) -> None:
    """Make sure that something is an array that can travel; never waits.

    Raises:
        TypeError: it is no array of MXNet.
        ValueError: it is sparse, or of a dtype that is not in `DTYPES`.
    """
    if not isinstance(array, mx.nd.NDArray):
        raise TypeError(f"an array of MXNet was expected, not {type(array).__name__}")
    if array.stype != "default":
        raise ValueError(f"arrays of storage type {array.stype} are not supported; x.tostype('default') is dense")
    if array.dtype not in DTYPES:
        supported = ", ".join(each.__name__ for each in _CLASSES)
        raise ValueError(
            f"arrays of {np.dtype(array.dtype).name} are not supported; x.astype(...) makes one of {supported}"
        )


def sum_parts(parts: Sequence[mx.nd.NDArray]) -> mx.nd.NDArray:
    """The sum of a gradient's parts as a dense array on the first one's context.

    Args:
        parts: one for each context, of one shape and dtype, dense or sparse.

    Returns:
        The first part itself, with the others added, where it is dense; else a new array.
    """
    total = _make_dense(parts[0])
    for part in parts[1:]:
        total += _make_dense(part).as_in_context(total.context)
    return total


def fill_parts(total: mx.nd.NDArray, parts: Sequence[mx.nd.NDArray]) -> None:
    """Give all parts of a gradient the values of `total`, which `sum_parts` has made of them."""
    for part in parts:
        if part is not total:
            converted = total if part.stype == total.stype else total.tostype(part.stype)  # which mx.np has not
            converted.copyto(part)


def _make_compact(tensor: torch.Tensor) -> torch.Tensor:
    """One without elements, with the strides that MXNet expects of it: torch leaves the zeros out of their product."""
    strides = [math.prod(tensor.shape[place + 1 :]) for place in range(tensor.dim())]
    return torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype, device=tensor.device)


def _view(array: mx.nd.NDArray) -> torch.Tensor:
    """A view of an array that has been waited for."""
    try:
        return from_dlpack(array.to_dlpack_for_read())
    except MXNetError:
        # oneDNN has left it in a layout of its own, such as the weights of a convolution after inference: asking for
        # the address puts it in order.
        find_address(array)
        return from_dlpack(array.to_dlpack_for_read())


def _make_dense(array: mx.nd.NDArray) -> mx.nd.NDArray:
    return array if array.stype == "default" else array.tostype("default")


class _CpuContext(ctypes.Structure):
    """MXNet's `Context` of the first CPU."""

    _fields_ = (("device_type", ctypes.c_int), ("device_id", ctypes.c_int32))


_CPU = _CpuContext(1, 0)
_URGENT = ctypes.c_int(3)  # FnProperty::kCPUPrioritized
# What runs when the arrays are free: a function that does nothing, and needs neither arguments nor Python's lock.
_NOTHING = ctypes.cast(ctypes.pythonapi.Py_IsInitialized, ctypes.c_void_p)


def await_writable(arrays: Sequence[mx.nd.NDArray]) -> None:
    """Wait until what was enqueued and reads any of the arrays is done.

    Args:
        arrays: that are computed, on the CPU.
    """
    if not arrays:
        return
    handles = (ctypes.c_void_p * len(arrays))(*[array.handle for array in arrays])
    check_call(
        _LIB.MXEnginePushSyncND(
            _NOTHING,
            None,
            None,
            ctypes.byref(_CPU),
            None,
            0,
            handles,
            len(arrays),
            ctypes.byref(_URGENT),
            0,
            b"await_writable",
        )
    )
    arrays[0].wait_to_read()  # which stands for all


def find_address(array: mx.nd.NDArray) -> int | None:
    """Where the elements of a dense array that is computed lie, in row-major order: oneDNN's own order is undone."""
    address = ctypes.c_void_p()
    check_call(_LIB.MXNDArrayGetData(array.handle, ctypes.byref(address)))
    return address.value
