"""Compression of gradients for the transfer.

A compressor is any object, or class with static methods, that has `compress` and `decompress`.
"""

from typing import Any

import mxnet as mx
import numpy as np
import torch

from worker_runtime.mxnet.arrays import make_array, view_for_reading
from worker_runtime.reduction.settings import Compressor, NoneCompressor


class FP16Compressor:
    """Sends floating-point arrays as float16 (values above 65504 become infinity), and others unchanged."""

    @staticmethod
    def compress(tensor: mx.nd.NDArray) -> tuple[mx.nd.NDArray, Any]:
        """Return the array in float16, and its original dtype for `decompress`."""
        dtype = np.dtype(tensor.dtype)
        if "float" in dtype.name:
            return tensor.astype("float16"), dtype
        return tensor, None

    @staticmethod
    def decompress(tensor: mx.nd.NDArray, context: Any) -> mx.nd.NDArray:
        """Return the array in its original dtype."""
        if context is not None:
            return tensor.astype(context)
        return tensor


class Compression:
    """The compressors: `none`, and `fp16` (float16 for floating-point arrays)."""

    none = NoneCompressor
    fp16 = FP16Compressor


class TensorCompressor:
    """Adapts a user's compressor of arrays to the reducer, which calls it with tensors.

    Args:
        compressor: the user's compressor.
    """

    def __init__(self, compressor: Compressor) -> None:
        self._compressor = compressor
        self._like = mx.nd.zeros(1, ctx=mx.cpu(0))

    def compress(self, tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """Return the compressed tensor, and the context for `decompress`."""
        compressed, context = self._compressor.compress(make_array(tensor, self._like))
        return view_for_reading(compressed), context

    def decompress(self, tensor: torch.Tensor, context: Any) -> torch.Tensor:
        """Return the decompressed gradient."""
        return view_for_reading(self._compressor.decompress(make_array(tensor, self._like), context))
