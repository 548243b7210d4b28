"""A host's certificate: what a certificate authority has signed of it, and whether that holds."""

import base64
from datetime import UTC, datetime

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.hazmat.primitives.serialization.ssh import (
    SSHCertificate,
    SSHCertificateType,
    load_ssh_public_identity,
)

from hvdrun.transport.ssh.patterns import fits

SUFFIX = "-cert-v01@openssh.com"
_SHA1 = b"\0\0\0\x07ssh-rsa"  # how a signature begins that an RSA key has made with SHA-1
_LENGTH_BYTES = 4


class BadCertificateError(Exception):
    """A certificate does not hold; half a sentence."""


class HostCertificate:
    """A certificate that a host shows.

    authority: the key that has signed it, as it is on the wire.
    """

    def __init__(self, kind: str, blob: bytes) -> None:
        """Read it.

        Raises:
            BadCertificateError: it is none that can be read.
        """
        self._blob = blob
        try:
            read = load_ssh_public_identity(f"{kind} {base64.b64encode(blob).decode()}".encode())
            if not isinstance(read, SSHCertificate):
                raise BadCertificateError("it is a plain key")
            self._signer = read.signature_key()
        except (ValueError, UnsupportedAlgorithm) as error:
            raise BadCertificateError(f"it cannot be read ({error})") from error
        self._read = read
        text = self._signer.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
        self.authority = base64.b64decode(text.split()[1])

    def check(self, name: str, now: float) -> None:
        """Make sure that it lets its key speak for the host of this name.

        Raises:
            BadCertificateError: it does not.
        """
        if self._is_signed_with_sha1():
            raise BadCertificateError("it is signed with SHA-1")
        try:
            self._read.verify_cert_signature()
        except InvalidSignature as error:
            raise BadCertificateError("its signature is wrong") from error
        if self._read.type is not SSHCertificateType.HOST:
            raise BadCertificateError("it is a user's")
        if now < self._read.valid_after:
            raise BadCertificateError(f"it is not valid before {_show_time(self._read.valid_after)}")
        if now >= self._read.valid_before:
            raise BadCertificateError(f"it has expired at {_show_time(self._read.valid_before)}")
        if self._read.critical_options:
            raise BadCertificateError("it has critical options, which nobody knows of hosts")
        principals = [principal.decode(errors="replace") for principal in self._read.valid_principals]
        if principals and not any(fits(name, principal) for principal in principals):
            raise BadCertificateError(f"it is for {', '.join(principals)}, not for {name}")

    def _is_signed_with_sha1(self) -> bool:
        """The signature, as long as the key and behind its length, ends the certificate; before it stands its kind."""
        if not isinstance(self._signer, RSAPublicKey):
            return False
        size = _LENGTH_BYTES + (self._signer.key_size + 7) // 8
        return self._blob[:-size].endswith(_SHA1)


def _show_time(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
