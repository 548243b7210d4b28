"""Makes groups of a backend that is not trusted with everything: beside gloo's, tested, and behind a gate."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeAlias

import torch
import torch.distributed as dist

from worker_runtime.groups.backends import canary
from worker_runtime.groups.backends.errors import CanaryError
from worker_runtime.groups.backends.gate import Gate
from worker_runtime.groups.backends.gated_group import GatedGroup
from worker_runtime.groups.connections import Interruptible
from worker_runtime.groups.torch_groups import MakeGroup, TorchGroup
from worker_runtime.groups.works import describe_cause

# Makes a backend's group. Its arguments: a prefix for the store's keys, this worker's rank in the group, the group's
# size, and the time limit of its operations. None where such members cannot have one, alike on all of them.
Connect: TypeAlias = Callable[[str, int, int, timedelta], TorchGroup | None]


@dataclass(frozen=True, slots=True)
class Gated:
    """How such groups are made.

    gate: what they are let do.
    gloo: makes gloo's groups.
    connect: makes the backend's.
    operation_limit: the time limit of each collective, once a group is formed.
    """

    gate: Gate
    gloo: MakeGroup
    connect: Connect
    operation_limit: timedelta

    def make(
        self, prefix: str, rank: int, size: int, device: str, limit: timedelta
    ) -> tuple[TorchGroup, Interruptible]:
        """Connect to the other members; see `torch_groups.MakeGroup`.

        Raises:
            CanaryError: the backend cannot be used; all members raise it, whoever of them saw the fault.
            RuntimeError: they could not connect within the limit.
        """
        outside, connections = self.gloo(prefix, rank, size, device, limit)
        gated, fault = None, ""
        try:
            inside = self.connect(f"{prefix}/{self.gate.backend}", rank, size, self.operation_limit)
            if inside is None:
                return outside, connections
            gated = GatedGroup(inside, outside, self.gate, connections, self.operation_limit)
        except RuntimeError as error:
            fault = describe_cause(error)
        if gated is not None:
            fault = canary.find_fault(gated, rank, size, limit)
        faulty = _list_faulty(outside, rank, size, bool(fault), limit)
        if gated is None or faulty:
            if gated is not None:
                gated.shutdown()  # not the connections: peers may still be reading from them
            raise CanaryError(self.gate.backend, faulty, size, fault)
        return gated, gated


def _list_faulty(gloo: TorchGroup, rank: int, size: int, is_faulty: bool, limit: timedelta) -> list[int]:  # noqa: FBT001 - what it tells
    """Which members saw a fault; all members learn the same."""
    faults = torch.zeros(size, dtype=torch.uint8, device="cpu")
    faults[rank] = is_faulty
    gloo.allreduce(faults, dist.ReduceOp.MAX).wait(limit)
    return [int(member) for member in faults.nonzero().flatten()]
