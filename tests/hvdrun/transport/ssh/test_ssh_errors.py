"""The sentences: what happened, where, and what to do."""

from pathlib import Path

import pytest

from hvdrun.errors import CANNOT_LAUNCH
from hvdrun.transport.ssh.ssh_errors import (
    AuthenticationFailedError,
    ConnectionDroppedError,
    HostKeyChangedError,
    HostKeyRevokedError,
    HostKeyUnknownError,
    SshError,
    UnknownHostError,
)
from hvdrun.transport.transport_errors import (
    AgentStartError,
    DirectoryMissingError,
    HvdrunMissingError,
    VersionMismatchError,
)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (UnknownHostError("sever1", "sever1", "unknown", "server1"), ["'sever1'", "did you mean server1?"]),
        (UnknownHostError("a", "b.example", "unknown"), ["'a' (b.example by the ssh configuration)", "spelling"]),
        (
            ConnectionDroppedError("a", "10.0.0.1", 22, attempts=3, seconds=30.1, reason="immediately"),
            ["3 times in 30 s", "MaxStartups"],
        ),
        (DirectoryMissingError("a", "/work"), ["'/work'", "--wdir"]),
        (HvdrunMissingError("a", "/py", "1.2"), ["version 1.2", "/py -m pip install FILE"]),
        (VersionMismatchError("a", "/py", "1.1", "1.2"), ["1.1", "1.2", "/py -m pip install FILE"]),
        (AgentStartError("a", "exit code 3", "boom.", "Do it"), ["did not start (exit code 3): boom. Do it."]),
        (
            HostKeyChangedError("a", "[a]:2222", "ssh-rsa", "SHA256:x", file=Path("/k"), line=7),
            ["line 7 of /k", "ssh-keygen -f /k -R '[a]:2222'"],
        ),
        (HostKeyRevokedError("a", "ssh-rsa", "SHA256:x", Path("/k"), 7), ["line 7 of /k", "revoked"]),
        (
            HostKeyUnknownError("a", "[a]:2222", "ssh-rsa", "SHA256:x"),
            ["[a]:2222: ssh-rsa SHA256:x", "--ssh-accept-new"],
        ),
    ],
)
def test_a_failure_names_its_host_and_the_remedy(error: SshError, words: list[str]) -> None:
    assert error.exit_code == CANNOT_LAUNCH
    assert repr(error.host) in str(error)
    for word in words:
        assert word in str(error)
    assert "\n" not in str(error)


@pytest.mark.parametrize(
    ("methods", "unusable", "advice"),
    [
        (["publickey"], [], "ssh-copy-id"),
        (["password"], [], "keys only"),
        (["publickey"], ["/k (encrypted)"], "ssh-add"),
        ([], [], "ssh-copy-id"),
    ],
)
def test_advice_about_a_login_fits_what_was_found(methods: list[str], unusable: list[str], advice: str) -> None:
    error = AuthenticationFailedError("a", "ada", methods=methods, tried=["/one"], unusable=unusable)
    assert advice in str(error)
    assert "keys tried: /one" in str(error)
    for word in (*methods, *unusable):
        assert word in str(error)
