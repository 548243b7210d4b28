"""Whether a host is the one that it is taken for: the key that it shows, or the certificate of it."""

import time
from collections.abc import Iterable
from pathlib import Path

import paramiko

from hvdrun.transport.ssh.certificate import SUFFIX, BadCertificateError, HostCertificate
from hvdrun.transport.ssh.failures import SshError
from hvdrun.transport.ssh.known_hosts import KnownHost, KnownKey, add_known, find_known, fingerprint, read_revoked
from hvdrun.transport.ssh.login_failures import HostKeyChangedError, HostKeyRevokedError, HostKeyUnknownError
from hvdrun.transport.ssh.target import Target

_RSA = ("rsa-sha2-512", "rsa-sha2-256")  # how a key of kind ssh-rsa may sign


class HostKey:
    """What is known of one host's key, under the host's name with its port and without."""

    def __init__(self, target: Target) -> None:
        """Read what the files know.

        Raises:
            SshError: a file of revoked keys cannot be read.
        """
        self._target = target
        self._known = [find_known(target.known_hosts, name) for name in target.known_names]
        self._revoked = [entry for known in self._known for entry in known.revoked]
        if target.revoked_keys is not None:
            self._revoked += _read_revoked(target, target.revoked_keys)

    def order_kinds(self, kinds: Iterable[str]) -> tuple[str, ...]:
        """Which kinds to ask for: certificates where an authority is known, then keys of which one is known.

        A server has several, and one that nobody noted proves nothing.
        """
        kinds = tuple(kinds)
        noted = [key.kind for known in self._known for key in known.keys]
        first = [kind for key in noted for kind in (_RSA if key == "ssh-rsa" else (key,)) if kind in kinds]
        plain = tuple(dict.fromkeys((*first, *kinds)))
        certified = any(known.authorities for known in self._known)
        return (*(f"{kind}{SUFFIX}" for kind in kinds), *plain) if certified else plain

    def verify(self, key: paramiko.PKey) -> None:
        """Make sure that the host may show this key.

        Raises:
            SshError: it may not, or a new one cannot be noted.
        """
        target, kind, blob = self._target, key.get_name(), key.asbytes()
        shown = fingerprint(blob)
        certificate, refusal = _read_certificate(key)
        self._refuse_revoked(kind, blob, certificate)
        for known in self._known:
            if certificate is not None:
                try:
                    self._check(known, certificate)
                except BadCertificateError as error:
                    refusal = refusal or str(error)
                else:
                    return
            if any(entry.blob == blob for entry in known.keys):
                return
            if known.keys and known.name == target.known_as:
                same_kind = [entry for entry in known.keys if entry.kind == kind] or known.keys
                file, line = same_kind[0].file, same_kind[0].line
                raise HostKeyChangedError(target.host, target.known_as, kind, shown, file=file, line=line)
        if not target.accept_new:
            raise HostKeyUnknownError(target.host, target.known_as, kind, shown, refusal)
        if target.known_hosts:
            _remember(target, kind, blob)

    def _check(self, known: KnownHost, certificate: HostCertificate) -> None:
        """An authority that is known for the host has certified it.

        Raises:
            BadCertificateError: none has.
        """
        if all(entry.blob != certificate.authority for entry in known.authorities):
            shown = fingerprint(certificate.authority)
            raise BadCertificateError(f"no @cert-authority line for this host has the key that signed it, {shown}")
        certificate.check(self._target.principal, time.time())

    def _refuse_revoked(self, kind: str, blob: bytes, certificate: HostCertificate | None) -> None:
        blobs = {blob, certificate.authority} if certificate is not None else {blob}
        for entry in self._revoked:
            if entry.blob in blobs:
                raise HostKeyRevokedError(self._target.host, kind, fingerprint(entry.blob), entry.file, entry.line)


def _read_certificate(key: paramiko.PKey) -> tuple[HostCertificate | None, str | None]:
    """The certificate that came with the key, or why it cannot be read."""
    if key.public_blob is None:
        return None, None
    try:
        return HostCertificate(key.public_blob.key_type, key.public_blob.key_blob), None
    except BadCertificateError as error:
        return None, str(error)


def _read_revoked(target: Target, file: Path) -> tuple[KnownKey, ...]:
    try:
        return read_revoked(file)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise SshError(
            target.host,
            f"the key of the host {target.host!r} cannot be verified, since its RevokedHostKeys {file} cannot be read "
            f"({reason}): name a file with one public key a line.",
        ) from error


def _remember(target: Target, kind: str, blob: bytes) -> None:
    file = target.known_hosts[0]
    try:
        add_known(file, target.known_as, kind, blob, hashed=target.hash_known_hosts)
    except OSError as error:
        raise SshError(
            target.host,
            f"the key of the host {target.host!r} cannot be added to {file}: {error.strerror or error}; log in once "
            "with ssh, or let UserKnownHostsFile name a file that can be written.",
        ) from error
