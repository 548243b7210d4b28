"""The addresses at which another host might reach this machine."""

import ipaddress
import socket
from collections import namedtuple

import psutil
import pytest

from hvdrun.network.interfaces import InterfaceAddress, list_addresses

Entry = namedtuple("Entry", ["family", "address", "netmask"])  # noqa: PYI024 - as psutil has them
Stats = namedtuple("Stats", ["isup", "speed"])  # noqa: PYI024 - the same

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
def test_what_another_host_might_reach_is_listed() -> None:
    assert list_addresses() == (
        InterfaceAddress("eth0", "10.0.0.2", 24, 10_000),
        InterfaceAddress("eth0", "2001:db8::2", 64, 10_000),
        InterfaceAddress("tun0", "10.8.0.6", 32, 0),
    )


@pytest.mark.usefixtures("_machine")
def test_loopback_is_listed_on_demand() -> None:
    assert list_addresses(loopback=True)[:2] == (
        InterfaceAddress("lo", "127.0.0.1", 8, 0),
        InterfaceAddress("lo", "::1", 128, 0),
    )


def test_every_address_of_this_machine_can_be_bound() -> None:
    for found in list_addresses(loopback=True):
        family = socket.AF_INET6 if ipaddress.ip_address(found.address).version == 6 else socket.AF_INET
        with socket.create_server((found.address, 0), family=family):
            pass
