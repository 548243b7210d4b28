"""What a lab is to be, as values: its hosts, their interfaces and addresses, and their ssh servers."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType

LAUNCHER = "launcher"
LAUNCHER_NUMBER = 250


class Family(StrEnum):
    """A version of the internet protocol."""

    IPV4 = "IPv4"
    IPV6 = "IPv6"


@dataclass(frozen=True, slots=True)
class SshdPlan:
    """An OpenSSH server.

    accepts_key: whether the lab's key opens it.
    settings: further lines of sshd_config, such as {"MaxStartups": "2:100:2", "AllowTcpForwarding": "no"}.
    """

    accepts_key: bool = True
    settings: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True)
class HostPlan:
    """A host of the lab.

    devices: the names of its interfaces; the n-th is joined to the n-th network. An empty name: it is not on that
        network. A host's name stands for its addresses on the first network that it is on.
    families: which addresses its interfaces have.
    decoys: names of interfaces that are up and have one and the same address on every host, but lead nowhere.
    is_closed: no host can open a connection to it; it can open connections to others.
    sshd: None for a host without a server.
    """

    name: str
    devices: tuple[str, ...] = ("eth0",)
    families: tuple[Family, ...] = (Family.IPV4, Family.IPV6)
    decoys: tuple[str, ...] = ()
    is_closed: bool = False
    sshd: SshdPlan | None = field(default_factory=SshdPlan)


@dataclass(frozen=True, slots=True)
class Interface:
    """One end of a cable.

    network: the number of the bridge that it is joined to; None for a decoy.
    port: the name of the cable's other end, at the bridge.
    addresses: each with its family, without the length of the network's prefix.
    """

    device: str
    network: int | None
    port: str
    hardware: str
    addresses: Mapping[Family, str]
    prefixes: Mapping[Family, int]


def plan_interfaces(plan: HostPlan, number: int) -> tuple[Interface, ...]:
    """The interfaces of the host with this number: those that lead to networks, then the decoys."""
    networks = (_plan_joined(plan, number, network) for network, device in enumerate(plan.devices) if device)
    decoys = (_plan_decoy(device, number, place) for place, device in enumerate(plan.decoys))
    return (*networks, *decoys)


def list_names(plan: HostPlan, number: int) -> list[str]:
    """The lines of /etc/hosts for this host."""
    joined = [interface for interface in plan_interfaces(plan, number) if interface.network is not None]
    return [f"{address} {plan.name}" for address in joined[0].addresses.values()] if joined else []


def _plan_joined(plan: HostPlan, number: int, network: int) -> Interface:
    known = {Family.IPV4: f"10.{77 + network}.0.{number}", Family.IPV6: f"fd77:0:0:{network + 1:x}::{number:x}"}
    return Interface(
        device=plan.devices[network],
        network=network,
        port=f"h{number}n{network}",
        hardware=f"02:77:{network:02x}:00:00:{number:02x}",
        addresses={family: known[family] for family in plan.families},
        prefixes={Family.IPV4: 24, Family.IPV6: 64},
    )


def _plan_decoy(device: str, number: int, place: int) -> Interface:
    return Interface(
        device=device,
        network=None,
        port=f"h{number}d{place}",
        hardware=f"02:42:{place:02x}:11:00:01",  # the same on all hosts, as the address is
        addresses={Family.IPV4: f"172.{17 + place}.0.1"},
        prefixes={Family.IPV4: 16},
    )
