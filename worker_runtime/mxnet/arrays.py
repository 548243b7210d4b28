"""MXNet arrays as torch tensors, and tensors as arrays, in shared memory.

MXNet computes in the background: its engine runs enqueued operations, ordered by the arrays that they read and write.
The engine does not know of accesses through a view. So before a view is created, this module waits until all enqueued
operations that write to the array (for a view to write: also those that read it) have run; the interpreter lock is
released meanwhile. Operations that are enqueued after the access run later, and see its results. During the access the
program must not use the array; for blocking functions this holds by itself.

A view keeps the array's memory alive. Creating one takes some microseconds, and copies nothing.

MXNet itself waits for one array at a time to become writable. It enqueues an empty operation behind those of backward,
which costs two thread switches. `await_writable` enqueues one for several arrays, in the queue of urgent operations.

Only the host's memory has views. An array on a device is copied to the host, and back if it is overwritten. MXNet's
engine orders these copies like all other operations.
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

# The dtypes that MXNet, torch and DLPack have; MXNet's bool and bfloat16 are not among them.
_CLASSES: dict[type, torch.dtype] = {
    np.float16: torch.float16,
    np.float32: torch.float32,
    np.float64: torch.float64,
    np.int8: torch.int8,
    np.uint8: torch.uint8,
    np.int32: torch.int32,
    np.int64: torch.int64,
}
# By the dtype of an array: NumPy's class in mx.nd, NumPy's dtype in mx.np.
DTYPES: dict[Any, torch.dtype] = {**_CLASSES, **{np.dtype(each): dtype for each, dtype in _CLASSES.items()}}

_OF_THE_HOST = {"cpu", "cpu_pinned", "cpu_shared"}  # MXNet's types of contexts in the host's memory
_HOST = mx.cpu(0)  # the context of arrays that are created from tensors


class Views:
    """Converts the arrays of one call; implements `api.calls.Arrays`.

    Args:
        more: the call may have more results than arrays. The further results are made like these: see `make_array`.
    """

    takes_none = True  # an empty group is no error

    def __init__(self, *more: mx.nd.NDArray) -> None:
        self._more = more
        self._host_copies: list[mx.nd.NDArray] = []

    def read(self, arrays: Sequence[mx.nd.NDArray], *, in_place: bool) -> list[torch.Tensor]:
        """See `view_for_reading` and `view_for_writing`."""
        if not in_place:
            return list(map(view_for_reading, arrays))
        self._host_copies = list(map(to_host, arrays))
        return list(map(view_for_writing, self._host_copies))

    def wrap(
        self, results: Sequence[torch.Tensor], arrays: Sequence[mx.nd.NDArray], *, in_place: bool
    ) -> Sequence[mx.nd.NDArray]:
        """See `make_array` and `copy_back`."""
        if not in_place:
            return list(map(make_array, results, [*arrays, *self._more]))
        for host_copy, array in zip(self._host_copies, arrays, strict=True):
            copy_back(host_copy, array)
        return arrays


def view_for_reading(array: mx.nd.NDArray) -> torch.Tensor:
    """A tensor for reading that shares the array's memory.

    Waits until all enqueued operations that write to the array have run. While you read the tensor, do not enqueue
    operations that write to the array.

    Args:
        array: a dense array of `mx.nd` or `mx.np`, with a dtype of `DTYPES`, on any context, of any shape, also a
            slice. An array on a device is copied.

    Returns:
        A row-major tensor of the same shape on the CPU.

    Raises:
        TypeError: the argument is not an MXNet array.
        ValueError: the array is sparse, or has another dtype.
        MXNetError: the MXNet operation that computes the array failed.
    """
    host_copy = to_host(array)
    host_copy.wait_to_read()
    return _view(host_copy)


def view_for_writing(array: mx.nd.NDArray) -> torch.Tensor:
    """A tensor for reading and writing that shares the array's memory.

    Waits until all enqueued operations that read or write the array have run. Until you have written the tensor, do not
    enqueue operations that use the array; later ones see what you have written.

    Args:
        array: an array as in `view_for_reading`, but not on a device: see `to_host`.

    Returns:
        A row-major tensor of the same shape on the CPU.

    Raises:
        TypeError: the argument is not an MXNet array.
        ValueError: the array is sparse, or has another dtype.
        MXNetError: the MXNet operation that computes the array failed.
    """
    check_array(array)
    check_call(_LIB.MXNDArrayWaitToWrite(array.handle))
    return _view(array)


def to_host(array: mx.nd.NDArray) -> mx.nd.NDArray:
    """The array itself, or a copy on the host of one on a device; enqueued, without waiting.

    Raises:
        TypeError: the argument is not an MXNet array.
        ValueError: the array is sparse, or has another dtype.
    """
    check_array(array)
    if not is_on_device(array.context):
        return array
    with mx.autograd.pause():
        return array.copyto(_HOST)


def copy_back(host_copy: mx.nd.NDArray, array: mx.nd.NDArray) -> None:
    """Copy the values of a host copy back to the array on a device; enqueued, so that later operations see them."""
    if host_copy is not array:
        with mx.autograd.pause():
            host_copy.copyto(array)


def is_on_device(context: mx.Context) -> bool:
    """Whether the context is not in the host's memory, so that its arrays have no views."""
    return context.device_type not in _OF_THE_HOST


