"""What the parties of a job show each other."""

import pytest
from hypothesis import given
from hypothesis import strategies as some

from rendezvous.wire.credentials import SERVER_NAME, agent_identity


@given(some.text(some.characters(exclude_categories=["Cs"])), some.text(some.characters(exclude_categories=["Cs"])))
def test_two_hosts_never_have_one_identity(one: str, other: str) -> None:
    assert (agent_identity(one) == agent_identity(other)) == (one == other)


@pytest.mark.parametrize("host", ["a", "rendezvous.hvdrun", "2001:db8::1", "caf\u00e9", "a/b c"])
def test_no_host_has_the_server_s_name(host: str) -> None:
    identity = agent_identity(host)
    assert identity != SERVER_NAME
    assert identity.isascii()
    assert " " not in identity
