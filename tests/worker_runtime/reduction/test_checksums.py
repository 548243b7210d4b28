"""Checksums: what changes them, and what does not."""

import random

import pytest
import torch

from tests.worker_runtime.reduction.bits import flip_bit
from worker_runtime.reduction.checksums import fold, make_checksum, make_state_checksum, split, stack

ROW = 1 << 16  # words of 8 bytes
DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64, torch.int8, torch.bool)
LENGTHS = (0, 1, 3, 7, 1000, 2 * ROW, 2 * ROW + 3)


def make(length: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(length, generator=torch.Generator().manual_seed(length)).to(dtype)


@pytest.mark.parametrize("length", LENGTHS[1:])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.complex64], ids=str)
def test_any_flipped_bit_changes_the_checksum(length: int, dtype: torch.dtype) -> None:
    tensor = make(length, dtype)
    whole = make_checksum(tensor)
    bits = length * dtype.itemsize * 8
    chance = random.Random(length)  # noqa: S311 - no secret
    for place in {0, 31, bits - 1, *chance.sample(range(bits), min(bits, 16))} - {*range(bits, 64)}:
        flip_bit(tensor, place)
        changed = make_checksum(tensor)
        assert changed != whole
        assert fold(stack([whole, whole])) != fold(stack([whole, changed]))
        flip_bit(tensor, place)
    assert make_checksum(tensor) == whole


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("length", LENGTHS)
def test_equal_values_have_one_checksum_wherever_they_lie(length: int, dtype: torch.dtype) -> None:
    tensor = make(length, dtype)
    around = torch.zeros(length + 2, dtype=dtype)
    around[1:-1] = tensor
    assert make_checksum(around[1:-1]) == make_checksum(tensor) == make_checksum(torch.stack([tensor, tensor], 1)[:, 1])


def test_swapped_values_rows_and_tensors_change_the_checksum() -> None:
    tensor = make(6 * ROW, torch.float32)
    rows = tensor.view(3, -1)
    others = [tensor.flip(0), rows[[1, 0, 2]], torch.cat([tensor[2:4], tensor[:2], tensor[4:]]), -tensor]
    assert len({make_checksum(each).item() for each in [tensor, *others]}) == 1 + len(others)
    first, second = make_checksum(rows[0]), make_checksum(rows[1])
    assert fold(stack([first, second])) != fold(stack([second, first]))


def test_a_checksum_is_split_into_numbers_that_are_not_negative() -> None:
    sums = torch.tensor([-1, 0, 1 << 32, -(1 << 63)])
    assert split(sums).tolist() == [[(1 << 32) - 1, (1 << 32) - 1], [0, 0], [0, 1], [0, 1 << 31]]


def test_the_state_of_an_optimizer_counts_with_all_of_its_tensors() -> None:
    state = {"step": torch.tensor(3.0), "mean": torch.ones(4), "history": [1], "rate": 0.1}
    assert make_state_checksum(state) == make_state_checksum(dict(reversed(state.items())))
    assert make_state_checksum(state) != make_state_checksum({**state, "step": torch.tensor(4.0)})
    assert make_state_checksum({"rate": 0.1}) is None


@pytest.mark.parametrize("form", ["a sparse tensor", "a list"])
def test_tensors_inside_of_a_state_count(form: str) -> None:
    def make_state(values: list[float]) -> dict[str, object]:
        momentum = torch.sparse_coo_tensor([[0, 2, 0]], torch.tensor(values), (4,))
        return {"momentum": momentum if form == "a sparse tensor" else [torch.tensor(values), 1]}

    kept = make_state([1.0, 2.0, 3.0])
    assert make_state_checksum(kept) == make_state_checksum(make_state([1.0, 2.0, 3.0]))
    assert make_state_checksum(kept) != make_state_checksum(make_state([1.0, 2.5, 3.0]))
