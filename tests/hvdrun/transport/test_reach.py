"""Which hosts are this machine."""

import socket

import psutil
import pytest

from hvdrun.errors import LaunchError
from hvdrun.transport.local import LocalTransport
from hvdrun.transport.reach import is_local, reach

FOREIGN = "192.0.2.1"  # reserved for documentation (RFC 5737)


def own_address() -> str | None:
    """One that is not the loopback's."""
    addresses = (
        entry.address
        for entries in psutil.net_if_addrs().values()
        for entry in entries
        if entry.family == socket.AF_INET
    )
    return next((address for address in addresses if not address.startswith("127.")), None)


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.0.0.77", "::1", socket.gethostname()])
def test_this_machine_is_known_by_its_names_and_loopback_addresses(host: str) -> None:
    assert is_local(host)


def test_this_machine_is_known_by_its_own_addresses() -> None:
    address = own_address()
    if address is None:
        pytest.skip("this machine has no address but the loopback's")
    assert is_local(address)


def test_another_machine_is_not_this_one() -> None:
    assert not is_local(FOREIGN)


def test_a_name_that_nobody_knows_is_not_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", fail)  # a real resolver may take its time to say so
    assert not is_local("no-such-host.invalid")


def test_this_machine_is_reached_directly() -> None:
    transport = reach("localhost")
    assert isinstance(transport, LocalTransport)
    assert transport.host == "localhost"


def test_another_machine_is_refused_with_what_to_do() -> None:
    with pytest.raises(
        LaunchError, match=rf"the host '{FOREIGN}' is not this machine .* or name localhost\.$"
    ) as caught:
        reach(FOREIGN)
    assert caught.value.exit_code == 125
