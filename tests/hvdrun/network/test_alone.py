"""A host that is alone is given an address at which others may reach it later."""

import pytest

from hvdrun.network.alone import choose_alone, find_own_outward
from hvdrun.network.errors import NoAllowedAddressError
from hvdrun.network.findings import LAUNCHER, Findings, plan_pairs
from hvdrun.network.interfaces import list_addresses
from hvdrun.network.restriction import Restriction
from rendezvous.core.model import Endpoint
from rendezvous.orders import Found, Listening, Proof


def read(text: str) -> Listening:
    interface, address, speed = text.split()
    return Listening(interface, Endpoint(address, 1), 24, int(speed))


def make_findings(*entries: str, source: str, own: str = "eth0 10.0.0.250 0") -> Findings:
    found = {"a": Found(tuple(map(read, entries)), 4), LAUNCHER: Found((read(own),), 4)}
    proof = Proof(LAUNCHER, read(own).endpoint.address, source, 0.2)
    return Findings(found, plan_pairs(["a"]), {"a": [proof]})


DOCKER = "docker0 172.17.0.1 10000"


def test_it_is_reached_where_it_goes_out_to_the_launcher() -> None:
    findings = make_findings(DOCKER, "eth1 10.1.0.1 25000", "eth0 10.0.0.1 1000", source="10.0.0.1")
    chosen = choose_alone(findings, None)
    assert (chosen.address, chosen.interface) == ("10.0.0.1", "eth0")
    assert "alone" in chosen.reason


def test_the_user_s_networks_come_before_that() -> None:
    findings = make_findings(DOCKER, "eth1 10.1.0.1 25000", "eth0 10.0.0.1 1000", source="10.0.0.1")
    assert choose_alone(findings, Restriction(("eth1", "eth0"))).address == "10.1.0.1"
    with pytest.raises(NoAllowedAddressError, match="ib0"):
        choose_alone(findings, Restriction(("ib0",)))


def test_a_machine_without_a_network_stays_by_itself() -> None:
    findings = Findings({"a": Found((), 4), LAUNCHER: Found((), 4)}, plan_pairs(["a"]), {})
    assert choose_alone(findings, None).address == "127.0.0.1"


def test_the_launcher_s_own_machine_goes_out_into_the_world() -> None:
    outward = find_own_outward()
    assert outward <= {place.address for place in list_addresses(loopback=True)}
    for address in outward:
        if ":" in address:
            continue
        findings = make_findings(DOCKER, f"eth0 {address} 0", source=address, own=f"eth0 {address} 0")
        assert choose_alone(findings, None).address == address
