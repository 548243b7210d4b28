"""Random states as bytes."""

import random
from typing import Any

import numpy as np
import pytest
import torch

from worker_runtime.snapshots.random_states import (
    choose_generators,
    find_generators,
    pack_random_states,
    restore_packed,
)


def draw() -> list[float]:
    return [random.random(), float(np.random.rand()), torch.rand(()).item()]  # noqa: S311, NPY002 - the global ones


def test_all_generators_continue_where_they_stood() -> None:
    packed = pack_random_states()
    drawn = draw()
    assert draw() != drawn
    restore_packed(packed)
    assert draw() == drawn


def make_generators(seed: int) -> dict[str, Any]:
    return {
        "torch": torch.Generator().manual_seed(seed),
        "numpy": np.random.default_rng(seed),
        "python": random.Random(seed),  # noqa: S311 - no secret
        "common": torch.Generator().manual_seed(1),
    }


def draw_from(made: dict[str, Any]) -> dict[str, float]:
    return {
        name: torch.rand((), generator=each).item() if isinstance(each, torch.Generator) else float(each.random())
        for name, each in made.items()
    }


@pytest.mark.parametrize("rank", [1, 2, None], ids=["known", "lost", "another size"])
def test_each_rank_continues_with_its_own_generators(rank: int | None) -> None:
    ranks = [make_generators(seed) for seed in (10, 11)]
    for made in ranks:
        draw_from(made)
    values = [find_generators({**made, "step": 3}) for made in ranks]
    known = {number: pack_random_states(made) for number, made in enumerate(values)}
    fresh = make_generators(12)
    chosen = choose_generators(fresh, known, rank)
    assert set(chosen) == {"torch", "numpy", "python"}  # the state of any rank has the common one
    expected = ranks[1] if rank == 1 else make_generators(12)
    del expected["common"]
    assert draw_from(chosen) == draw_from(expected)
