"""Certificates of hosts and users. paramiko checks none of a host."""

import base64
from datetime import UTC, datetime

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, SSHCertPublicKeyTypes
from cryptography.hazmat.primitives.serialization.ssh import (
    SSHCertificate,
    SSHCertificateType,
    load_ssh_public_identity,
)

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
