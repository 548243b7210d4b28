"""Host keys: known_hosts files and host certificates.

paramiko.HostKeys is not used: it supports neither wildcards nor markers, and does not report the line of a key.
paramiko checks no host certificates.
"""

import base64
import binascii
import fcntl
import hashlib
import hmac
import os
import secrets
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, SSHCertPublicKeyTypes
from cryptography.hazmat.primitives.serialization.ssh import (
    SSHCertificate,
    SSHCertificateType,
    load_ssh_public_identity,
)

from hvdrun.transport.ssh.config import DEFAULT_PORT
from hvdrun.transport.ssh.config_file import fits_any

SUFFIX = "-cert-v01@openssh.com"
_SHA1 = b"\0\0\0\x07ssh-rsa"  # how a signature begins that an RSA key has made with SHA-1
_LENGTH_BYTES = 4


class BadCertificateError(Exception):
    """A certificate is not accepted; half a sentence."""


class HostCertificate:
    """A certificate of a host.

    authority: the key that has signed it, in the encoding of the protocol.
    """

    def __init__(self, kind: str, blob: bytes) -> None:
        """Read it.

        Raises:
            BadCertificateError: it cannot be read.
        """
        self._blob = blob
        self._certificate = _read_certificate(kind, blob)
        try:
            self._signer = self._certificate.signature_key()
        except (ValueError, UnsupportedAlgorithm) as error:
            raise BadCertificateError(f"the key that signed it cannot be read ({error})") from error
        self.authority = _encode(self._signer)

    def check(self, name: str, now: float) -> None:
        """Check that it certifies the host of this name.

        Raises:
            BadCertificateError: it does not.
        """
        if self._is_signed_with_sha1():
            raise BadCertificateError("it is signed with SHA-1")
        try:
            self._certificate.verify_cert_signature()
        except (InvalidSignature, ValueError) as error:
            raise BadCertificateError("its signature is wrong") from error
        if self._certificate.type is not SSHCertificateType.HOST:
            raise BadCertificateError("it is for a user, not for a host")
        if now < self._certificate.valid_after:
            raise BadCertificateError(f"it is not valid before {_show_time(self._certificate.valid_after)}")
        if now >= self._certificate.valid_before:
            raise BadCertificateError(f"it has expired at {_show_time(self._certificate.valid_before)}")
        if self._certificate.critical_options:
            raise BadCertificateError("it has critical options, and none is defined for hosts")
        principals = [principal.decode(errors="replace") for principal in self._certificate.valid_principals]
        if principals and name not in principals:
            raise BadCertificateError(f"it is for {', '.join(principals)}, not for {name}")

    def _is_signed_with_sha1(self) -> bool:
        """Look at the end of the certificate: the kind and length of the signature, and the signature."""
        if not isinstance(self._signer, RSAPublicKey):
            return False
        size = _LENGTH_BYTES + (self._signer.key_size + 7) // 8
        return self._blob[:-size].endswith(_SHA1)


def read_subject(kind: str, blob: bytes) -> bytes:
    """The key that a certificate is for, in the encoding of the protocol.

    Raises:
        BadCertificateError: it cannot be read.
    """
    return _encode(_read_certificate(kind, blob).public_key())


def _read_certificate(kind: str, blob: bytes) -> SSHCertificate:
    try:
        read = load_ssh_public_identity(f"{kind} {base64.b64encode(blob).decode()}".encode())
    except (ValueError, UnsupportedAlgorithm) as error:
        raise BadCertificateError(f"it cannot be read ({error})") from error
    if not isinstance(read, SSHCertificate):
        raise BadCertificateError("it is a plain key")
    return read


def _encode(key: SSHCertPublicKeyTypes) -> bytes:
    return base64.b64decode(key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).split()[1])


def _show_time(seconds: int) -> str:
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (OverflowError, OSError, ValueError):  # beyond the range of datetime
        return f"{seconds} s after 1970"


_FIELDS = 3  # names, kind of key, key
_HASHED_FIELDS = 4  # an empty one, 1, salt, hash
_REVOCATION_LIST = b"SSHKRL\n\0"


class Marker(StrEnum):
    """A line's marker; a line without one has a key of the host."""

    REVOKED = "@revoked"
    AUTHORITY = "@cert-authority"


