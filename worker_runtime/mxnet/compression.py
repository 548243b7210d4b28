"""Making gradients smaller before they travel, and what they were afterwards.

Whatever has `compress` and `decompress` will do where a compressor is asked for: a class with static methods, as here,
or an object.
"""

from typing import Any

import mxnet as mx
import numpy as np
import torch

from worker_runtime.mxnet.arrays import make_array, view_for_reading
from worker_runtime.reduction.settings import Compressor, NoneCompressor


class FP16Compressor:
    """Sends floating-point arrays as float16 (above 65504 it is infinity), others as they are."""

    @staticmethod
    def compress(tensor: mx.nd.NDArray) -> tuple[mx.nd.NDArray, Any]:
        """The values in float16, and the dtype that they had."""
        dtype = np.dtype(tensor.dtype)
        return (tensor.astype("float16"), dtype) if "float" in dtype.name else (tensor, None)

    @staticmethod
    def decompress(tensor: mx.nd.NDArray, context: Any) -> mx.nd.NDArray:  # noqa: ANN401 - a dtype, or None
        """The values in the dtype that they had."""
        return tensor if context is None else tensor.astype(context)


class Compression:
    """The compressors to choose from."""

    none = NoneCompressor
    fp16 = FP16Compressor


class TensorCompressor:
    """A user's compressor as the reducer calls it, with tensors for arrays.

    Args:
        compressor: the user's.
    """

    def __init__(self, compressor: Compressor) -> None:
        self._compressor = compressor
        self._like = mx.nd.zeros(1, ctx=mx.cpu(0))

    def compress(self, tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """What travels, and what `decompress` needs to know."""
        compressed, context = self._compressor.compress(make_array(tensor, self._like))
        return view_for_reading(compressed), context

    def decompress(self, tensor: torch.Tensor, context: Any) -> torch.Tensor:  # noqa: ANN401 - what compress gave
        """The gradient as it was, of what has come back."""
        return view_for_reading(self._compressor.decompress(make_array(tensor, self._like), context))
