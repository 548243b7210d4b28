"""How the hosts of a job come: what --wait-for-agents, --bind and --token-file ask for."""

from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from hvdrun.errors import UsageError
from hvdrun.spec.mapping import MapBy
from rendezvous.core.model import Endpoint

FREE_PORT = 0
_LOOPBACK_NAMES = frozenset({"localhost"})
_WITHOUT_MEANING = {
    "hosts": "-H",
    "hostfile": "--hostfile",
    "script": "--host-discovery-script",
    "ssh_port": "-p",
    "ssh_identity_file": "-i",
    "ssh_accept_new": "--ssh-accept-new",
    "prefix": "--remote-prefix",
    "rsh": "--rsh",
    "agent_prefix": "--agent-prefix",
}
_ONLY_JOINED = {"bind": "--bind", "token_file": "--token-file"}


@dataclass(frozen=True, slots=True)
class Joining:
    """A job whose hosts come by themselves.

    bind: where the launcher listens for agents; None: at the address from which this machine goes out. Port 0 is a
        free one.
    token_file: what the agents are given, an absolute path; None: a file that ends with the job.
    map_by: how the workers are dealt out among the hosts that have come.
    """

    bind: Endpoint | None = None
    token_file: Path | None = None
    map_by: MapBy = MapBy.SLOT

    @property
    def is_inside(self) -> bool:
        """Agents of this machine alone can come."""
        if self.bind is None:
            return False
        try:
            return ip_address(self.bind.address).is_loopback
        except ValueError:
            return self.bind.address in _LOOPBACK_NAMES


def choose_joining(values: Mapping[str, Any], here: Path) -> Joining | None:
    """What the options' values, by dest, say of it; None for a job whose hosts are named.

    Raises:
        UsageError: they contradict each other.
    """
    if not values["wait_for_agents"]:
        for dest, flag in _ONLY_JOINED.items():
            if values[dest] is not None:
                raise UsageError(f"{flag} is for a job that waits for its agents: give --wait-for-agents as well.")
        return None
    for dest, flag in _WITHOUT_MEANING.items():
        if values[dest]:
            raise UsageError(
                f"{flag} is for hosts that hvdrun goes to, and with --wait-for-agents they come: give only one of them."
            )
    if values["oversubscribe"]:
        raise UsageError("--oversubscribe is for named hosts; with --wait-for-agents give the agents more --slots.")
    token_file = values["token_file"]
    return Joining(values["bind"], None if token_file is None else here / token_file, values["map_by"])
