"""Makes torch's gloo groups: which address they listen on, and which of this process' connections are theirs.

Once a group's pairs stand, its listening sockets take no more connections. gloo ends the process when accepting fails,
and offers no way to stop listening. A filter of packets on the socket drops whatever comes from then on, in the kernel.
It stays on the copies that forked children hold, which closing would not reach. Connections that exist have their own
sockets and are not touched.
"""

import contextlib
import ctypes
import socket
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeAlias

from torch._C._distributed_c10d import PrefixStore, ProcessGroupGloo, Store  # torch.distributed has no types for them

from worker_runtime.groups.connections import Connections, duplicate, list_connections, list_sockets
from worker_runtime.groups.torch_groups import TorchGroup

_SO_ATTACH_FILTER = 26  # Linux; the socket module does not name it
_DROP = struct.pack("@HBBI", 0x06, 0, 0, 0)  # classic BPF: return 0, which keeps no byte of a packet
_PROGRAM = "@HP"  # Linux's `struct sock_fprog`: how many instructions, and where they are


def find_listener(earlier: Mapping[str, int]) -> socket.socket | None:
    """A descriptor of our own for the TCP socket that listens since `earlier` was listed.

    None unless there is exactly one: another thread has opened one meanwhile, which must not be touched.
    """
    found: list[socket.socket] = []
    for name, number in list_sockets().items():
        if name not in earlier and (own := duplicate(name, number)) is not None:
            if own.type == socket.SOCK_STREAM and own.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                found.append(own)
            else:
                own.close()
    if len(found) == 1:
        return found[0]
    for each in found:
        each.close()
    return None


def silence(listener: socket.socket) -> None:
    """Have it answer no packet any more; without filters in the kernel it goes on listening."""
    code = ctypes.create_string_buffer(_DROP, len(_DROP))
    program = struct.pack(_PROGRAM, 1, ctypes.addressof(code))
    with contextlib.suppress(OSError):
        listener.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, program)


_GLOO: Any = ProcessGroupGloo  # typed incompletely
_TRIES = 10  # each listens on another port, for some milliseconds: strangers have to find it


class StrangerError(RuntimeError):
    """A stranger may be connected to a member of the group."""


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
            StrangerError: a stranger is connected to one of them, each time.
            RuntimeError: they could not connect within the limit.
        """
        del device  # tensors of any device travel through the CPU
        stranger = ""
        for attempt in range(_TRIES):
            name = f"{prefix}/{attempt}"
            present = list_sockets()
            options = self._make_options(limit)
            with find_listener(present) or contextlib.nullcontext() as listener:
                group: TorchGroup = _GLOO(PrefixStore(name, self.store), rank, size, options)
                group._set_default_timeout(self.operation_limit)  # noqa: SLF001 - torch's only way to change it
                found = None if listener is None else list_connections(present, listener.getsockname()[1])
                ends = None if found is None else [(each.own, each.other, each.said) for each in found]
                stranger, matched = self.compare(name, rank, size, ends, limit)
                if listener is not None and not stranger:
                    silence(listener)  # not before: where a stranger has a member's place, that member still calls
            known = found or []
            own = [known[index] for index in matched]
            if not stranger:
                return group, Connections.of(own)
            Connections.of([*own, *(each for each in known if each.said is not None)]).shut_down()
            group.shutdown()
        raise StrangerError(stranger)

    def _make_options(self, limit: timedelta) -> object:
        """With a device that listens on the address."""
        options = _GLOO._Options()  # noqa: SLF001 - torch's only way to choose the device
        options._timeout = limit  # noqa: SLF001 - the same
        try:  # all connect now, TORCH_GLOO_LAZY_INIT or not: later nobody listens
            device = _GLOO.create_device(hostname=self.address, lazy_init=False)
        except TypeError:  # an older torch, which knows no other way
            device = _GLOO.create_device(hostname=self.address)
        options._devices = [device]  # noqa: SLF001 - the same
        return options
