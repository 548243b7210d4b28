"""What is no argument for a distributed optimizer or trainer is named immediately, in one sentence; and compressors."""

import mxnet as mx
import numpy as np
import pytest
import torch

import worker_runtime.mxnet as hvd
from tests.worker_runtime.mxnet.training import make_parameters
from worker_runtime.mxnet.compression import TensorCompressor


@pytest.mark.parametrize("wrong", [{"num_groups": "2"}, {"num_groups": -1}, {"process_set": 0}, {"process_set": [0]}])
@pytest.mark.parametrize("settings", [{}, {"gradient_predivide_factor": 0}])
def test_both_wrappers_look_at_their_arguments(wrong: dict[str, object], settings: dict[str, object]) -> None:
    with pytest.raises((TypeError, ValueError), match=r"^DistributedOptimizer: \w+ is "):
        hvd.DistributedOptimizer(mx.optimizer.create("sgd"), **wrong, **settings)
    with pytest.raises((TypeError, ValueError), match=r"^DistributedTrainer: \w+ is "):
        hvd.DistributedTrainer(make_parameters((1,)), "sgd", **wrong, **settings)


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
