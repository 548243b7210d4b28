"""What carries CUDA tensors between the ranks of `make gpu`: NCCL, also where they share a card, unless it refuses."""

from collections.abc import Callable

import torch
import torch.distributed as dist

import worker_runtime.torch as hvd
from tests.house.gpu import NCCL_BETWEEN
from tests.worker_runtime.devices import CUDA
from tests.worker_runtime.ranks import DeviceRanks, RankFailedError, RankPool

SHARED = "use the same GPU"  # the words of our error
LIMIT_SECONDS = 10.0


def wake() -> float:
    """Use the device for the first time, which takes seconds on a GPU."""
    return torch.ones(1).item()


def add() -> float:
    """The sum of one of each rank, by NCCL: the tensor is too large for the sequencer."""
    return float(hvd.allreduce(torch.ones(1 << 16), op=hvd.Sum)[-1].item())


def find_objection(
    pool: RankPool, exchange: Callable[[], float] = add, device: str = CUDA, limit_seconds: float = LIMIT_SECONDS
) -> str:
    """Ask NCCL whether it connects ranks on the cards that there are; where it does not, they use gloo from then on.

    Args:
        pool: the ranks.
        exchange: what two of them do, to the result 2.
        device: where their tensors lie.
        limit_seconds: the time limit for the exchange.

    Returns:
        What was raised, or why nothing was tried; "" if NCCL connects them.
    """
    if not dist.is_nccl_available():
        return "this torch has no NCCL"
    ranks = DeviceRanks(pool, device, compiles=False)
    ranks.run(wake)
    try:
        sums = ranks.run(exchange, limit_seconds=limit_seconds)
    except RankFailedError as error:
        pool.use_gloo()
        lines = str(error).strip().splitlines()
        return next((line for line in lines if SHARED in line), lines[-1])
    assert sums == [2.0] * 2
    return ""


def describe(objection: str) -> str:
    """What the page says of it."""
    if not objection:
        return NCCL_BETWEEN
    return f"NCCL of one rank alone; gloo between ranks, on CUDA tensors, since NCCL does not connect two: {objection}"
