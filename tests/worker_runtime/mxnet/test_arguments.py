"""What is no argument for a distributed optimizer or trainer is named at once, in one sentence."""

import mxnet as mx
import numpy as np
import pytest

import worker_runtime.mxnet as hvd
from tests.worker_runtime.mxnet.training import make_parameters
from worker_runtime.mxnet.arguments import check_compression, read_factor, read_group_count

TITLE = "DistributedTrainer"


@pytest.mark.parametrize("factor", [2, 0.5, np.float32(2.0), np.int64(4), -1.0])
def test_a_factor_is_any_number_that_one_can_divide_by(factor: float) -> None:
    assert read_factor(TITLE, factor) == float(factor)


@pytest.mark.parametrize(
    ("factor", "error"),
    [
        (0, ValueError),
        (0.0, ValueError),
        (float("nan"), ValueError),
        (float("inf"), ValueError),
        (1e-310, ValueError),
        ("2", TypeError),
        (None, TypeError),
        ([2.0], TypeError),
    ],
)
def test_other_factors_are_refused(factor: object, error: type[Exception]) -> None:
    with pytest.raises(error, match=r"^DistributedTrainer: gradient_predivide_factor is .*give a number"):
        read_factor(TITLE, factor)


@pytest.mark.parametrize(("count", "expected"), [(0, 0), (3, 3), (np.int64(2), 2)])
def test_a_number_of_groups_is_an_integer(count: int, expected: int) -> None:
    assert read_group_count(TITLE, count) == expected


@pytest.mark.parametrize(("count", "error"), [(-1, ValueError), ("2", TypeError), (2.0, TypeError), (None, TypeError)])
def test_other_numbers_of_groups_are_refused(count: object, error: type[Exception]) -> None:
    with pytest.raises(error, match=r"^DistributedTrainer: num_groups is .*; give how many, or 0"):
        read_group_count(TITLE, count)


@pytest.mark.parametrize("compression", [hvd.Compression.none, hvd.Compression.fp16, hvd.Compression.fp16()])
def test_a_compressor_has_both_methods(compression: object) -> None:
    check_compression(TITLE, compression)


@pytest.mark.parametrize("compression", ["fp16", None, hvd.Compression])
def test_what_is_no_compressor_is_refused(compression: object) -> None:
    with pytest.raises(TypeError, match=r"^DistributedTrainer: compression is .*; give hvd.Compression.none"):
        check_compression(TITLE, compression)


@pytest.mark.parametrize("wrong", [{"num_groups": "2"}, {"num_groups": -1}, {"process_set": 0}, {"process_set": [0]}])
@pytest.mark.parametrize("settings", [{}, {"gradient_predivide_factor": 0}])
def test_both_wrappers_look_at_their_arguments(wrong: dict[str, object], settings: dict[str, object]) -> None:
    with pytest.raises((TypeError, ValueError), match=r"^DistributedOptimizer: \w+ is "):
        hvd.DistributedOptimizer(mx.optimizer.create("sgd"), **wrong, **settings)
    with pytest.raises((TypeError, ValueError), match=r"^DistributedTrainer: \w+ is "):
        hvd.DistributedTrainer(make_parameters((1,)), "sgd", **wrong, **settings)


def test_the_trainer_looks_at_its_compression() -> None:
    with pytest.raises(TypeError, match="compression is 'fp16'"):
        hvd.DistributedTrainer(make_parameters((1,)), "sgd", compression="fp16")
