"""Certificates of hosts and users hold for hvdrun where they hold for OpenSSH's own client, and nowhere else."""

import base64
import functools
import re
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from hvdrun.transport.ssh.certificates import BadCertificateError, HostCertificate, read_subject
from hvdrun.transport.ssh.host_keys import HostKey
from hvdrun.transport.ssh.ssh_errors import SshError
from tests.hvdrun.transport.ssh.servers import (
    USER,
    Home,
    SshServer,
    certify,
    hold,
    log_in,
    make_key,
    needs_sshd,
    read_public,
    serving,
)

AUTHORITY_KINDS = ("ed25519", "ecdsa", "rsa", "other")


@pytest.fixture(scope="module")
def authorities(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Certificate authorities of all kinds, and an unknown one: their private keys."""
    folder = tmp_path_factory.mktemp("authorities")
    return {kind: make_key(folder / kind, "ed25519" if kind == "other" else kind) for kind in AUTHORITY_KINDS}


ANY_HOST = "@cert-authority * CA"
HOST_CERTIFICATES = {  # how the certificate is made, known_hosts, the configuration, and whether the host is trusted
    "by its address": ("ed25519 -h -n 127.0.0.1", ANY_HOST, "", True),
    "by its alias": ("ed25519 -h -n far.example", ANY_HOST, "HostKeyAlias far.example", True),
    "for another name": ("ed25519 -h -n far.example", ANY_HOST, "", False),
    "by an authority on one port": ("ed25519 -h -n 127.0.0.1", "@cert-authority [127.0.0.1]:PORT CA", "", True),
    "by an authority without its port": ("ed25519 -h -n 127.0.0.1", "@cert-authority 127.0.0.1 CA", "", True),
    "by an authority for other hosts": ("ed25519 -h -n 127.0.0.1", "@cert-authority *.example,!127.* CA", "", False),
    "by an unknown authority": ("other -h -n 127.0.0.1", ANY_HOST, "", False),
    "by a key that is none": ("ed25519 -h -n 127.0.0.1", "* CA", "", False),
    "by an ECDSA key": ("ecdsa -h -n 127.0.0.1", ANY_HOST, "", True),
    "by an RSA key": ("rsa -h -n 127.0.0.1", ANY_HOST, "", True),
    "by an RSA key with SHA-1": ("rsa -h -n 127.0.0.1 -t ssh-rsa", ANY_HOST, "", False),
    "expired": ("ed25519 -h -n 127.0.0.1 -V 20200101:20210101", ANY_HOST, "", False),
    "expired, of a known key": ("ed25519 -h -n 127.0.0.1 -V 20200101:20210101", f"{ANY_HOST}\nNAME KEY", "", True),
    "expired, of a new key": ("ed25519 -h -V 20200101:20210101", ANY_HOST, "StrictHostKeyChecking accept-new", True),
    "not valid yet": ("ed25519 -h -n 127.0.0.1 -V 0x7ffffffffffffff:forever", ANY_HOST, "", False),
    "with an option that must be understood": ("ed25519 -h -n 127.0.0.1 -O critical:x=y", ANY_HOST, "", False),
    "by an algorithm that is not allowed": (
        "ed25519 -h -n 127.0.0.1",
        ANY_HOST,
        "CASignatureAlgorithms ecdsa-sha2-nistp256,rsa-sha2-512",
        False,
    ),
    "by an RSA key with an allowed algorithm": (
        "rsa -h -n 127.0.0.1 -t rsa-sha2-256",
        ANY_HOST,
        "CASignatureAlgorithms rsa-sha2-256",
        True,
    ),
    "by an RSA key with another algorithm": (
        "rsa -h -n 127.0.0.1 -t rsa-sha2-256",
        ANY_HOST,
        "CASignatureAlgorithms rsa-sha2-512",
        False,
    ),
    "where only certificates are allowed": (
        "ed25519 -h -n 127.0.0.1",
        ANY_HOST,
        "HostKeyAlgorithms ssh-ed25519-cert-v01@openssh.com",
        True,
    ),
    "by a revoked authority": ("ed25519 -h -n 127.0.0.1", f"{ANY_HOST}\n@revoked * CA", "", False),
    "of a revoked key": ("ed25519 -h -n 127.0.0.1", f"{ANY_HOST}\n@revoked * KEY", "", False),
    "of a key in a file of revoked ones": ("ed25519 -h -n 127.0.0.1", ANY_HOST, "RevokedHostKeys FILE", False),
    "beside another known key": ("ed25519 -h -n 127.0.0.1", f"NAME OTHER\n{ANY_HOST}", "", True),
    "unknown beside another known key": ("other -h -n 127.0.0.1", f"NAME OTHER\n{ANY_HOST}", "", False),
    "of no use, the key is known without its port": ("other -h", "127.0.0.1 KEY", "", True),
}


@needs_sshd
@pytest.mark.parametrize("case", [
    pytest.param(case, id=name, marks=() if number % 3 == 0 else pytest.mark.nightly)
    for number, (name, case) in enumerate(HOST_CERTIFICATES.items())
])  # fmt: skip
def test_a_host_is_trusted_for_its_certificate_where_ssh_trusts_it(
    home: Home, tmp_path: Path, authorities: dict[str, Path], case: tuple[str, str, str, bool]
) -> None:
    made, known, extra, is_trusted = case
    signer, *options = made.split()
    authority = "ed25519" if signer == "other" else signer
    certify_host = functools.partial(certify, authorities[signer])
    with serving(tmp_path / "server", certify_host=lambda key: certify_host(key, *options)) as server:
        server.authorize(home.key)
        key = read_public(server.host_keys["ed25519"])
        (tmp_path / "revoked").write_text(f"# revoked\n{key} a comment\n", encoding="utf-8")
        words = {"CA": read_public(authorities[authority]), "KEY": key, "OTHER": read_public(authorities["other"])}
        words |= {"PORT": str(server.port), "NAME": f"[127.0.0.1]:{server.port}", "FILE": str(tmp_path / "revoked")}
        known, extra = (
            re.sub(r"\b[A-Z]+\b", lambda found: words.get(found[0], found[0]), text) for text in (known, extra)
        )
        assert log_in(home, server, known=known, extra=extra) is is_trusted


USER_CERTIFICATES = {  # how the certificate is made, whether the key is authorized, and whether the user gets in
    "of the user": (f"ed25519 -n {USER}", False, True),
    "of another user": ("ed25519 -n another", False, False),
    "by an unknown authority": (f"other -n {USER}", False, False),
    "expired": (f"ed25519 -n {USER} -V 20200101:20210101", False, False),
    "expired, of an authorized key": (f"ed25519 -n {USER} -V 20200101:20210101", True, True),
    "unreadable, of an authorized key": ("", True, True),
}


@pytest.fixture(scope="module")
def trusting(tmp_path_factory: pytest.TempPathFactory, authorities: dict[str, Path]) -> Iterator[SshServer]:
    """A server that trusts an authority with its users."""
    public = authorities["ed25519"].with_name("ed25519.pub")
    with serving(tmp_path_factory.mktemp("trusting"), options=(f"TrustedUserCAKeys {public}",)) as server:
        yield server


@needs_sshd
@pytest.mark.parametrize("kind", ["ed25519", pytest.param("rsa", marks=pytest.mark.nightly)])
@pytest.mark.parametrize(("made", "is_authorized", "gets_in"), USER_CERTIFICATES.values(), ids=USER_CERTIFICATES)
def test_a_certificate_beside_a_key_is_used_as_ssh_uses_it(
    home: Home,
    trusting: SshServer,
    authorities: dict[str, Path],
    kind: str,
    made: str,
    *,
    is_authorized: bool,
    gets_in: bool,
) -> None:
    key = make_key(home.path / "mine", kind)
    if made:
        signer, *options = made.split()
        certify(authorities[signer], key, *options)
    else:
        key.with_name("mine-cert.pub").write_text("nonsense\n", encoding="utf-8")
    trusting.authorize(*([key] if is_authorized else []))
    assert log_in(home, trusting, known=trusting.known_line(), key=key, extra="IdentitiesOnly yes") is gets_in


@needs_sshd
@pytest.mark.usefixtures("ssh_agent")
@pytest.mark.parametrize("kind", ["ed25519", pytest.param("rsa", marks=pytest.mark.nightly)])
@pytest.mark.parametrize("place", ["a file", "the agent", "a file, with its key in the agent"])
def test_a_certificate_is_found_where_ssh_finds_it(
    home: Home, trusting: SshServer, authorities: dict[str, Path], kind: str, place: str
) -> None:
    trusting.authorize()
    key = make_key(home.path / "mine", kind)
    certificate = certify(authorities["ed25519"], key, "-n", USER)
    extra = ""
    if place != "the agent":
        extra = f"CertificateFile {certificate.rename(home.path / 'elsewhere')}"
    if place != "a file":
        hold(key)
        key.with_name("mine-cert.pub").unlink(missing_ok=True)
    assert log_in(home, trusting, known=trusting.known_line(), key=key, extra=extra)


def read(file: Path) -> tuple[str, bytes]:
    """Kind and key of a public file."""
    kind, text = file.read_text(encoding="utf-8").split()[:2]
    return kind, base64.b64decode(text)


@pytest.mark.parametrize("kind", ["ed25519", "ecdsa", "rsa"])
def test_a_certificate_that_was_changed_does_not_hold(authorities: dict[str, Path], tmp_path: Path, kind: str) -> None:
    key = make_key(tmp_path / "key")
    name, blob = read(certify(authorities[kind], key, "-h", "-n", "far.example"))
    certificate = HostCertificate(name, blob)
    certificate.check("far.example", time.time())
    assert certificate.authority == read(authorities[kind].with_name(f"{kind}.pub"))[1]
    assert read_subject(name, blob) == read(key.with_name("key.pub"))[1]
    for changed in (blob.replace(b"far.ex", b"our.ex"), blob[:-1] + bytes([blob[-1] ^ 1])):
        with pytest.raises(BadCertificateError, match="its signature is wrong"):
            HostCertificate(name, changed).check("far.example", time.time())
    for cut in (blob[:-1], blob + b"x", b"", name.encode()):
        with pytest.raises(BadCertificateError, match="cannot be read"):
            HostCertificate(name, cut)


def test_certificates_are_requested_where_an_authority_is_known(home: Home) -> None:
    target = home.target(host="far")
    certificate = "ssh-ed25519-cert-v01@openssh.com"
    home.known_hosts.write_text(f"far {read_public(home.key)}\n", encoding="utf-8")
    assert HostKey(target).order_kinds(("rsa-sha2-512", "ssh-ed25519", certificate)) == ("ssh-ed25519", "rsa-sha2-512")
    assert HostKey(target).order_kinds((certificate,)) == (certificate,)  # the configuration allows no plain key
    home.known_hosts.write_text(f"@cert-authority * {read_public(home.key)}\n", encoding="utf-8")
    assert HostKey(target).order_kinds(("ssh-ed25519", certificate)) == (certificate, "ssh-ed25519")


@pytest.mark.parametrize("content", [None, b"SSHKRL\n\0..."])
def test_revoked_keys_that_cannot_be_read_are_reported(home: Home, tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "revoked"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(SshError, match=f"its RevokedHostKeys {file} cannot be read"):
        HostKey(replace(home.target(host="far"), revoked_keys=file))
