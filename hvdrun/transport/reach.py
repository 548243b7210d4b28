"""Which way leads to a host."""

import ipaddress
import socket

from hvdrun.errors import LaunchError
from hvdrun.transport.local import LocalTransport
from hvdrun.transport.transport import Transport


def reach(host: str) -> Transport:
    """The transport for a host.

    Raises:
        LaunchError: no way leads there.
    """
    if is_local(host):
        return LocalTransport(host)
    raise LaunchError(
        f"the host {host!r} is not this machine ({socket.gethostname()}), and this version starts workers on this "
        "machine only: run hvdrun there, or name localhost."
    )


def is_local(host: str) -> bool:
    """The name or address belongs to this machine."""
    if host in {"localhost", socket.gethostname()}:
        return True
    try:
        found = {info[4][0] for info in socket.getaddrinfo(host, None, proto=socket.IPPROTO_TCP)}
    except OSError:
        return False
    addresses = {ipaddress.ip_address(str(address).partition("%")[0]) for address in found}
    return any(address.is_loopback for address in addresses) or not addresses.isdisjoint(_own_addresses())


def _own_addresses() -> set[ipaddress.IPv4Address | ipaddress.IPv6Address]:
    import psutil  # noqa: PLC0415 - a job on localhost need not wait for it

    return {
        ipaddress.ip_address(entry.address.partition("%")[0])
        for entries in psutil.net_if_addrs().values()
        for entry in entries
        if entry.family in (socket.AF_INET, socket.AF_INET6)
    }
