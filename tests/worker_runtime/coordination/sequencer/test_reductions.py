"""Sums, products and extremes of the ranks' payloads, as each dtype does them."""

import functools
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from worker_runtime.coordination.ordering.requests import Reduction
from worker_runtime.coordination.sequencer.reductions import reduce

DTYPES = ["float16", "float32", "float64", "int8", "uint8", "int16", "int32", "int64"]
IN_PYTHON: dict[Reduction, Callable[[Any, Any], Any]] = {
    Reduction.AVERAGE: operator.add,
    Reduction.SUM: operator.add,
    Reduction.MIN: min,
    Reduction.MAX: max,
    Reduction.PRODUCT: operator.mul,
}


@pytest.mark.parametrize("reduction", IN_PYTHON)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1, 2, 5])
def test_every_reduction_of_every_dtype_agrees_with_plain_python(dtype: str, reduction: Reduction, size: int) -> None:
    columns = [[0, 1, 2, 3], [3, 2, 1, 0], [1, 1, 1, 2], [2, 0, 1, 1], [1, 2, 2, 1]][:size]
    total = reduce(dtype, reduction, [np.array(column, dtype).tobytes() for column in columns])
    expected = [functools.reduce(IN_PYTHON[reduction], row) for row in zip(*columns, strict=True)]
    assert np.frombuffer(total, dtype).tolist() == expected


@pytest.mark.parametrize(
    ("reduction", "expected"),
    [
        (Reduction.SUM, [False, True, True, True]),
        (Reduction.AVERAGE, [False, True, True, True]),
        (Reduction.MAX, [False, True, True, True]),
        (Reduction.MIN, [False, False, False, True]),
        (Reduction.PRODUCT, [False, False, False, True]),
    ],
)
def test_truth_values_are_reduced(reduction: Reduction, expected: list[bool]) -> None:
    columns = np.array([[0, 0, 1, 1], [0, 1, 0, 1]], bool)
    total = reduce("bool", reduction, [column.tobytes() for column in columns])
    assert np.frombuffer(total, bool).tolist() == expected


def test_integers_wrap_around() -> None:
    assert reduce("int8", Reduction.SUM, [b"\x7f", b"\x01"]) == b"\x80"
    assert reduce("uint8", Reduction.PRODUCT, [b"\x80", b"\x03"]) == b"\x80"


def test_a_value_that_is_not_finite_spreads_without_a_warning() -> None:
    nan, huge = np.float32("nan").tobytes(), np.float32(3e38).tobytes()
    for reduction in IN_PYTHON:
        assert np.isnan(np.frombuffer(reduce("float32", reduction, [nan, huge]), "float32")).all()
    assert np.isinf(np.frombuffer(reduce("float32", Reduction.SUM, [huge, huge]), "float32")).all()


def test_floats_are_added_in_the_order_of_the_ranks() -> None:
    values = [np.float32(1e8), np.float32(-1e8), np.float32(1.0)]
    forward = reduce("float32", Reduction.SUM, [value.tobytes() for value in values])
    backward = reduce("float32", Reduction.SUM, [value.tobytes() for value in reversed(values)])
    assert np.frombuffer(forward, "float32")[0] == 1.0
    assert np.frombuffer(backward, "float32")[0] == 0.0


def test_empty_payloads_are_reduced_to_an_empty_one() -> None:
    assert reduce("float32", Reduction.SUM, [b"", b"", b""]) == b""
