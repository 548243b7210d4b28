"""What is no argument for a distributed optimizer or trainer is named at once, in one sentence; and compressors."""

from collections.abc import Callable

import mxnet as mx
import numpy as np
import pytest
import torch

import worker_runtime.mxnet as hvd
from tests.worker_runtime.mxnet.training import make_parameters
from worker_runtime.mxnet.arguments import check_compression, read_factor, read_group_count
from worker_runtime.mxnet.compression import TensorCompressor

TITLE = "DistributedTrainer"


@pytest.mark.parametrize(
    ("read", "given"),
    [
        *[(read_factor, factor) for factor in (2, 0.5, np.float32(2.0), np.int64(4), -1.0)],
        *[(read_group_count, count) for count in (0, 3, np.int64(2))],
    ],
)
def test_a_factor_is_any_number_that_one_can_divide_by_and_a_number_of_groups_an_integer(
    read: Callable[[str, object], float], given: float
) -> None:
    assert read(TITLE, given) == given


@pytest.mark.parametrize("compression", [hvd.Compression.none, hvd.Compression.fp16, hvd.Compression.fp16()])
def test_a_compressor_has_both_methods(compression: object) -> None:
    check_compression(TITLE, compression)


FACTOR = (read_factor, "gradient_predivide_factor is .*give a number")
GROUPS = (read_group_count, "num_groups is .*; give how many, or 0")
COMPRESSION = (check_compression, "compression is .*; give hvd.Compression.none")


@pytest.mark.parametrize(
    ("argument", "error", "wrong"),
    [
        *[(FACTOR, ValueError, factor) for factor in (0, 0.0, float("nan"), float("inf"), 1e-310)],
        *[(FACTOR, TypeError, factor) for factor in ("2", None, [2.0])],
        (GROUPS, ValueError, -1),
        *[(GROUPS, TypeError, count) for count in ("2", 2.0, None)],
        *[(COMPRESSION, TypeError, compression) for compression in ("fp16", None, hvd.Compression)],
    ],
)
def test_other_arguments_are_refused(
    argument: tuple[Callable[[str, object], object], str], error: type[Exception], wrong: object
) -> None:
    check, message = argument
    with pytest.raises(error, match=f"^DistributedTrainer: {message}"):
        check(TITLE, wrong)


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
