"""The TCP connections of a group, so that pending collectives can be ended.

gloo offers no way to wake a pending operation and does not show its sockets. `shutdown(2)` on a connected socket makes
the operation raise within milliseconds; the sockets are those that appear while the group is formed.

Nor does gloo notice that a peer's host is cut off from this one: the kernel sends again for a quarter of an hour before
it gives up. But it knows, and tells (TCP_INFO, see tcp(7) and Linux's `struct tcp_info`), since when nothing of what
was sent has been acknowledged. A peer that is busy, stopped or slow acknowledges all the same: its kernel does.
"""

import contextlib
import os
import socket
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self

# Of `struct tcp_info`: segments that are not acknowledged, and the milliseconds since the last acknowledgement.
_UNACKNOWLEDGED = struct.Struct("@24xI28xI")
_RECEIVED = struct.Struct("@128xQ")  # of the same: the bytes that have come

_INTERNET = (socket.AF_INET, socket.AF_INET6)
_DESCRIPTORS = Path("/proc/self/fd")


class Interruptible(Protocol):
    """How a group's pending collectives are made to raise: by the connections of gloo, or what others have."""

    def shut_down(self) -> bool:
        """Make them raise, soon and for good; safe to repeat, from any thread.

        Returns:
            Whether that has succeeded: else nothing but the end of the process ends them.
        """

    def find_silent(self, limit_seconds: float) -> str:
        """The address of a peer whose host has acknowledged nothing for so long, of what was sent; "" for none."""


def list_sockets() -> Mapping[str, int]:
    """All sockets of this process: the kernel's name for each, and one descriptor of it."""
    found: dict[str, int] = {}
    for entry in _DESCRIPTORS.iterdir() if _DESCRIPTORS.is_dir() else ():
        with contextlib.suppress(OSError):  # closed between listing and reading
            name = str(entry.readlink())
            if name.startswith("socket:"):
                found[name] = int(entry.name)
    return found


@dataclass(frozen=True, slots=True)
class Connection:
    """A TCP connection of this process.

    name: the kernel's name for its socket.
    own, other: address and port of this end, and of the other one.
    said: how many bytes the other end has sent where it has come to the listener that was asked for; else None.
    """

    name: str
    own: str
    other: str
    said: int | None


def list_connections(earlier: Mapping[str, int], listener_port: int) -> list[Connection]:
    """The TCP connections opened since `earlier` was listed: those of a group, and any other thread's."""
    new = {name: number for name, number in list_sockets().items() if name not in earlier}
    found = (_find_connection(name, number, listener_port) for name, number in new.items())
    return [connection for connection in found if connection is not None]


@dataclass(slots=True)
class Connections:
    """The connected sockets of one group, by the kernel's name, since descriptor numbers are reused."""

    _names: frozenset[str]

    @classmethod
    def of(cls, connections: Iterable[Connection]) -> Self:
        """Those."""
        return cls(frozenset(connection.name for connection in connections))

    def shut_down(self) -> bool:
        """End those that still exist; safe to repeat."""
        for name, number in list_sockets().items():
            if name in self._names:
                _shut_down(name, number)
        return True

    def find_silent(self, limit_seconds: float) -> str:
        """The address of a peer whose host has acknowledged nothing for so long, of what was sent; "" for none."""
        for name, number in list_sockets().items():
            if name in self._names and (address := _find_silent(name, number, limit_seconds)):
                return address
        return ""

    def forget(self) -> None:
        """Touch none of them again: the group has closed them."""
        self._names = frozenset()


def duplicate(name: str, number: int) -> socket.socket | None:
    """A descriptor of our own for the socket `name`, or None if `number` has come to mean something else."""
    try:
        own = os.dup(number)
    except OSError:
        return None
    try:
        if str((_DESCRIPTORS / str(own)).readlink()) == name:
            return socket.socket(fileno=own)
    except OSError:
        pass
    os.close(own)
    return None


def _find_connection(name: str, number: int, listener_port: int) -> Connection | None:
    """None for any other socket, such as one that listens."""
    copy = duplicate(name, number)
    if copy is None:
        return None
    with copy:
        if copy.family not in _INTERNET or copy.type != socket.SOCK_STREAM:
            return None
        try:
            own, other = copy.getsockname(), copy.getpeername()
            said = copy.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _RECEIVED.size)
        except OSError:
            return None
    return Connection(name, _describe(own), _describe(other), _read_said(said) if own[1] == listener_port else None)


def _read_said(information: bytes) -> int:
    """As many bytes as possible where the kernel does not tell."""
    return int(_RECEIVED.unpack(information)[0]) if len(information) == _RECEIVED.size else _RECEIVED.size


def _describe(end: tuple[Any, ...]) -> str:
    """Address and port of one end of a connection; alike at both ends, whether they see IPv4 or IPv6 addresses."""
    address, port = str(end[0]).removeprefix("::ffff:").partition("%")[0], end[1]
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


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
