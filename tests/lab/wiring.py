"""The commands that lay a lab's cables, for batches of iproute2's `ip`."""

from collections.abc import Iterable

from tests.lab.plan import Interface

PID = "{pid}"  # stands for the first process of a host that is yet to be made


def name_bridge(network: int) -> str:
    """The bridge that is a network."""
    return f"net{network}"


def lay_bridge(network: int) -> list[str]:
    """`ip` commands for the switch; without spanning tree and snooping, a port forwards from the first moment."""
    name = name_bridge(network)
    return [
        f"link add {name} type bridge stp_state 0 forward_delay 0 mcast_snooping 0",
        f"link set {name} up",
    ]


def lay_cable(interface: Interface) -> list[str]:
    """`ip` commands for the switch: a cable from a bridge, or from nowhere, to the host whose first process is PID."""
    port = interface.port
    far_end = f"peer name {interface.device} address {interface.hardware} netns {PID}"
    commands = [f"link add {port} type veth {far_end}"]
    if interface.network is not None:
        commands.append(f"link set {port} master {name_bridge(interface.network)}")
    return [*commands, f"link set {port} up"]


def configure(interfaces: Iterable[Interface]) -> list[str]:
    """`ip` commands for the host."""
    commands = ["link set lo up"]
    for interface in interfaces:
        commands.append(f"link set {interface.device} up")
        commands += [
            f"address add {address}/{interface.prefixes[family]} dev {interface.device}"
            # nodad: no wait for the end of duplicate address detection; in a lab a duplicate does no harm.
            + (" nodad" if ":" in address else "")
            for family, address in interface.addresses.items()
        ]
    return commands
