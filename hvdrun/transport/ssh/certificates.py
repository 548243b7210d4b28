"""Certificates of hosts and users. paramiko checks none of a host."""

import base64
from collections.abc import Callable
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
_SHA1 = "ssh-rsa"  # the name of a signature that an RSA key has made with SHA-1
_RSA_SIGNATURES = (_SHA1, "rsa-sha2-256", "rsa-sha2-512")
_LENGTH_BYTES = 4


class BadCertificateError(Exception):
    """A certificate is not accepted; half a sentence."""


class HostCertificate:
    """A certificate of a host.

    Args:
        kind: the type of the key.
        blob: the certificate, in the encoding of the protocol.

    authority: the key that has signed it, in the encoding of the protocol.
    """

    def __init__(self, kind: str, blob: bytes) -> None:
        """Read the certificate.

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

    def check(self, name: str, now: float, is_allowed: Callable[[str], bool] = lambda _: True) -> None:
        """Check that it certifies the host of this name.

        is_allowed: an authority may sign with this algorithm.

        Raises:
            BadCertificateError: the certificate is refused.
        """
        signature = self._name_signature()
        if signature == _SHA1:
            raise BadCertificateError("it is signed with SHA-1")
        if not is_allowed(signature):
            raise BadCertificateError(f"it is signed with {signature}, which CASignatureAlgorithms does not allow")
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

    def _name_signature(self) -> str:
        """The algorithm of the signature.

        The certificate ends with the name and length of the signature, and the signature.
        """
        if isinstance(self._signer, RSAPublicKey):
            end = self._blob[: -_LENGTH_BYTES - (self._signer.key_size + 7) // 8]
            return next((name for name in _RSA_SIGNATURES if end.endswith(_encode_text(name))), "an unknown algorithm")
        size = int.from_bytes(self.authority[:_LENGTH_BYTES])  # other keys have one algorithm, called as their kind
        return self.authority[_LENGTH_BYTES : _LENGTH_BYTES + size].decode()


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


def _encode_text(text: str) -> bytes:
    return len(text).to_bytes(_LENGTH_BYTES) + text.encode()


def _encode(key: SSHCertPublicKeyTypes) -> bytes:
    return base64.b64decode(key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).split()[1])


def _show_time(seconds: int) -> str:
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (OverflowError, OSError, ValueError):  # beyond the range of datetime
        return f"{seconds} s after 1970"
