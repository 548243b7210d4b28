"""One way to make groups, whatever backend was chosen for which tensors."""

from datetime import timedelta
from functools import partial

from worker_runtime.groups.backends.choice import Choice
from worker_runtime.groups.backends.gated import Gated
from worker_runtime.groups.backends.nccl import Nccl
from worker_runtime.groups.backends.ucc import Ucc
from worker_runtime.groups.connections import Interruptible
from worker_runtime.groups.gloo import Gloo
from worker_runtime.groups.torch_groups import MakeGroup, TorchGroup
from worker_runtime.groups.torch_store import open_torch_store
from worker_runtime.rendezvous import Assignment, Backend


def compose(choice: Choice, gloo: Gloo, numbers: Assignment) -> MakeGroup:
    """What makes the groups of a generation.

    Args:
        choice: which backend is taken for which tensors.
        gloo: makes gloo's groups.
        numbers: this worker's.
    """
    open_store = partial(open_torch_store, gloo.store, gloo.address)
    limit = gloo.operation_limit
    makers: dict[Backend, MakeGroup] = {
        Backend.GLOO: gloo.make,
        # A host with one worker has none that could share a GPU, or nobody knows yet who is on which host.
        Backend.NCCL: Nccl(
            open_store, numbers.local_rank if numbers.local_size > 1 else None, limit, choice.holds_host
        ).make,
        Backend.UCC: Gated(gloo.make, Ucc(open_store).connect, limit).make,
    }

    def make(prefix: str, rank: int, size: int, device: str, limit: timedelta) -> tuple[TorchGroup, Interruptible]:
        return makers[choice.of(device)](prefix, rank, size, device, limit)

    return make
