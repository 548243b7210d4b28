"""Which way leads to a host."""

import asyncio
import ipaddress
import socket
from collections.abc import Iterable

from hvdrun.jobspec import JobSpec
from hvdrun.transport.local import LocalTransport
from hvdrun.transport.transport import Transport


def reach_all(hosts: Iterable[str], spec: JobSpec, gate: asyncio.Semaphore | None = None) -> dict[str, Transport]:
    """The transports for the hosts of this job, by host.

    gate: bounds how many log in at the same time, where these are not all hosts of the job.

    Raises:
        LaunchError: what is configured for one of them cannot be understood.
    """
    names = tuple(hosts)
    remote = [host for host in names if spec.is_remote(host)]
    ways: dict[str, Transport] = {}
    if remote:
        from hvdrun.transport.ssh.reach import reach_remote  # noqa: PLC0415 - a job on this machine needs no paramiko

        ways.update(reach_remote(remote, spec, gate))
    return {host: ways[host] if host in ways else LocalTransport(host) for host in names}


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
