"""How values become one: the factors."""

import copy
import fractions

import numpy as np
import pytest
import torch

from worker_runtime.collectives import Combination, Reduction
from worker_runtime.collectives.combination import read_factor
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
def test_what_is_no_number_is_said(value: float) -> None:
    with pytest.raises(WrongArgumentError, match=r"^prescale_factor is "):
        Combination(Reduction.SUM, value)
    with pytest.raises(WrongArgumentError, match=r"^postscale_factor is "):
        Combination(Reduction.SUM, 1.0, value)
