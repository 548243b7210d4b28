"""One way to make groups, whatever backend was chosen for which tensors."""

from datetime import timedelta

from torch._C._distributed_c10d import Store  # torch.distributed has no types for it

from worker_runtime.groups.backends.choice import Choice
from worker_runtime.groups.backends.gated import Gated
from worker_runtime.groups.backends.nccl import Nccl
from worker_runtime.groups.backends.ucc import Ucc
from worker_runtime.groups.connections import Interruptible
from worker_runtime.groups.torch_groups import MakeGroup, TorchGroup
from worker_runtime.rendezvous import Assignment, Backend


def compose(
    choice: Choice, gloo: MakeGroup, store: Store, numbers: Assignment, operation_limit: timedelta
) -> MakeGroup:
    """What makes the groups of a generation.

    Args:
        choice: which backend is taken for which tensors.
        gloo: makes gloo's groups.
        store: in which the members find each other.
        numbers: this worker's.
        operation_limit: the time limit of each collective, once a group is formed.
    """
    makers: dict[Backend, MakeGroup] = {
        Backend.GLOO: gloo,
        # A host with one worker has none that could share a GPU, or nobody knows yet who is on which host.
        Backend.NCCL: Nccl(
            store, numbers.local_rank if numbers.local_size > 1 else None, operation_limit, choice.holds_host
        ).make,
        Backend.UCC: Gated(gloo, Ucc(store).connect, operation_limit).make,
    }

    def make(prefix: str, rank: int, size: int, device: str, limit: timedelta) -> tuple[TorchGroup, Interruptible]:
        return makers[choice.of(device)](prefix, rank, size, device, limit)

    return make
