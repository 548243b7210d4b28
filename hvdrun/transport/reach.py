"""Which way leads to a host."""

import ipaddress
import socket
from typing import TYPE_CHECKING

from hvdrun.jobspec import JobSpec
from hvdrun.transport.local import LocalTransport
from hvdrun.transport.transport import Transport

if TYPE_CHECKING:
    from hvdrun.joining.roster import Roster
    from hvdrun.transport.ssh.reach import SshTransports


class Transports:
    """Makes the transports of one job; belongs to one event loop.

    roster: the agents that have come by themselves, where they do.
    """

    def __init__(self, roster: "Roster | None" = None) -> None:
        self._roster = roster
        self._ssh: SshTransports | None = None

    def make(self, host: str, spec: JobSpec) -> Transport:
        """The transport to a host; it is not open."""
        if self._roster is not None:
            from hvdrun.joining.transport import JoinedTransport  # noqa: PLC0415 - other jobs have no such agents

            return JoinedTransport(host, self._roster, spec.patience_seconds)
        if not spec.is_remote(host):
            return LocalTransport(host)
        if self._ssh is None:
            from hvdrun.transport.ssh.reach import SshTransports  # noqa: PLC0415 - jobs on this machine need no paramiko

            self._ssh = SshTransports()
        return self._ssh.make(host, spec)

    def close(self) -> None:
        """End what the transports have begun and nobody waits for."""
        if self._ssh is not None:
            self._ssh.close()


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
