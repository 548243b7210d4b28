"""What travels between launcher and agent shows no secret to those who print it."""

from rendezvous.credentials import Credential
from rendezvous.orders import Begin, Look, OutputStream


def test_the_repr_of_a_beginning_shows_no_secret() -> None:
    begin = Begin(
        job="job",
        host="a",
        server="10.0.0.1:4711",
        credential=Credential(b"authority", b"certificate", b"the private key"),
        command=("python", "train.py"),
        directory="/work",
        environment={b"API_TOKEN": b"swordfish"},
        lease_seconds=30.0,
        start_timeout_seconds=120.0,
        address="10.0.0.1",
    )
    shown = repr(begin)
    assert "train.py" in shown
    assert not any(secret in shown for secret in ("private key", "certificate", "API_TOKEN", "swordfish"))


def test_the_repr_of_a_survey_shows_no_secret() -> None:
    assert "swordfish" not in repr(Look(b"swordfish", "a"))


def test_a_stream_is_known_by_its_file_descriptor() -> None:
    assert OutputStream(1) is OutputStream.STDOUT
    assert OutputStream(2) is OutputStream.STDERR
