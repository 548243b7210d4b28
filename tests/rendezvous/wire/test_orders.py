"""What travels between the parties of a job shows no secret to those who print it, and no host has another name."""

import pytest
from hypothesis import given
from hypothesis import strategies as some

from rendezvous.core.model import Assignment, Slot, Worker
from rendezvous.wire.notifications import Published
from rendezvous.wire.orders import (
    SERVER_NAME,
    Begin,
    Credential,
    ListAddresses,
    OutputStream,
    WorkerOptions,
    agent_identity,
)
from rendezvous.wire.processes import Activation

CREDENTIAL = Credential(b"authority", b"certificate", b"secret key")
BEGIN = Begin(
    job="job",
    host="a",
    server="10.0.0.1:4711",
    credential=CREDENTIAL,
    command=("python", "train.py"),
    directory="/work",
    environment={b"secret_TOKEN": b"secret"},
    lease_seconds=30.0,
    launcher_timeout_seconds=60.0,
    start_timeout_seconds=120.0,
    address="10.0.0.1",
    workers=WorkerOptions("none", stdin_rank=None, prefork=True),
)
KEY = b"secret" * 5 + b"42"
MEMBERS = ((Worker(Slot("a", 0), 1), Assignment(0, 1, 0, 1, 0, 1)),)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (CREDENTIAL, "Credential"),
        (BEGIN, "train.py"),
        (ListAddresses(b"secret", "a"), "'a'"),
        (Published(1, MEMBERS, KEY), "generation=1"),
        (Activation(3, 4, KEY), "Activation(generation=3, size=4, "),
    ],
)
def test_the_repr_of_what_travels_shows_no_secret(value: object, said: str) -> None:
    for shown in (repr(value), f"{value}"):
        assert said in shown
        assert not any(secret in shown for secret in ("secret", KEY.hex()))


def test_a_stream_is_known_by_its_file_descriptor() -> None:
    assert OutputStream(1) is OutputStream.STDOUT
    assert OutputStream(2) is OutputStream.STDERR


@given(some.text(some.characters(exclude_categories=["Cs"])), some.text(some.characters(exclude_categories=["Cs"])))
def test_two_hosts_never_have_one_identity(one: str, other: str) -> None:
    assert (agent_identity(one) == agent_identity(other)) == (one == other)


@pytest.mark.parametrize("host", ["a", "rendezvous.hvdrun", "2001:db8::1", "caf\u00e9", "a/b c"])
def test_no_host_has_the_server_s_name(host: str) -> None:
    identity = agent_identity(host)
    assert identity != SERVER_NAME
    assert identity.isascii()
    assert " " not in identity
