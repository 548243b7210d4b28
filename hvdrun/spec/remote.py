"""How a job reaches its hosts, and what is different on those that are not this machine."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # few jobs have one of these
    from hvdrun.spec.allocation import Allocation
    from hvdrun.spec.joining import Joining


@dataclass(frozen=True, slots=True)
class Remote:
    """The hosts of a job that are not this machine.

    The first four are filled in by `hvdrun.hosts.preparation`.

    hosts: their names, as the job has them. With --agent-prefix all hosts are such.
    command: what their workers execute.
    interpreter: the Python that their agents are started with, an absolute path; "" where there are no such hosts.
    here: those of them that are this machine all the same.
    python: what replaces a bare `python` there, an absolute path; None for the path that it has here.
    prefix: what the shell there does before it starts an agent.
    rsh: the words of a command that reaches these hosts in place of hvdrun's own SSH; none for that.
    agent_prefix: the words of a program that runs the agents of all hosts, in a container for example.
    ssh_port: of their SSH servers; None leaves it to ~/.ssh/config.
    ssh_identity_file: the private key to log in with, an absolute path; None leaves it to the configuration and the
        agent.
    ssh_accept_new: the key of a host that known_hosts does not have is accepted.
    users: by host, the user to log in as, where one was given.
    interfaces: the network interfaces to use between hosts, the preferred one first; none leaves it to what is proven.
    allocation: what a scheduler has given to the job; None where the user has named its hosts.
    joining: how the hosts come by themselves, so that they are not known before; None where they are named.
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
    allocation: "Allocation | None" = None
    joining: "Joining | None" = None

    @property
    def is_inside(self) -> bool:
        """All hosts of the job are this machine, as far as they are known."""
        return not self.hosts or (self.joining is not None and self.joining.is_inside)

    @property
    def inner_way(self) -> str:
        """How a host reaches the rendezvous that reaches none of this machine's addresses."""
        return "through its ssh connection" if self.joining is None else "through the port of --bind"

    @property
    def leaves_paths(self) -> bool:
        """The hosts that are not this machine know by themselves where programs are."""
        return self.prefix is not None or bool(self.agent_prefix) or self.joining is not None
