"""Generators of random numbers, put back to where they stood."""

import random

import numpy as np
import torch

from worker_runtime.checkpoints.all_ranks import restore_random_states, take_random_states


def draw() -> list[float]:
    return [random.random(), float(np.random.rand()), float(np.random.standard_normal()), torch.rand(()).item()]  # noqa: S311, NPY002 - the global ones


def test_all_generators_continue_where_they_stood() -> None:
    draw()
    taken = take_random_states()
    drawn = draw()
    assert draw() != drawn
    restore_random_states(taken)
    assert draw() == drawn
