"""Makes torch's gloo groups: which address they listen on, and which of this process' connections are theirs."""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeAlias

from torch._C._distributed_c10d import PrefixStore, ProcessGroupGloo, Store  # torch.distributed has no types for them

from worker_runtime.groups.connections import Connections, list_sockets
from worker_runtime.groups.listener import find_listener, silence
from worker_runtime.groups.torch_groups import TorchGroup

_TRIES = 2

# Compares the connections of all members of a group. Its arguments: a name for the group, this worker's rank in it, its
# size, this worker's connections, of each the address and port of this end and of the other (None: not known), and how
# long to wait for the others. It returns a sentence on one that leads to no member, alike on all members, or "".
Compare: TypeAlias = Callable[[str, int, int, Sequence[tuple[str, str]] | None, timedelta], str]


@dataclass(frozen=True, slots=True)
class Gloo:
    """How the groups of one generation are made.

    store: in which the members find each other.
    compare: tells whether a group's connections lead to its members alone: gloo itself authenticates nobody.
    address: the address or host name on which the other members reach this worker; nothing listens elsewhere.
    store_port: of the store, whose connections are none of gloo's.
    operation_limit: the time limit of each collective, once a group is formed.
    """

    store: Store
    compare: Compare
    address: str
    store_port: int
    operation_limit: timedelta

    def make(self, prefix: str, rank: int, size: int, device: str, limit: timedelta) -> tuple[TorchGroup, Connections]:
        """Connect to the other members; see `torch_groups.MakeGroup`. All have connected when it returns.

        Raises:
            RuntimeError: they could not connect within the limit, or a stranger is connected to one of them.
        """
        del device  # tensors of any device travel through the CPU
        stranger = ""
        for attempt in range(_TRIES):
            group, connections = self._connect(f"{prefix}/{attempt}", rank, size, limit)
            stranger = self.compare(f"{prefix}/{attempt}", rank, size, connections.list_ends(), limit)
            if not stranger:
                return group, connections
            connections.shut_down()
            group.shutdown()
        raise RuntimeError(stranger)

    def _connect(self, prefix: str, rank: int, size: int, limit: timedelta) -> tuple[TorchGroup, Connections]:
        present = list_sockets()
        gloo: Any = ProcessGroupGloo  # typed incompletely
        options = gloo._Options()  # noqa: SLF001 - torch's only way to choose the device
        options._devices = [gloo.create_device(hostname=self.address)]  # noqa: SLF001 - the same
        listener = find_listener(present)
        options._timeout = limit  # noqa: SLF001 - the same
        with listener or contextlib.nullcontext():
            torch_group: TorchGroup = gloo(PrefixStore(prefix, self.store), rank, size, options)
            torch_group._set_default_timeout(self.operation_limit)  # noqa: SLF001 - torch's only way to change it
            connections = Connections.appeared_since(present, expected=size - 1, store_port=self.store_port)
            if listener is not None and connections.are_known:  # not where gloo connects later (TORCH_GLOO_LAZY_INIT)
                silence(listener)
        return torch_group, connections
