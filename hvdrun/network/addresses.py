"""The addresses at which another host may reach this machine, and `--network-interfaces`, which restricts them."""

import ipaddress
import socket
from dataclasses import dataclass
from fnmatch import fnmatchcase

from rendezvous.wire.orders import Listening

_LARGEST_SPEED = 2**31 - 1  # drivers that do not know the speed report 2**32 - 1


@dataclass(frozen=True, slots=True)
class InterfaceAddress:
    """One address of one network interface that is up.

    address: the address in its shortest spelling.
    prefix: how many leading bits of the address name its subnet.
    speed: the speed in Mbit/s; 0 if the interface does not report it.
    """

    interface: str
    address: str
    prefix: int
    speed: int


def list_addresses() -> tuple[InterfaceAddress, ...]:
    """All addresses of the interfaces that are up, in the kernel's order, except loopback addresses.

    Link-local addresses are left out, too, because a client needs the name of an interface for them.
    """
    import psutil  # noqa: PLC0415 - a job on localhost need not wait for it

    stats = psutil.net_if_stats()
    found = []
    for interface, entries in psutil.net_if_addrs().items():
        if interface not in stats or not stats[interface].isup:
            continue
        speed = stats[interface].speed
        for entry in entries:
            if entry.family not in (socket.AF_INET, socket.AF_INET6):
                continue
            address = ipaddress.ip_address(entry.address.partition("%")[0])
            if address.is_link_local or address.is_loopback:
                continue
            known_speed = 0
            if 0 < speed < _LARGEST_SPEED:
                known_speed = speed
            found.append(InterfaceAddress(interface, str(address), _count_prefix(entry.netmask, address), known_speed))
    return tuple(found)


def _count_prefix(netmask: str | None, address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> int:
    """The length of the netmask; an address without one (point to point) is a subnet of its own."""
    if not netmask:
        return address.max_prefixlen
    return int(ipaddress.ip_address(netmask)).bit_count()


OPTION = "--network-interfaces"


@dataclass(frozen=True, slots=True)
class Restriction:
    """The names of interfaces (`eth1`), patterns of them (`ib*`) and subnets (`10.0.0.0/8`) that may be used.

    pieces: the preferred one first.
    """

    pieces: tuple[str, ...]

    def allows(self, listening: Listening) -> bool:
        """Whether this address may be used."""
        return self.rank(listening) < len(self.pieces)

    def rank(self, listening: Listening) -> int:
        """Which piece allows this address, counted from 0; the number of pieces when none does."""
        fitting = (place for place, piece in enumerate(self.pieces) if _fits(piece, listening))
        return next(fitting, len(self.pieces))

    def __str__(self) -> str:
        return f"{OPTION} {','.join(self.pieces)}"


def _fits(piece: str, listening: Listening) -> bool:
    subnet = _read_subnet(piece)
    if subnet is None:
        return fnmatchcase(listening.interface, piece)
    return ipaddress.ip_address(listening.endpoint.address) in subnet


def _read_subnet(piece: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network | None:
    """The subnet that a piece names; a single address is one."""
    try:
        return ipaddress.ip_network(piece, strict=False)
    except ValueError:
        return None
