"""Creates torch's gloo groups, chooses their address, and finds their connections.

gloo cannot abort a pending operation, and does not expose its sockets. `shutdown(2)` on a connected socket makes the
operation raise within milliseconds. The group's sockets are those that appear while it is formed.

gloo does not notice that a peer's host is cut off: the kernel retransmits for a quarter of an hour before it gives up.
But TCP_INFO (see tcp(7) and Linux's `struct tcp_info`) has the time since the last acknowledgement. The kernel of a
peer that is busy, stopped or slow still acknowledges.

After a group is connected, its listening socket must accept nothing. gloo ends the process when accepting fails, and
cannot stop listening. So a packet filter on the socket drops all later packets in the kernel, also for the copies of
the socket in forked children. Existing connections have other sockets, and are unaffected.
"""

import contextlib
import ctypes
import os
import socket
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Self, TypeAlias

from torch._C._distributed_c10d import PrefixStore, ProcessGroupGloo, Store  # torch.distributed has no types for them

from worker_runtime.groups.torch_groups import TorchGroup

# Fields of `struct tcp_info`: unacknowledged segments, and the milliseconds since the last acknowledgement.
_UNACKNOWLEDGED = struct.Struct("@24xI28xI")
_RECEIVED = struct.Struct("@128xQ")  # the number of received bytes

_INTERNET = (socket.AF_INET, socket.AF_INET6)
_DESCRIPTORS = Path("/proc/self/fd")


def list_sockets() -> Mapping[str, int]:
    """All sockets of this process: the kernel's name of each, and one descriptor."""
    found: dict[str, int] = {}
    if not _DESCRIPTORS.is_dir():
        return found
    for entry in _DESCRIPTORS.iterdir():
        with contextlib.suppress(OSError):  # closed between listing and reading
            name = str(entry.readlink())
            if name.startswith("socket:"):
                found[name] = int(entry.name)
    return found


@dataclass(frozen=True, slots=True)
class Connection:
    """A TCP connection of this process.

    name: the kernel's name of its socket.
    own, other: the address and port of this end, and of the other end.
    received: the number of bytes received, if the other end has connected to the given listener; else None.
    """

    name: str
    own: str
    other: str
    received: int | None


def list_connections(earlier: Mapping[str, int], listener_port: int) -> list[Connection]:
    """The TCP connections opened since `earlier` was listed, of a group or of other threads."""
    new = {name: number for name, number in list_sockets().items() if name not in earlier}
    found = (_find_connection(name, number, listener_port) for name, number in new.items())
    return [connection for connection in found if connection is not None]


@dataclass(frozen=True, slots=True)
class Connections:
    """The connected sockets of one group, by the kernel's names, since descriptor numbers are reused."""

    _names: frozenset[str]

    @classmethod
    def of(cls, connections: Iterable[Connection]) -> Self:
        """The sockets of these connections."""
        return cls(frozenset(connection.name for connection in connections))

    def shut_down(self) -> Callable[[], bool]:
        """Shut down the sockets that still exist, which is done when this returns; see `Interruptible`."""
        for name, number in list_sockets().items():
            if name in self._names:
                _shut_down(name, number)
        return lambda: True

    def find_silent(self, limit_seconds: float) -> str:
        """The address of a peer whose host has not acknowledged sent data for this long; "" for none."""
        for name, number in list_sockets().items():
            if name in self._names and (address := _find_silent(name, number, limit_seconds)):
                return address
        return ""


def duplicate(name: str, number: int) -> socket.socket | None:
    """A duplicate of the socket `name`; None if the descriptor `number` is now another one."""
    try:
        own = os.dup(number)
    except OSError:
        return None
    try:
        if str((_DESCRIPTORS / str(own)).readlink()) == name:
            return socket.socket(fileno=own)
    except OSError:  # it was closed meanwhile
        pass
    os.close(own)
    return None


def _find_connection(name: str, number: int, listener_port: int) -> Connection | None:
    """The TCP connection of a descriptor; None for any other socket, such as a listening one."""
    copy = duplicate(name, number)
    if copy is None:
        return None
    with copy:
        if copy.family not in _INTERNET or copy.type != socket.SOCK_STREAM:
            return None
        try:
            own, other = copy.getsockname(), copy.getpeername()
            received = copy.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _RECEIVED.size)
        except OSError:
            return None
    return Connection(
        name, _describe(own), _describe(other), _read_received(received) if own[1] == listener_port else None
    )


def _read_received(information: bytes) -> int:
    """The number of received bytes; a large number if the kernel does not report it."""
    if len(information) == _RECEIVED.size:
        return int(_RECEIVED.unpack(information)[0])
    return _RECEIVED.size


def _describe(end: tuple[Any, ...]) -> str:
    """The address and port of one end of a connection, in the same form at both ends for IPv4 and IPv6."""
    address, port = str(end[0]).removeprefix("::ffff:").partition("%")[0], end[1]
    if ":" in address:
        return f"[{address}]:{port}"
    return f"{address}:{port}"


