"""UCC: fast for small tensors, slower than gloo from some megabytes on, and with dangers that `gate` keeps away.

Two threads per rank use a core each while a collective runs, so ranks that share cores get slower with it. When a peer
dies a survivor may get a wrong result without an error: recovery is by restart.
"""

from dataclasses import dataclass
from datetime import timedelta

import torch.distributed as dist

from worker_runtime.groups.backends.choice import find_plugin
from worker_runtime.groups.torch_groups import CONNECT_LIMIT, TorchGroup
from worker_runtime.groups.torch_store import OpenStore


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
