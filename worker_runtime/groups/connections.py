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
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self

# Of `struct tcp_info`: segments that are not acknowledged, and the milliseconds since the last acknowledgement.
_UNACKNOWLEDGED = struct.Struct("@24xI28xI")

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


@dataclass(slots=True)
class Connections:
    """The connected sockets of one group, by the kernel's name, since descriptor numbers are reused."""

    _names: frozenset[str]

    @property
    def are_known(self) -> bool:
        """Whether those of all peers were found."""
        return bool(self._names)

    @classmethod
    def appeared_since(cls, earlier: Mapping[str, int], expected: int, store_port: int) -> Self:
        """The TCP connections opened since `earlier` was listed, but for those of the store, which come at any time.

        A group has one connection to each peer. If the number is another one, some other thread has opened
        connections meanwhile, and none is taken: ending a stranger's connection would be worse than waiting.
        """
        new = {name: number for name, number in list_sockets().items() if name not in earlier}
        connected = frozenset(name for name, number in new.items() if _is_connection(name, number, store_port))
        return cls(connected if len(connected) == expected else frozenset())

    def list_ends(self) -> list[tuple[str, str]] | None:
        """This end of each, and the other one: address and port; None where they were not found."""
        if not self.are_known:
            return None
        found = []
        for name, number in list_sockets().items():
            if name in self._names and (copy := duplicate(name, number)) is not None:
                with copy, contextlib.suppress(OSError):  # the peer has closed it already
                    found.append((_describe(copy.getsockname()), _describe(copy.getpeername())))
        return found

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


def _is_connection(name: str, number: int, store_port: int) -> bool:
    copy = duplicate(name, number)
    if copy is None:
        return False
    with copy:
        if copy.family not in _INTERNET or copy.type != socket.SOCK_STREAM:
            return False
        try:
            ends = copy.getsockname(), copy.getpeername()
        except OSError:  # listening: shutting it down would end gloo's thread, and with it the process
            return False
        return all(end[1] != store_port for end in ends)


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