def _find_silent(name: str, number: int, limit_seconds: float) -> str:
    copy = duplicate(name, number)
    if copy is None:
        return ""
    with copy, contextlib.suppress(OSError):  # the peer may have closed it
        info = copy.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _UNACKNOWLEDGED.size)
        segments, milliseconds = _UNACKNOWLEDGED.unpack(info)
        if segments and milliseconds > limit_seconds * 1000:
            return str(copy.getpeername()[0])
    return ""


def _shut_down(name: str, number: int) -> None:
    copy = duplicate(name, number)
    if copy is None:
        return
    with copy, contextlib.suppress(OSError):  # the peer may have closed it
        copy.shutdown(socket.SHUT_RDWR)


_SO_ATTACH_FILTER = 26  # Linux; the socket module does not name it
_DROP = struct.pack("@HBBI", 0x06, 0, 0, 0)  # classic BPF: return 0, which keeps no byte of a packet
_PROGRAM = "@HP"  # Linux's `struct sock_fprog`: how many instructions, and where they are


def find_listener(earlier: Mapping[str, int]) -> socket.socket | None:
    """A duplicate of the only TCP socket that listens since `earlier` was listed.

    None unless there is exactly one: another thread may have opened a listener.
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


def drop_packets(listener: socket.socket) -> None:
    """Make a listener drop all later packets; without packet filters in the kernel this does nothing."""
    code = ctypes.create_string_buffer(_DROP, len(_DROP))
    program = struct.pack(_PROGRAM, 1, ctypes.addressof(code))
    with contextlib.suppress(OSError):  # this kernel has no packet filters
        listener.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, program)


_GLOO: Any = ProcessGroupGloo  # typed incompletely
_TRIES = 10  # each listens on another port for some milliseconds, which an unknown peer must find


class UnknownPeerError(RuntimeError):
    """An unknown peer may be connected to a member of the group."""


# Compares the connections of all members of a group. Its arguments: a name of the group, this worker's rank in it, its
# size, this worker's connections (None if unknown; see `wire.encode_ends`), and the time limit. It returns a message
# about a connection of an unknown peer, the same on all members, or "", and the indices of this worker's connections
# that lead to a member.
Compare: TypeAlias = Callable[
    [str, int, int, Sequence[tuple[str, str, int | None]] | None, timedelta], tuple[str, Sequence[int]]
]


@dataclass(frozen=True, slots=True)
class Gloo:
    """Creates the gloo groups of one generation.

    store: the store in which the members meet.
    compare: checks that a group's connections lead only to its members, since gloo authenticates no peer.
    address: the address or host name of this worker for the other members; nothing listens elsewhere.
    operation_limit: the time limit of each collective.
    """

    store: Store
    compare: Compare
    address: str
    operation_limit: timedelta

    def make(self, prefix: str, rank: int, size: int, device: str, limit: timedelta) -> tuple[TorchGroup, Connections]:
        """Connect to the other members; see `torch_groups.MakeGroup`. All have connected when it returns.

        Raises:
            UnknownPeerError: an unknown peer is connected to a member, in each try.
            RuntimeError: the members could not connect within the limit.
        """
        del device  # gloo sends tensors of any device through the CPU
        fault = ""

        for attempt in range(_TRIES):
            name = f"{prefix}/{attempt}"
            present = list_sockets()
            options = self._make_options(limit)
            with find_listener(present) or contextlib.nullcontext() as listener:
                group: TorchGroup = _GLOO(PrefixStore(name, self.store), rank, size, options)
                group._set_default_timeout(self.operation_limit)  # noqa: SLF001 - torch has no public way
                found = None
                if listener is not None:
                    found = list_connections(present, listener.getsockname()[1])
                ends = None
                if found is not None:
                    ends = [(each.own, each.other, each.received) for each in found]
                fault, matched = self.compare(name, rank, size, ends, limit)
                if listener is not None and not fault:
                    drop_packets(listener)  # not before: a member whose place an unknown peer has still connects

            known = found or []
            own = [known[index] for index in matched]
            if not fault:
                return group, Connections.of(own)
            Connections.of([*own, *(each for each in known if each.received is not None)]).shut_down()
            group.shutdown()
        raise UnknownPeerError(fault)

    def _make_options(self, limit: timedelta) -> object:
        """Options with a device that listens on the address."""
        options = _GLOO._Options()  # noqa: SLF001 - torch has no public way
        options._timeout = limit  # noqa: SLF001 - torch has no public way
        try:  # all connect now, whatever TORCH_GLOO_LAZY_INIT is: later nothing listens
            device = _GLOO.create_device(hostname=self.address, lazy_init=False)
        except TypeError:  # an older torch without lazy_init
            device = _GLOO.create_device(hostname=self.address)
        options._devices = [device]  # noqa: SLF001 - torch has no public way
        return options
