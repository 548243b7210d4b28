"""One way to make groups, whatever backend was chosen for which tensors.

UCC is fast for small tensors, slower than gloo from some megabytes on, and has dangers that `gated` keeps away. Two
threads per rank use a core each while a collective runs, so ranks that share cores get slower with it. When a peer dies
a survivor may get a wrong result without an error: recovery is by restart.
"""

from dataclasses import dataclass
from datetime import timedelta
from functools import partial

import torch.distributed as dist

from worker_runtime.groups.backends.choice import Choice, find_plugin
from worker_runtime.groups.backends.gated import Gated
from worker_runtime.groups.backends.nccl import Nccl
from worker_runtime.groups.connections import Interruptible
from worker_runtime.groups.gloo import Gloo
from worker_runtime.groups.torch_groups import CONNECT_LIMIT, MakeGroup, TorchGroup
from worker_runtime.groups.torch_store import OpenStore, open_torch_store
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


@dataclass(frozen=True, slots=True)
class Ucc:
    """How UCC's groups are made; open_store: opens a store of torch's for a group."""

    open_store: OpenStore

    def connect(self, prefix: str, rank: int, size: int, limit: timedelta) -> TorchGroup:
        """Make a group; UCC connects its members in the first operation. See `gated.Connect`.

        Raises:
            RuntimeError: UCC cannot.
        """
        store = self.open_store(prefix, rank, min(limit, CONNECT_LIMIT))
        group: TorchGroup
        if dist.is_ucc_available():
            from torch._C._distributed_c10d import ProcessGroupUCC  # noqa: PLC0415 - most builds of torch lack it

            group = ProcessGroupUCC(store, rank, size, limit)  # type: ignore[assignment]  # torch leaves it untyped
            return group
        plugin = find_plugin("ucc")
        if plugin is None:
            raise RuntimeError(
                "torch has no UCC any more: its plug-in has been unregistered since init(); use --backend gloo"
            )
        if not plugin.extended_api:
            group = plugin.creator_fn(store, rank, size, limit)
            return group
        from torch._C._distributed_c10d import _DistributedBackendOptions  # noqa: PLC0415 - for rare plug-ins

        options = _DistributedBackendOptions()
        options.store = store
        options.group_rank = rank
        options.group_size = size
        options.timeout = limit
        options.group_id = prefix
        options.global_ranks_in_group = []
        group = plugin.creator_fn(options, None)
        return group
