"""Makes torch's gloo groups: which address they listen on, and which of this process' connections are theirs."""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeAlias

from torch._C._distributed_c10d import PrefixStore, ProcessGroupGloo, Store  # torch.distributed has no types for them

from worker_runtime.groups.connections import Connection, Connections, list_connections, list_sockets
from worker_runtime.groups.listener import find_listener, silence
from worker_runtime.groups.torch_groups import TorchGroup

_TRIES = 2

# Compares the connections of all members of a group. Its arguments: a name for the group, this worker's rank in it, its
# size, this worker's connections (None: not known), of each the address and port of this end and of the other, and how
# many bytes that has said where it has come to the group's listener, and how long to wait for the others. It returns a
# sentence on one that a stranger has, alike on all members, or "", and which of this worker's lead to a member.
Compare: TypeAlias = Callable[
    [str, int, int, Sequence[tuple[str, str, int | None]] | None, timedelta], tuple[str, Sequence[int]]
]


@dataclass(frozen=True, slots=True)
class Gloo:
    """How the groups of one generation are made.

    store: in which the members find each other.
    compare: tells whether a group's connections lead to its members alone: gloo itself authenticates nobody.
    address: the address or host name on which the other members reach this worker; nothing listens elsewhere.
    operation_limit: the time limit of each collective, once a group is formed.
    """

    store: Store
    compare: Compare
    address: str
    operation_limit: timedelta

    def make(self, prefix: str, rank: int, size: int, device: str, limit: timedelta) -> tuple[TorchGroup, Connections]:
        """Connect to the other members; see `torch_groups.MakeGroup`. All have connected when it returns.

        Raises:
            RuntimeError: they could not connect within the limit, or a stranger is connected to one of them.
        """
        del device  # tensors of any device travel through the CPU
        stranger = ""
        for attempt in range(_TRIES):
            name = f"{prefix}/{attempt}"
            group, found = self._connect(name, rank, size, limit)
            ends = None if found is None else [(each.own, each.other, each.said) for each in found]
            stranger, matched = self.compare(name, rank, size, ends, limit)
            own = [] if found is None else [found[index] for index in matched]
            if not stranger:
                return group, Connections.of(own)
            Connections.of([*own, *(each for each in found or () if each.said is not None)]).shut_down()
            group.shutdown()
        raise RuntimeError(stranger)

    def _connect(
        self, prefix: str, rank: int, size: int, limit: timedelta
    ) -> tuple[TorchGroup, list[Connection] | None]:
        """The group, and what may be its connections; None where its listener is not known."""
        present = list_sockets()
        gloo: Any = ProcessGroupGloo  # typed incompletely
        options = gloo._Options()  # noqa: SLF001 - torch's only way to choose the device
        options._devices = [_create_device(gloo, self.address)]  # noqa: SLF001 - the same
        listener = find_listener(present)
        options._timeout = limit  # noqa: SLF001 - the same
        with listener or contextlib.nullcontext():
            torch_group: TorchGroup = gloo(PrefixStore(prefix, self.store), rank, size, options)
            torch_group._set_default_timeout(self.operation_limit)  # noqa: SLF001 - torch's only way to change it
            if listener is None:
                return torch_group, None
            silence(listener)
            return torch_group, list_connections(present, listener.getsockname()[1])


def _create_device(gloo: Any, address: str) -> object:  # noqa: ANN401 - typed incompletely
    """One whose groups connect when they are made, TORCH_GLOO_LAZY_INIT or not: later the listener answers nobody."""
    try:
        return gloo.create_device(hostname=address, lazy_init=False)
    except TypeError:  # torch before 2.8 knows no other way
        return gloo.create_device(hostname=address)