@dataclass(frozen=True, slots=True)
class KnownKey:
    """One line of a known_hosts file."""

    file: Path
    line: int
    marker: Marker | None
    names: str
    kind: str
    blob: bytes

    def is_for(self, name: str) -> bool:
        """The line is for this host."""
        if self.names.startswith("|"):
            return _matches_hash(self.names, name)
        return fits_any(name, self.names.lower().split(","))


@dataclass(frozen=True, slots=True)
class KnownHost:
    """The lines for one host.

    keys: of the host. authorities: keys that may certify it. revoked: keys that are refused, also of an authority.
    """

    name: str
    keys: tuple[KnownKey, ...]
    authorities: tuple[KnownKey, ...]
    revoked: tuple[KnownKey, ...]


def name_host(address: str, port: int) -> str:
    """The name under which known_hosts files have a host."""
    return address.lower() if port == DEFAULT_PORT else f"[{address.lower()}]:{port}"


def find_known(files: Iterable[Path], name: str) -> KnownHost:
    """The lines of these files for a host; a missing file has none."""
    lines = [key for file in files for key in _read(file) if key.is_for(name)]

    def choose(marker: Marker | None) -> tuple[KnownKey, ...]:
        return tuple(key for key in lines if key.marker is marker)

    return KnownHost(name, choose(None), choose(Marker.AUTHORITY), choose(Marker.REVOKED))


def read_revoked(file: Path) -> tuple[KnownKey, ...]:
    """The keys of a file of revoked keys, one a line.

    Raises:
        OSError: the file cannot be read.
        ValueError: it has another format.
    """
    data = file.read_bytes()
    if data.startswith(_REVOCATION_LIST):
        raise ValueError("it is a key revocation list in binary form")
    lines = (line.split("#")[0].strip() for line in data.decode(errors="replace").split("\n"))
    keys = [_parse(file, f"{Marker.REVOKED} * {line}", number) for number, line in enumerate(lines, start=1) if line]
    return tuple(key for found in keys for key in found)


def list_names(files: Iterable[Path]) -> set[str]:
    """The host names in these files that are not hashed and have no wildcards."""
    names = {name for file in files for key in _read(file) for name in key.names.split(",")}
    return {name for name in names if not set(name) & set("|*?![")}


def add_known(file: Path, name: str, kind: str, blob: bytes, *, hashed: bool = False) -> None:
    """Add a host's key to a file, unless the file has it; other processes may do the same.

    Raises:
        OSError: the file cannot be written.
    """
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(file, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "r+b") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)  # until the stream is closed
        before = stream.read()
        if any(key.blob == blob and key.is_for(name) for key in _parse(file, before.decode(errors="replace"))):
            return
        shown = _hash(name, secrets.token_bytes(hashlib.sha1(usedforsecurity=False).digest_size)) if hashed else name
        newline = b"" if before.endswith(b"\n") or not before else b"\n"
        stream.write(newline + f"{shown} {kind} {base64.b64encode(blob).decode()}\n".encode())


def fingerprint(blob: bytes) -> str:
    """A key's fingerprint, as ssh shows it."""
    return "SHA256:" + base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=")


def _read(file: Path) -> Sequence[KnownKey]:
    try:
        text = file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ()
    return tuple(_parse(file, text))


def _parse(file: Path, text: str, first: int = 1) -> Iterator[KnownKey]:
    for number, line in enumerate(text.split("\n"), start=first):
        fields = line.split()
        if not fields or fields[0].startswith("#"):
            continue
        marker = None
        if fields[0].startswith("@"):
            try:
                marker = Marker(fields.pop(0))
            except ValueError:  # a marker that ssh ignores, too
                continue
        if len(fields) < _FIELDS:
            continue
        names, kind, key = fields[:_FIELDS]
        try:
            yield KnownKey(file, number, marker, names, kind, base64.b64decode(key, validate=True))
        except (binascii.Error, ValueError):  # no key, which ssh ignores, too
            continue


def _matches_hash(hashed: str, name: str) -> bool:
    fields = hashed.split("|")
    if len(fields) != _HASHED_FIELDS or fields[1] != "1":
        return False
    try:
        salt = base64.b64decode(fields[2], validate=True)
    except (binascii.Error, ValueError):
        return False
    return hmac.compare_digest(_hash(name, salt), hashed)


def _hash(name: str, salt: bytes) -> str:
    digest = hmac.digest(salt, name.encode(), "sha1")
    return f"|1|{base64.b64encode(salt).decode()}|{base64.b64encode(digest).decode()}"
