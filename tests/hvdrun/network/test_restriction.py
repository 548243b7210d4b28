"""Which addresses --network-interfaces allows."""

import pytest

from hvdrun.errors import BadValueError
from hvdrun.network.restriction import Restriction
from rendezvous.core.model import Endpoint
from rendezvous.wire.orders import Listening


def make_listening(interface: str, address: str) -> Listening:
    return Listening(interface, Endpoint(address, 4711), 24)


@pytest.mark.parametrize(
    ("text", "interface", "address", "allowed"),
    [
        ("eth0", "eth0", "10.0.0.1", True),
        ("eth0", "eth01", "10.0.0.1", False),
        ("eth0", "ETH0", "10.0.0.1", False),
        ("eth1, eth0", "eth0", "10.0.0.1", True),
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
    text: str, interface: str, address: str, *, allowed: bool
) -> None:
    assert Restriction.parse(text).allows(make_listening(interface, address)) is allowed


def test_what_is_named_first_is_preferred() -> None:
    restriction = Restriction.parse("ib*,eth0,10.0.0.0/8")
    entries = [make_listening(name, "10.0.0.1") for name in ("ib1", "eth0", "eth1")]
    assert [restriction.rank(entry) for entry in entries] == [0, 1, 2]
    assert restriction.rank(make_listening("eth1", "11.0.0.1")) == 3


@pytest.mark.parametrize("text", ["", "eth0,", ",", "eth0,,eth1", "10.0.0.0/33", "10.0.0/8", "fe80::/200", "eth0/24"])
def test_what_can_be_neither_interface_nor_subnet_is_an_error(text: str) -> None:
    with pytest.raises(BadValueError, match="--network-interfaces takes names of interfaces"):
        Restriction.parse(text)


def test_it_is_shown_as_it_was_given() -> None:
    assert str(Restriction.parse("ib*, 10.0.0.0/8")) == "--network-interfaces ib*,10.0.0.0/8"
