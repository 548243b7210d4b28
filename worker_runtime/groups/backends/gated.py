"""Makes groups of UCC, which is not trusted with everything: beside gloo's, tested, and behind a gate."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeAlias

import torch
import torch.distributed as dist

from worker_runtime.groups.backends import canary
from worker_runtime.groups.backends.errors import CanaryError
from worker_runtime.groups.backends.gated_group import GatedGroup
from worker_runtime.groups.connections import Interruptible
from worker_runtime.groups.torch_groups import MakeGroup, TorchGroup
from worker_runtime.groups.works import describe_cause
from worker_runtime.rendezvous import Backend

# Makes UCC's group. Its arguments: a prefix for keys in the store, this worker's rank in the group, its size, and the
# time limit of its operations.
Connect: TypeAlias = Callable[[str, int, int, timedelta], TorchGroup]


@dataclass(frozen=True, slots=True)
class Gated:
    """How such groups are made.

    gloo: makes gloo's groups.
    connect: makes UCC's.
    operation_limit: the time limit of each collective, once a group is formed.
    """

    gloo: MakeGroup
    connect: Connect
    operation_limit: timedelta

    def make(
        self, prefix: str, rank: int, size: int, device: str, limit: timedelta
    ) -> tuple[TorchGroup, Interruptible]:
        """Connect to the other members; see `torch_groups.MakeGroup`.

        Raises:
            CanaryError: UCC cannot be used; all members raise it, whoever of them saw the fault.
            RuntimeError: they could not connect within the limit.
        """
        outside, connections = self.gloo(prefix, rank, size, device, limit)
        gated, fault = None, ""
        try:
            inside = self.connect(f"{prefix}/{Backend.UCC}", rank, size, self.operation_limit)
            gated = GatedGroup(inside, outside, connections, self.operation_limit)
        except RuntimeError as error:
            fault = describe_cause(error)
        if gated is not None:
            fault = canary.find_fault(gated, rank, size, limit)
        faulty = _list_faulty(outside, rank, size, bool(fault), limit)
        if gated is None or faulty:
            if gated is not None:
                gated.shutdown()  # not the connections: peers may still be reading from them
            raise CanaryError(Backend.UCC, faulty, size, fault)
        return gated, gated


def _list_faulty(gloo: TorchGroup, rank: int, size: int, is_faulty: bool, limit: timedelta) -> list[int]:  # noqa: FBT001 - what it tells
    """Which members saw a fault; all members learn the same."""
    faults = torch.zeros(size, dtype=torch.uint8, device="cpu")
    faults[rank] = is_faulty
    gloo.allreduce(faults, dist.ReduceOp.MAX).wait(limit)
    return [int(member) for member in faults.nonzero().flatten()]
