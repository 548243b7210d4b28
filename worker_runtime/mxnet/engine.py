"""What MXNet's engine is asked beyond its Python API: waiting for many arrays at once, and where one lies.

To write to an array past the engine, one must wait for what was enqueued and reads it. MXNet offers that for one array
at a time, each by an operation of the engine's that does nothing and takes its turn: two changes of threads, in the
same queue as backward's operations. Here one such operation stands for all the arrays, in the queue for urgent ones.
"""

import ctypes
from collections.abc import Sequence

import mxnet as mx
from mxnet.base import _LIB, check_call


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
