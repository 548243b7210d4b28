"""Chooses the transport to a host: a local child, SSH, --rsh or srun."""

import asyncio
import ipaddress
import os
import socket
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from hvdrun.hosts.lasting_transport import LastingTransport
from hvdrun.hosts.lasting_tunnel import LastingTunnel
from hvdrun.spec.jobspec import JobSpec
from hvdrun.transport.child import LocalTransport
from hvdrun.transport.start import make_agent
from hvdrun.transport.transport import MAX_AT_ONCE, Transport

if TYPE_CHECKING:
    from hvdrun.joining.roster import Roster
    from hvdrun.transport.ssh.transport import SshTransport, SshTransports


_HOST = "{host}"
_COMMAND = "{command}"


class Transports:
    """Makes the transports of one job, for one event loop.

    Args:
        roster: the agents that join by themselves, if this job has such.
        warn: prints a sentence.
    """

    def __init__(self, roster: "Roster | None" = None, warn: Callable[[str], None] = lambda _: None) -> None:
        self._roster = roster
        self._warn = warn
        self._ssh: SshTransports | None = None
        self._logins: dict[str, SshTransport] = {}  # with which an agent was started last
        self._gate = asyncio.Semaphore(MAX_AT_ONCE)

    def make(self, host: str, spec: JobSpec) -> Transport:
        """The transport to a host; it is not open."""
        first = self._make_first(host, spec)
        if spec.display.detach:
            tunnel = self._make_tunnel(host, lambda: spec)
            return LastingTransport(host, first, tunnel=tunnel, proves_end=isinstance(first, LocalTransport))
        return first

    def adopt(self, host: str, get_spec: Callable[[], JobSpec]) -> LastingTransport:
        """The transport to an agent that a former launcher has started.

        get_spec: the job as it is then: a script may not have named the host yet.
        """
        return LastingTransport(host, None, tunnel=self._make_tunnel(host, get_spec))

    def _make_tunnel(self, host: str, get_spec: Callable[[], JobSpec]) -> LastingTunnel | None:
        if self._roster is not None:  # the agent itself connects again
            return None
        return LastingTunnel(
            host, lambda: self._find_ssh().make(host, get_spec()), self._warn, get_spec().limits.lease_seconds
        )

    def _make_first(self, host: str, spec: JobSpec) -> Transport:
        if self._roster is not None:
            from hvdrun.joining.roster import JoinedTransport  # noqa: PLC0415 - other jobs have no such agents

            return JoinedTransport(host, self._roster, spec.limits.effective_launcher_timeout_seconds)
        if not spec.is_remote(host):
            return LocalTransport(host)
        if (
            host in spec.remote.here
            or spec.remote.rsh
            or (spec.remote.allocation is not None and host in spec.remote.allocation.steps)
        ):
            return self._make_command(host, spec)
        login = self._logins[host] = self._find_ssh().make(host, spec)
        return login

    def needs_ssh_agent(self, host: str) -> bool:
        """The ssh agent alone has the key for another login there."""
        return host in self._logins and self._logins[host].needs_ssh_agent

    def _find_ssh(self) -> "SshTransports":
        if self._ssh is None:
            from hvdrun.transport.ssh.transport import SshTransports  # noqa: PLC0415 - jobs on this machine need no paramiko

            self._ssh = SshTransports()
        return self._ssh

    def _make_command(self, host: str, spec: JobSpec) -> Transport:
        from hvdrun.transport.child import CommandTransport  # noqa: PLC0415 - few jobs have one

        agent = make_agent(spec)
        shell = ("sh", "-c", agent.command())
        if host in spec.remote.here:
            return CommandTransport(host, shell, agent, self._gate, is_here=True)
        if spec.remote.rsh:
            user = f"{spec.remote.users[host]}@" if host in spec.remote.users else ""
            return CommandTransport(
                host, fill_words(spec.remote.rsh, f"{user}{host}", agent.command()), agent, self._gate
            )
        from hvdrun.allocation.slurm import leave_steps  # noqa: PLC0415 - few jobs have one

        words: tuple[str, ...] = shell
        if spec.remote.allocation is not None:
            words = (*spec.remote.allocation.steps[host], *shell)
        return CommandTransport(host, words, agent, self._gate, environment=leave_steps(os.environ))

    def close(self) -> None:
        """Stop the background work of the transports."""
        if self._ssh is not None:
            self._ssh.close()


def fill_words(words: Sequence[str], host: str, command: str) -> tuple[str, ...]:
    """The words of --rsh with {host} and {command} filled in; what they do not name is appended, the host first."""
    missing = [value for name, value in ((_HOST, host), (_COMMAND, command)) if not any(name in word for word in words)]
    return (*(word.replace(_HOST, host).replace(_COMMAND, command) for word in words), *missing)


def is_local(host: str) -> bool:
    """The name or address belongs to this machine."""
    if host in {"localhost", socket.gethostname()}:
        return True
    try:
        found = {info[4][0] for info in socket.getaddrinfo(host, None, proto=socket.IPPROTO_TCP)}
    except (OSError, UnicodeError):  # a label of the name may be too long to be asked for
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
