"""The addresses at which another host might reach this machine, and which of them a host has that is alone."""

import ipaddress
import socket
from collections import namedtuple

import psutil
import pytest

from hvdrun.network.addresses import InterfaceAddress, Restriction, list_addresses
from hvdrun.network.choice import choose_alone, find_own_outward
from hvdrun.network.connectivity import LAUNCHER, Connectivity, plan_pairs
from hvdrun.network.errors import NoAllowedAddressError
from rendezvous.core.model import Endpoint
from rendezvous.wire.orders import Addresses, Listening, Proof

Entry = namedtuple("Entry", ["family", "address", "netmask"])  # noqa: PYI024 - as psutil has them
Stats = namedtuple("Stats", ["isup", "speed"])  # noqa: PYI024 - as psutil has them

MACHINE = {
    "lo": [Entry(socket.AF_INET, "127.0.0.1", "255.0.0.0"), Entry(socket.AF_INET6, "::1", "ffff:" * 7 + "ffff")],
    "eth0": [
        Entry(socket.AF_INET, "10.0.0.2", "255.255.255.0"),
        Entry(socket.AF_INET, "169.254.7.7", "255.255.0.0"),
        Entry(socket.AF_INET6, "2001:0db8:0:0::2", "ffff:ffff:ffff:ffff::"),
        Entry(socket.AF_INET6, "fe80::1%eth0", "ffff:ffff:ffff:ffff::"),
        Entry(socket.AF_PACKET, "02:fc:00:00:00:01", None),
    ],
    "tun0": [Entry(socket.AF_INET, "10.8.0.6", None)],
    "eth1": [Entry(socket.AF_INET, "10.1.0.2", "255.255.0.0")],
    "gone": [Entry(socket.AF_INET, "10.2.0.2", "255.255.0.0")],
}
STATS = {"lo": Stats(True, 0), "eth0": Stats(True, 10_000), "tun0": Stats(True, 2**32 - 1), "eth1": Stats(False, 0)}  # noqa: FBT003 - as psutil has them


@pytest.fixture
def _machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: MACHINE)
    monkeypatch.setattr(psutil, "net_if_stats", lambda: STATS)


@pytest.mark.usefixtures("_machine")
def test_addresses_that_another_host_might_reach_are_listed() -> None:
    assert list_addresses() == (
        InterfaceAddress("eth0", "10.0.0.2", 24, 10_000),
        InterfaceAddress("eth0", "2001:db8::2", 64, 10_000),
        InterfaceAddress("tun0", "10.8.0.6", 32, 0),
    )


def test_every_address_of_this_machine_can_be_bound() -> None:
    for found in list_addresses():
        family = socket.AF_INET6 if ipaddress.ip_address(found.address).version == 6 else socket.AF_INET
        with socket.create_server((found.address, 0), family=family):
            pass


def read(text: str) -> Listening:
    interface, address, speed = text.split()
    return Listening(interface, Endpoint(address, 1), 24, int(speed))


def make_findings(*entries: str, source: str, own: str = "eth0 10.0.0.250 0") -> Connectivity:
    found = {"a": Addresses(tuple(map(read, entries))), LAUNCHER: Addresses((read(own),))}
    proof = Proof(LAUNCHER, read(own).endpoint.address, source, 0.2)
    return Connectivity(found, plan_pairs(["a"]), {"a": [proof]})


DOCKER = "docker0 172.17.0.1 10000"


def test_this_machine_is_reached_at_the_address_of_its_way_to_the_launcher() -> None:
    connectivity = make_findings(DOCKER, "eth1 10.1.0.1 25000", "eth0 10.0.0.1 1000", source="10.0.0.1")
    chosen = choose_alone(connectivity, None)
    assert (chosen.address, chosen.interface) == ("10.0.0.1", "eth0")
    assert "alone" in chosen.reason


def test_networks_that_the_user_names_come_first() -> None:
    connectivity = make_findings(DOCKER, "eth1 10.1.0.1 25000", "eth0 10.0.0.1 1000", source="10.0.0.1")
    assert choose_alone(connectivity, Restriction(("eth1", "eth0"))).address == "10.1.0.1"
    with pytest.raises(NoAllowedAddressError, match="ib0"):
        choose_alone(connectivity, Restriction(("ib0",)))


def test_a_machine_without_a_network_stays_by_itself() -> None:
    connectivity = Connectivity({"a": Addresses(()), LAUNCHER: Addresses(())}, plan_pairs(["a"]), {})
    assert choose_alone(connectivity, None).address == "127.0.0.1"


def test_the_address_of_the_launcher_s_default_route_is_chosen() -> None:
    outward = find_own_outward()
    assert outward <= {place.address for place in list_addresses()}
    for address in outward:
        if ":" in address:
            continue
        connectivity = make_findings(DOCKER, f"eth0 {address} 0", source=address, own=f"eth0 {address} 0")
        assert choose_alone(connectivity, None).address == address


def restrict(pieces: str) -> Restriction:
    return Restriction(tuple(pieces.split(",")))


def make_listening(interface: str, address: str) -> Listening:
    return Listening(interface, Endpoint(address, 4711), 24)


@pytest.mark.parametrize(
    ("pieces", "interface", "address", "allowed"),
    [
        ("eth0", "eth0", "10.0.0.1", True),
        ("eth0", "eth01", "10.0.0.1", False),
        ("eth0", "ETH0", "10.0.0.1", False),
        ("eth1,eth0", "eth0", "10.0.0.1", True),
        ("ib*", "ib3", "10.0.0.1", True),
        ("ib*", "eth0", "10.0.0.1", False),
        ("eth[01]", "eth1", "10.0.0.1", True),
        ("eth0.100", "eth0.100", "10.0.0.1", True),
        ("10.0.0.0/8", "eth0", "10.255.0.1", True),
        ("10.0.0.0/8", "eth0", "11.0.0.1", False),
        ("10.0.0.7/24", "eth0", "10.0.0.1", True),
        ("10.0.0.1", "eth0", "10.0.0.1", True),
        ("10.0.0.1", "eth0", "10.0.0.2", False),
        ("2001:db8::/32", "eth0", "2001:db8::1", True),
        ("2001:db8::/32", "eth0", "10.0.0.1", False),
        ("0.0.0.0/0", "eth0", "2001:db8::1", False),
    ],
)
def test_an_address_is_allowed_by_its_interface_or_its_subnet(
    pieces: str, interface: str, address: str, *, allowed: bool
) -> None:
    assert restrict(pieces).allows(make_listening(interface, address)) is allowed


def test_the_interface_that_is_named_first_is_preferred() -> None:
    restriction = restrict("ib*,eth0,10.0.0.0/8")
    entries = [make_listening(name, "10.0.0.1") for name in ("ib1", "eth0", "eth1")]
    assert [restriction.rank(entry) for entry in entries] == [0, 1, 2]
    assert restriction.rank(make_listening("eth1", "11.0.0.1")) == 3


def test_a_restriction_is_shown_as_it_was_given() -> None:
    assert str(restrict("ib*,10.0.0.0/8")) == "--network-interfaces ib*,10.0.0.0/8"
