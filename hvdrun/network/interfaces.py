"""This machine's addresses: those at which another host might reach it."""

import ipaddress
import socket
from dataclasses import dataclass

_LARGEST_SPEED = 2**31 - 1  # drivers that do not know say 2**32 - 1


@dataclass(frozen=True, slots=True)
class InterfaceAddress:
    """One address of one network interface that is up.

    address: in its shortest spelling.
    prefix: how many leading bits of the address name its subnet.
    speed: in Mbit/s; 0 where the interface does not tell.
    """

    interface: str
    address: str
    prefix: int
    speed: int


def list_addresses(*, loopback: bool = False) -> tuple[InterfaceAddress, ...]:
    """All addresses of the interfaces that are up, in the kernel's order.

    Left out are link-local ones, which mean nothing without naming an interface of the one who connects, and those of
    the loopback interface unless they are asked for.
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
            if address.is_link_local or (address.is_loopback and not loopback):
                continue
            known_speed = speed if 0 < speed < _LARGEST_SPEED else 0
            found.append(InterfaceAddress(interface, str(address), _count_prefix(entry.netmask, address), known_speed))
    return tuple(found)


def _count_prefix(netmask: str | None, address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> int:
    """The length of the netmask; an address without one (point to point) is a subnet of its own."""
    if not netmask:
        return address.max_prefixlen
    return int(ipaddress.ip_address(netmask)).bit_count()
