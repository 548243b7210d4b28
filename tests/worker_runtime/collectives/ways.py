"""The ways in which operations' data travel between ranks, each of which is a thread, and what should come out."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from tests.worker_runtime.threads import ThreadEngine, World
from worker_runtime.collectives import allreduce, broadcast, buffers
from worker_runtime.coordination.ordering import requests
from worker_runtime.coordination.ordering.requests import Reduction

WAYS = ("request", "gloo", "large ones apart")
in_two_ways = pytest.mark.parametrize("way", WAYS[:2])
in_three_ways = pytest.mark.parametrize("way", WAYS)


def run(body: Callable[[ThreadEngine], Any], size: int = 2, way: str = WAYS[0], joined: int | None = None) -> list[Any]:
    """Call `body` on each rank of a new world, where data travel in one of WAYS; the results by rank.

    Args:
        body: what each rank does.
        size: how many ranks there are.
        way: with the request, or beside it through gloo, small ones too.
        joined: a rank that joins instead; the others do when they have ended.
    """

    def play(engine: ThreadEngine) -> object:
        result = None if engine.rank == joined else body(engine)
        if joined is not None:
            engine.join()
        return result

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(allreduce, "_plan", allreduce._plan.__wrapped__)  # what is kept is for the usual bounds
        patch.setattr(broadcast, "_make_signature", broadcast._make_signature.__wrapped__)
        if way != WAYS[0]:
            patch.setattr(requests, "PAYLOAD_BYTES", -1)
        if way == WAYS[2]:
            patch.setattr(buffers, "LARGE_BYTES", 16)
        return World(size).run(play)


def compute(reduction: Reduction, tensors: Sequence[torch.Tensor], size: int | None = None) -> torch.Tensor:
    """What a reduction makes of the tensors of all ranks, or of those of `size` that have not joined."""
    stacked = torch.stack(list(tensors))
    dtype = stacked.dtype
    match reduction:
        case Reduction.SUM:
            return stacked.sum(0, dtype=dtype)
        case Reduction.AVERAGE:
            return (stacked.sum(0, dtype=dtype) / (size or len(stacked))).to(dtype)
        case Reduction.PRODUCT:
            return stacked.prod(0, dtype=dtype)
    return stacked.amin(0) if reduction is Reduction.MIN else stacked.amax(0)


def describe(tensor: torch.Tensor) -> tuple[torch.dtype, list]:
    """Dtype and values; torch cannot compare tensors of its newest dtypes."""
    return tensor.dtype, tensor.to(torch.complex128).tolist()
