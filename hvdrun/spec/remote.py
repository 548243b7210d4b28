"""How a job reaches its hosts: an allocation of a scheduler, agents that join, SSH or another command."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from ipaddress import ip_address
from pathlib import Path
from typing import Self

from hvdrun.errors import LaunchError
from hvdrun.spec.hosts import count_slots
from hvdrun.spec.mapping import MapBy
from rendezvous.core.model import Endpoint, Host

FREE_PORT = 0
_NAMED_HOSTS = 3  # in a sentence
_LOOPBACK_NAMES = frozenset({"localhost"})


@dataclass(frozen=True, slots=True)
class Joining:
    """A job whose agents join by themselves.

    bind: where the launcher listens for agents; None: at the address of outgoing connections. Port 0 means a free port.
    token_file: the token of the agents, an absolute path; None: a file that is removed when the job ends.
    map_by: how the workers are distributed over the hosts that have joined.
    """

    bind: Endpoint | None = None
    token_file: Path | None = None
    map_by: MapBy = MapBy.SLOT

    @property
    def is_inside(self) -> bool:
        """Only agents on this machine can join."""
        if self.bind is None:
            return False
        try:
            return ip_address(self.bind.address).is_loopback
        except ValueError:
            return self.bind.address in _LOOPBACK_NAMES


class AllocationError(LaunchError):
    """The variables or files of the scheduler cannot be read.

    Cause: The variables or files of the scheduler have a form that hvdrun does not know, or its file is gone.
    Remedy: Name the hosts with `-H` or `--hostfile`.
    """

    def __init__(self, name: str, source: str, reason: str) -> None:
        super().__init__(f"the hosts of {name} are not known: {source} {reason}; name them with -H or --hostfile.")


@dataclass(frozen=True, slots=True)
class Allocation:
    """The hosts of an allocation.

    name: for users, as in "Slurm job 17".
    hosts: each with its slots.
    is_sized: the user has requested these slots; otherwise each host has one.
    script: a command that prints the hosts, for elastic jobs; None for hosts that stay the same.
    steps: by host, the words before a command that runs there; empty for hosts that are reached over SSH.
    here: the host that is this machine, if the scheduler names it; otherwise names are looked up.
    """

    name: str
    hosts: tuple[Host, ...]
    is_sized: bool = True
    script: str | None = None
    steps: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    here: str | None = None

    def fit(self, size: int | None) -> Self:
        """The same with enough slots for this many workers, if the user has requested none."""
        if self.is_sized or size is None:
            return self
        slots = math.ceil(size / len(self.hosts))
        return replace(self, hosts=tuple(Host(host.name, slots) for host in self.hosts))

    @property
    def slots(self) -> int:
        """The slots of all hosts."""
        return sum(host.slots for host in self.hosts)

    def describe(self) -> str:
        """The allocation in one sentence."""
        named = [f"{host.name}:{host.slots}" for host in self.hosts[:_NAMED_HOSTS]]
        if len(self.hosts) > _NAMED_HOSTS:
            named.append(f"and {len(self.hosts) - _NAMED_HOSTS} more hosts")
        return f"{self.name}: {count_slots(self.slots)} on {', '.join(named)}."


@dataclass(frozen=True, slots=True)
class Remote:
    """The hosts of a job that are not this machine.

    `hvdrun.hosts.preparation` fills in the first four fields.

    hosts: their names in the job. With --agent-prefix these are all hosts.
    command: the command of their workers.
    interpreter: the Python that starts their agents, an absolute path; "" without such hosts.
    here: the hosts of these that are this machine nevertheless.
    python: replaces a bare `python` there, an absolute path; None for the path that it has here.
    prefix: a shell command that runs before the agent.
    rsh: the words of a command that reaches these hosts instead of hvdrun's own SSH; empty for SSH.
    agent_prefix: the words of a program that runs the agents of all hosts, in a container for example.
    ssh_port: the port of their SSH servers; None for that of ~/.ssh/config.
    ssh_identity_file: the private key to log in with, an absolute path; None for those of ~/.ssh/config and the SSH
        agent.
    ssh_accept_new: accept the key of a host that known_hosts does not have.
    users: by host, the user to log in as, if the job names one.
    interfaces: the network interfaces to use between hosts, the preferred one first; empty for all that work.
    allocation: the hosts that a scheduler has given to the job; None for named hosts.
    joining: how agents join by themselves; None for hosts that hvdrun goes to.
    """

    hosts: frozenset[str] = frozenset()
    command: tuple[str, ...] = ()
    interpreter: str = ""
    here: frozenset[str] = frozenset()
    python: str | None = None
    prefix: str | None = None
    rsh: tuple[str, ...] = ()
    agent_prefix: tuple[str, ...] = ()
    ssh_port: int | None = None
    ssh_identity_file: Path | None = None
    ssh_accept_new: bool = False
    users: Mapping[str, str] = field(default_factory=dict)
    interfaces: tuple[str, ...] = ()
    allocation: Allocation | None = None
    joining: Joining | None = None

    @property
    def is_inside(self) -> bool:
        """All known hosts of the job are this machine."""
        return not self.hosts or (self.joining is not None and self.joining.is_inside)

    @property
    def inner_way(self) -> str:
        """How a host that reaches no address of this machine reaches the rendezvous; half a sentence."""
        return "through its ssh connection" if self.joining is None else "through the port of --bind"

    @property
    def leaves_paths(self) -> bool:
        """The hosts that are not this machine set PATH and similar variables themselves."""
        return self.prefix is not None or bool(self.agent_prefix) or self.joining is not None
