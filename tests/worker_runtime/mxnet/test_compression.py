"""Compressors."""

import mxnet as mx
import numpy as np
import pytest
import torch

import worker_runtime.mxnet as hvd
from worker_runtime.mxnet.compression import TensorCompressor


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_floating_point_numbers_travel_in_half_precision(dtype: str) -> None:
    array = mx.nd.array([1.5, -2.0], dtype=dtype)
    compressed, context = hvd.Compression.fp16.compress(array)
    assert compressed.dtype == np.float16
    back = hvd.Compression.fp16.decompress(compressed, context)
    assert (np.dtype(back.dtype).name, back.asnumpy().tolist()) == (dtype, [1.5, -2.0])


def test_other_numbers_travel_as_they_are() -> None:
    array = mx.nd.array([1, 2], dtype="int32")
    for compression in (hvd.Compression.fp16, hvd.Compression.none):
        compressed, context = compression.compress(array)
        assert (compressed, context) == (array, None)
        assert compression.decompress(compressed, context) is array


def test_a_compressor_of_arrays_serves_tensors() -> None:
    compressor = TensorCompressor(hvd.Compression.fp16)
    compressed, context = compressor.compress(torch.tensor([[1.5, 2.5]]))
    assert (compressed.dtype, compressed.tolist()) == (torch.float16, [[1.5, 2.5]])
    back = compressor.decompress(compressed, context)
    assert (back.dtype, back.tolist()) == (torch.float32, [[1.5, 2.5]])
