"""Random states as bytes."""

import random

import numpy as np
import torch

from worker_runtime.snapshots.random_states import pack_random_states, restore_packed


def draw() -> list[float]:
    return [random.random(), float(np.random.rand()), torch.rand(()).item()]  # noqa: S311, NPY002 - the global ones


def test_all_generators_continue_where_they_stood() -> None:
    packed = pack_random_states()
    drawn = draw()
    assert draw() != drawn
    restore_packed(packed)
    assert draw() == drawn
