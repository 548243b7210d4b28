"""What a test does to a host's interfaces: cut, slow, close. A host or a program on it sees only the effects."""

from collections.abc import Callable
from enum import StrEnum

from tests.lab.plan import Family, Interface

_TABLE = "lab"
_DOOR = "lab_door"
_LEAST_BURST_BYTES = 3200  # two frames
_QUEUE = "2000ms"  # longer queues are cut short, as in a router

_DOORWAY = f"""
add table inet {_DOOR}
add chain inet {_DOOR} input {{ type filter hook input priority 0; policy accept; }}
"""

# Run a command in a network namespace, with this text as its input; what it prints.
Runner = Callable[[list[str], str], str]


class Direction(StrEnum):
    """Seen from the host."""

    IN = "in"
    OUT = "out"


BOTH = (Direction.IN, Direction.OUT)


class Network:
    """The interfaces of one host.

    interfaces: as planned; those to networks first.
    on_host, on_switch: run a command at either end of the host's cables.
    """

    def __init__(self, interfaces: tuple[Interface, ...], on_host: Runner, on_switch: Runner) -> None:
        self.interfaces = interfaces
        self._on_host = on_host
        self._on_switch = on_switch

    def address(self, family: Family = Family.IPV4, network: int = 0) -> str:
        """The host's address on a network; raises LookupError when it has none."""
        found = [interface.addresses for interface in self.interfaces if interface.network == network]
        if not found or family not in found[0]:
            raise LookupError(f"the host has no {family} address on network {network}")
        return found[0][family]

    def cut(self, *directions: Direction, device: str | None = None) -> None:
        """Lose all that comes in, or goes out, or both, without a trace: no error is reported.

        device: only this interface; all otherwise.
        """
        for interface in self._choose(device):
            for direction in directions or BOTH:
                if direction is Direction.IN:
                    self._filter_incoming(interface, "drop")
                else:
                    self._on_switch(["nft", "-f", "-"], _filter(interface.port, interface.port, "drop"))

    def ignore(self, other: "Network", device: str | None = None) -> None:
        """Lose what comes from another host, without a trace; what goes there is not lost.

        device: only what comes to this interface.
        """
        for interface in self._choose(device):
            for sender in other.joined():
                self._filter_incoming(interface, f"ether saddr {sender.hardware} drop")

    def ignore_answers(self) -> None:
        """Lose every answer to a connection that this host opens: at the other end each stays half open."""
        for interface in self.joined():
            self._filter_incoming(interface, "tcp flags & (syn | ack) == syn | ack drop")

    def unplug(self, device: str | None = None) -> None:
        """Pull the cable out at the switch: the interface loses its carrier."""
        self._set_ports("down", device)

    def slow(self, bits_per_second: int, device: str | None = None) -> None:
        """Let no more than this through, in each direction."""
        burst = max(_LEAST_BURST_BYTES, bits_per_second // 8 // 100)
        shape = ["root", "tbf", "rate", f"{bits_per_second}bit", "burst", f"{burst}b", "latency", _QUEUE]
        for interface in self._choose(device):
            self._on_host(["tc", "qdisc", "replace", "dev", interface.device, *shape], "")
            self._on_switch(["tc", "qdisc", "replace", "dev", interface.port, *shape], "")

    def mend(self) -> None:
        """Undo all cuts, and slowness."""
        self._on_host(["nft", "-f", "-"], _remove(_TABLE, "netdev"))
        for interface in self.joined():
            self._on_switch(["nft", "-f", "-"], _remove(interface.port, "netdev"))
            for runner, device in ((self._on_host, interface.device), (self._on_switch, interface.port)):
                # The default queue comes back; replaced first, since there must be one to delete.
                runner(["tc", "qdisc", "replace", "dev", device, "root", "pfifo"], "")
                runner(["tc", "qdisc", "delete", "dev", device, "root"], "")
        self._set_ports("up", None)

    def close_door(self, *others: "Network", but: int | None = None) -> None:
        """Refuse, by silence, every connection that another host, or one of these, opens; those that are open stay.

        but: the one port to which they may be opened.
        """
        port = "" if but is None else f"tcp dport != {but} "
        senders = [f"ether saddr {one.hardware}" for other in others for one in other.joined()] or ['iifname != "lo"']
        rules = "".join(
            f"add rule inet {_DOOR} input {sender} {port}tcp flags & (syn|ack) == syn drop\n" for sender in senders
        )
        self._on_host(["nft", "-f", "-"], _remove(_DOOR, "inet") + _DOORWAY + rules)

    def remove(self) -> None:
        """Take the host from all networks for good."""
        for interface in self.interfaces:
            self._on_switch(["ip", "link", "delete", interface.port], "")

    def joined(self) -> list[Interface]:
        """The interfaces that lead somewhere."""
        return [interface for interface in self.interfaces if interface.network is not None]

    def _choose(self, device: str | None) -> list[Interface]:
        chosen = [interface for interface in self.joined() if device in {None, interface.device}]
        if not chosen:
            raise LookupError(f"no interface {device} leads from here to a network")
        return chosen

    def _filter_incoming(self, interface: Interface, rule: str) -> None:
        self._on_host(["nft", "-f", "-"], _filter(_TABLE, interface.device, rule))

    def _set_ports(self, state: str, device: str | None) -> None:
        for interface in self._choose(device):
            self._on_switch(["ip", "link", "set", interface.port, state], "")


def _filter(table: str, device: str, rule: str) -> str:
    """Rules that add one for what arrives at a device."""
    hook = f"{{ type filter hook ingress device {device} priority 0; policy accept; }}"
    return (
        f"add table netdev {table}\nadd chain netdev {table} {device} {hook}\nadd rule netdev {table} {device} {rule}\n"
    )


def _remove(table: str, family: str) -> str:
    """Rules that remove a table, whether or not it is there."""
    return f"add table {family} {table}\ndelete table {family} {table}\n"
