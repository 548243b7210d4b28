"""Keys have the order of the values they stand for, with NaN beyond all of them."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from worker_runtime.collectives.combination import make_keys, may_have_nan, read_keys
from worker_runtime.collectives.dtypes import FLOATS
from worker_runtime.coordination.ordering.requests import Reduction

EXTREMES = [Reduction.MIN, Reduction.MAX]
numbers = st.lists(st.floats(width=32), min_size=2, max_size=20)


@given(values=numbers, dtype=st.sampled_from(sorted(FLOATS, key=str)), reduction=st.sampled_from(EXTREMES))
def test_the_extreme_of_keys_is_the_key_of_the_extreme(
    values: list[float], dtype: torch.dtype, reduction: Reduction
) -> None:
    buffer = torch.tensor(values, dtype=torch.float64).to(dtype)
    keys = make_keys(buffer, reduction)
    found = torch.empty(1, dtype=dtype)
    read_keys((keys.amax if reduction is Reduction.MAX else keys.amin)(0, keepdim=True), found)
    expected = (buffer.amax if reduction is Reduction.MAX else buffer.amin)(0, keepdim=True)
    assert torch.equal(found, expected) or (found.isnan() and expected.isnan())


@given(values=numbers, dtype=st.sampled_from(sorted(FLOATS, key=str)), reduction=st.sampled_from(EXTREMES))
def test_each_value_comes_back_from_its_key(values: list[float], dtype: torch.dtype, reduction: Reduction) -> None:
    buffer = torch.tensor(values, dtype=torch.float64).to(dtype)
    before = buffer.clone()
    keys = make_keys(buffer, reduction)
    read = torch.empty_like(buffer)
    read_keys(keys, read)
    torch.testing.assert_close(buffer, before, rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(read, before, rtol=0, atol=0, equal_nan=True)
    assert torch.equal(read.signbit()[~read.isnan()], before.signbit()[~before.isnan()])


@pytest.mark.parametrize("dtype", sorted(FLOATS, key=str))
def test_keys_are_of_a_dtype_that_gloo_reduces(dtype: torch.dtype) -> None:
    assert make_keys(torch.ones(2, dtype=dtype), Reduction.MAX).dtype in {torch.int32, torch.int64}


@pytest.mark.parametrize(
    ("values", "prescale", "expected"),
    [
        ([1.0, 2.0], 1.0, False),
        ([1.0, math.nan], 1.0, True),
        ([-math.inf, math.inf], -2.0, False),
        ([], 1.0, False),
        ([math.inf], 0.0, True),
        ([0.0], math.inf, True),
    ],
)
def test_nans_are_found_and_those_that_a_factor_may_make(
    values: list[float], prescale: float, *, expected: bool
) -> None:
    for dtype in FLOATS:
        assert may_have_nan([torch.ones(3, dtype=torch.int32), torch.tensor(values, dtype=dtype)], prescale) is expected
    assert not may_have_nan([torch.ones(3, dtype=torch.int32)], prescale)
