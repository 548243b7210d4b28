"""The addresses of this machine on which the network between hosts is tested without any."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from hvdrun.network import connectivity
from hvdrun.network.addresses import InterfaceAddress, list_addresses


def has_ipv6() -> bool:
    """This machine has ::1."""
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


ADDRESSES = ("127.0.0.1", "127.0.0.2", *(("::1",) if has_ipv6() else ()))


@contextmanager
def loopback_listed() -> Iterator[None]:
    """Participants of a check list loopback addresses as well."""
    loopback = tuple(InterfaceAddress("lo", address, 8, 0) for address in ADDRESSES)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(connectivity, "list_addresses", lambda: loopback + list_addresses())
        yield
