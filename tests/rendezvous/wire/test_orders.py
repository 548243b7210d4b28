"""What travels between the parties of a job shows no secret to those who print it."""

import pytest

from rendezvous.core.model import Assignment, Slot, Worker
from rendezvous.wire.credentials import Credential
from rendezvous.wire.notifications import Published
from rendezvous.wire.orders import Begin, Look, OutputStream
from rendezvous.wire.sequencing import Activation

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
    patience_seconds=60.0,
    start_timeout_seconds=120.0,
    address="10.0.0.1",
)
KEY = b"secret" * 5 + b"42"
MEMBERS = ((Worker(Slot("a", 0), 1), Assignment(0, 1, 0, 1, 0, 1)),)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (CREDENTIAL, "Credential"),
        (BEGIN, "train.py"),
        (Look(b"secret", "a"), "'a'"),
        (Published(1, MEMBERS, KEY), "generation=1"),
        (Activation(3, 4, KEY), "Activation(generation=3, size=4)"),
    ],
)
def test_the_repr_of_what_travels_shows_no_secret(value: object, said: str) -> None:
    for shown in (repr(value), f"{value}"):
        assert said in shown
        assert not any(secret in shown for secret in ("secret", KEY.hex()))


def test_a_stream_is_known_by_its_file_descriptor() -> None:
    assert OutputStream(1) is OutputStream.STDOUT
    assert OutputStream(2) is OutputStream.STDERR
