"""Generators of random numbers, put back to where they stood."""

import random

import numpy as np
import torch

from worker_runtime.checkpoints import random_states


def draw() -> list[float]:
    return [random.random(), float(np.random.rand()), float(np.random.standard_normal()), torch.rand(()).item()]  # noqa: S311, NPY002 - the global ones


def test_all_generators_go_on_from_where_they_stood() -> None:
    draw()
    taken = random_states.take()
    drawn = draw()
    assert draw() != drawn
    random_states.put_back(taken)
    assert draw() == drawn
