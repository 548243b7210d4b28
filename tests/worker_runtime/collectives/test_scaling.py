"""Factors and averages, by the dtype's own rules."""

import pytest
import torch

from worker_runtime.collectives.combination import Combination
from worker_runtime.collectives.scaling import conclude_, scale_
from worker_runtime.core.questions import Reduction


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
def test_the_end_of_a_reduction_over_two(how: Combination, values: list[float], expected: list[float]) -> None:
    buffer = torch.tensor(values)
    conclude_(buffer, how, 2)
    assert buffer.tolist() == expected
