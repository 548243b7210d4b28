"""The test of a new group: an allreduce whose result is known.

A backend that returns its input, or garbage, raises nothing; training with it would be silently wrong.
"""

from datetime import timedelta

import torch
import torch.distributed as dist

from worker_runtime.groups.torch_groups import TorchGroup
from worker_runtime.groups.works import describe_cause

_COUNT = 67  # no power of two, and more than one vector register


def find_fault(group: TorchGroup, rank: int, size: int, limit: timedelta) -> str:
    """Add up known numbers with all members; what is wrong with the result, or "" when nothing is.

    Args:
        group: takes part in it on every member.
        rank: of this worker in the group.
        size: of the group.
        limit: how long to wait for the others.
    """
    tensor = _make_numbers(rank)
    expected = torch.stack([_make_numbers(member) for member in range(size)]).sum(0)
    try:
        group.allreduce(tensor, dist.ReduceOp.SUM).wait(limit)
    except RuntimeError as error:
        return describe_cause(error)
    if torch.equal(tensor, expected):
        return ""
    index = int((tensor != expected).nonzero()[0])
    return (
        f"an allreduce of known numbers returned {tensor[index].item():g} where their sum is {expected[index].item():g}"
    )


def _make_numbers(rank: int) -> torch.Tensor:
    """Small whole numbers, of which single precision holds any sum of thousands of ranks exactly."""
    return (torch.arange(_COUNT, dtype=torch.float32, device="cpu") * (rank + 3) + rank) % 31 + 1