def make_array(tensor: torch.Tensor, like: mx.nd.NDArray) -> mx.nd.NDArray:
    """An array with a new tensor's values, which it then owns.

    Args:
        tensor: a row-major tensor on the CPU, with a dtype of `DTYPES`; nothing else may write to it.
        like: determines the context of the array, and whether it is of `mx.nd` or `mx.np`. On `mx.cpu(0)` the memory is
            shared; to any other context MXNet copies it.

    Returns:
        An array of the same shape and dtype.
    """
    array = mx.nd.from_dlpack(to_dlpack(tensor if tensor.numel() else _make_compact(tensor)))
    if isinstance(like, mx.np.ndarray):
        array = array.as_np_ndarray()
    context = like.context
    if context != _HOST:
        return array.as_in_context(context)
    return array


def check_array(array: mx.nd.NDArray) -> None:
    """Check that the argument is an array that can be communicated; never waits.

    Raises:
        TypeError: the argument is not an MXNet array.
        ValueError: the array is sparse, or its dtype is not in `DTYPES`.
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
    """The sum of a gradient's parts as a dense array on the first part's context.

    Args:
        parts: one array for each context, of the same shape and dtype, dense or sparse.

    Returns:
        The first part itself, with the others added, if it is dense; else a new array.
    """
    total = _make_dense(parts[0])
    for part in parts[1:]:
        total += _make_dense(part).as_in_context(total.context)
    return total


def fill_parts(total: mx.nd.NDArray, parts: Sequence[mx.nd.NDArray]) -> None:
    """Copy the result of `sum_parts` to all parts of a gradient."""
    for part in parts:
        if part is not total:
            # Arrays of mx.np have no tostype.
            converted = total
            if part.stype != total.stype:
                converted = total.tostype(part.stype)
            converted.copyto(part)


def _make_compact(tensor: torch.Tensor) -> torch.Tensor:
    """An empty tensor with the strides that MXNet expects: torch ignores dimensions of size 0 in their product."""
    strides = [math.prod(tensor.shape[place + 1 :]) for place in range(tensor.dim())]
    return torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype, device=tensor.device)


def _view(array: mx.nd.NDArray) -> torch.Tensor:
    """A view of an array, after waiting for it."""
    try:
        return from_dlpack(array.to_dlpack_for_read())
    except MXNetError:
        # oneDNN has left the array in another layout, such as the weights of a convolution after inference. Reading its
        # address restores the order.
        find_address(array)
        return from_dlpack(array.to_dlpack_for_read())


def _make_dense(array: mx.nd.NDArray) -> mx.nd.NDArray:
    if array.stype != "default":
        return array.tostype("default")
    return array


class _CpuContext(ctypes.Structure):
    """MXNet's `Context` of the first CPU."""

    _fields_ = (("device_type", ctypes.c_int), ("device_id", ctypes.c_int32))


_CPU = _CpuContext(1, 0)
_URGENT = ctypes.c_int(3)  # FnProperty::kCPUPrioritized
# The operation that runs when the arrays are free: a function without effect that needs no arguments and no lock.
_NOTHING = ctypes.cast(ctypes.pythonapi.Py_IsInitialized, ctypes.c_void_p)


def await_writable(arrays: Sequence[mx.nd.NDArray]) -> None:
    """Wait until all enqueued operations that read one of the arrays have run.

    Args:
        arrays: computed arrays on the CPU.
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
    arrays[0].wait_to_read()  # waits for the operation, and so for all arrays


def find_address(array: mx.nd.NDArray) -> int | None:
    """The address of the elements of a computed dense array in row-major order; this undoes oneDNN's layout."""
    address = ctypes.c_void_p()
    check_call(_LIB.MXNDArrayGetData(array.handle, ctypes.byref(address)))
    return address.value
