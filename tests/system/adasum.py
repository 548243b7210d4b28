"""Adasum as its paper says, in NumPy."""

import numpy as np
from numpy.typing import NDArray


def combine_by_adasum(parts: list[NDArray[np.float64]]) -> NDArray[np.float64]:
    """By pairs, at distance 1, 2, 4...; first the ranks above the greatest power of two go to the lowest ones."""
    power = 1 << (len(parts).bit_length() - 1)
    for surplus in range(power, len(parts)):
        parts[surplus - power] = combine_two(parts[surplus - power], parts[surplus])
    parts = parts[:power]
    while len(parts) > 1:
        parts = [combine_two(one, other) for one, other in zip(parts[::2], parts[1::2], strict=True)]
    return parts[0]


def combine_two(one: NDArray[np.float64], other: NDArray[np.float64]) -> NDArray[np.float64]:
    """What both have in common counts once."""
    dot, own, others = (float((a * b).sum()) for a, b in ((one, other), (one, one), (other, other)))
    return (1 - dot / (2 * own)) * one + (1 - dot / (2 * others)) * other
