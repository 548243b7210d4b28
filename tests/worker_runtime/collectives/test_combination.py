"""How values become one: factors and averages, by the dtype's own rules."""

import copy
import fractions

import numpy as np
import pytest
import torch

from worker_runtime.collectives.combination import Combination, conclude_, read_factor, scale_
from worker_runtime.coordination.ordering.requests import Reduction
from worker_runtime.errors import WrongArgumentError

NUMBERS = [
    0.5,
    np.float32(0.5),
    np.float16(0.5),
    np.array(0.5),
    torch.tensor(0.5),
    torch.tensor([0.5], requires_grad=True),
    fractions.Fraction(1, 2),
]
NONSENSE = [None, "a", "0.5", b"1", 1j, [0.5], (1,), {}, ..., torch.ones(3), torch.ones(0), np.ones(2), 10**400]


@pytest.mark.parametrize("number", NUMBERS, ids=repr)
def test_a_factor_is_a_float_whatever_number_was_given(number: float) -> None:
    how = Combination(Reduction.SUM, number, number)
    assert how == (Reduction.SUM, 0.5, 0.5)
    assert [type(factor) for factor in how[1:]] == [float, float]
    assert hash(how) == hash(Combination(Reduction.SUM, 0.5, 0.5))
    assert copy.deepcopy(how) == how


def test_whole_numbers_and_infinity_are_factors_too() -> None:
    assert Combination(Reduction.SUM, 2, postscale=True) == (Reduction.SUM, 2.0, 1.0)
    assert read_factor("x", np.int64(3)) == 3.0
    assert read_factor("x", float("inf")) == float("inf")


@pytest.mark.parametrize("value", [*NONSENSE, float("nan"), np.float32("nan")], ids=repr)
def test_a_factor_that_is_no_number_is_refused(value: float) -> None:
    with pytest.raises(WrongArgumentError, match=r"^prescale_factor is "):
        Combination(Reduction.SUM, value)
    with pytest.raises(WrongArgumentError, match=r"^postscale_factor is "):
        Combination(Reduction.SUM, 1.0, value)


def test_integers_are_scaled_in_double_precision_and_truncated() -> None:
    x = torch.tensor([2**40 + 1, 3, -3])
    scale_(x, 0.5)
    assert x.tolist() == [2**39, 1, -1]


def test_halves_are_scaled_in_single_precision() -> None:
    x = torch.linspace(-2, 2, 999).to(torch.bfloat16)
    expected = (x.float() * (1 / 3)).to(torch.bfloat16)
    scale_(x, 1 / 3)
    assert torch.equal(x, expected)


def test_a_factor_of_one_changes_nothing_even_beyond_double_precision() -> None:
    x = torch.tensor([2**60 + 1])
    scale_(x, 1.0)
    assert x.tolist() == [2**60 + 1]


@pytest.mark.parametrize("size", [3, 49, 98, 103, 107, 161])
def test_the_average_of_equal_integers_is_that_integer(size: int) -> None:
    total = torch.tensor([size, -size, 5 * size])
    conclude_(total, Combination(), size)
    assert total.tolist() == [1, -1, 5]


@pytest.mark.parametrize(
    ("how", "values", "expected"),
    [
        (Combination(Reduction.AVERAGE, 9.0, 3.0), [2.0], [3.0]),
        (Combination(Reduction.AVERAGE, 9.0, 3.0), [3, -3], [4, -4]),
        (Combination(Reduction.SUM, 9.0, 3.0), [2.0], [6.0]),
        (Combination(Reduction.MAX), [2], [2]),
        (Combination(Reduction.AVERAGE), [1j], [0.5j]),
    ],
    ids=str,
)
def test_a_reduction_over_two_ranks_is_completed_in_the_buffer(
    how: Combination, values: list[float], expected: list[float]
) -> None:
    buffer = torch.tensor(values)
    conclude_(buffer, how, 2)
    assert buffer.tolist() == expected
