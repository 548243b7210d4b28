"""Verifies the key of a host with the known_hosts files.

paramiko.HostKeys is not used: it supports neither wildcards nor markers, and does not report the line of a key.
"""

import base64
import binascii
import fcntl
import hashlib
import hmac
import os
import secrets
import stat
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path

import paramiko

from hvdrun.transport.ssh.certificates import SUFFIX, BadCertificateError, HostCertificate
from hvdrun.transport.ssh.policy import RSA
from hvdrun.transport.ssh.ssh_errors import HostKeyChangedError, HostKeyRevokedError, HostKeyUnknownError, SshError
from hvdrun.transport.ssh.target import Target

_LOCK_SECONDS, _LOCK_PAUSE_SECONDS = 10.0, 0.02
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
        return _fits_any(name, self.names.lower().split(","))


@dataclass(frozen=True, slots=True)
class KnownHost:
    """The lines for one host.

    keys: the keys of the host. authorities: keys that may certify it. revoked: keys that are refused, also of an
    authority.
    """

    name: str
    keys: tuple[KnownKey, ...]
    authorities: tuple[KnownKey, ...]
    revoked: tuple[KnownKey, ...]


def find_known(files: Iterable[Path], name: str) -> KnownHost:
    """The lines of these files for a host; a missing file has none."""
    lines = [key for file in files for key in _read(file) if key.is_for(name)]

    def choose(marker: Marker | None) -> tuple[KnownKey, ...]:
        return tuple(key for key in lines if key.marker is marker)

    return KnownHost(name, choose(None), choose(Marker.AUTHORITY), choose(Marker.REVOKED))


def list_names(files: Iterable[Path]) -> set[str]:
    """The host names in these files that are not hashed and have no wildcards."""
    names = {name for file in files for key in _read(file) for name in key.names.split(",")}
    return {name for name in names if not set(name) & set("|*?![")}


def add_known(file: Path, name: str, kind: str, blob: bytes, *, hashed: bool = False) -> None:
    """Add a host's key to a file, unless the file has it; other processes may do the same.

    Without an effect on what keeps nothing, such as /dev/null, whose lock any user may hold.

    Raises:
        OSError: the file cannot be written.
    """
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(file, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK, 0o600)
    with os.fdopen(descriptor, "r+b", buffering=0) as stream:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return
        _lock(descriptor)  # until the stream is closed
        before = stream.read()
        if any(key.blob == blob and key.is_for(name) for key in _parse(file, before.decode(errors="replace"))):
            return
        shown = name
        if hashed:
            shown = _hash(name, secrets.token_bytes(hashlib.sha1(usedforsecurity=False).digest_size))
        newline = b"" if before.endswith(b"\n") or not before else b"\n"
        stream.write(newline + f"{shown} {kind} {base64.b64encode(blob).decode()}\n".encode())


def _lock(descriptor: int) -> None:
    """Lock a file, unless another process does not release it in time: then two lines may be the same."""
    limit = time.monotonic() + _LOCK_SECONDS
    while time.monotonic() < limit:
        with suppress(BlockingIOError):  # another process has the lock: try again
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        time.sleep(_LOCK_PAUSE_SECONDS)


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


def _fits_any(name: str, patterns: Iterable[str]) -> bool:
    """A pattern fits, and no fitting one begins with !. Brackets, as around an address with a port, are not special."""
    fitting = [pattern for pattern in patterns if fnmatchcase(name, pattern.removeprefix("!").replace("[", "[[]"))]
    return bool(fitting) and not any(pattern.startswith("!") for pattern in fitting)


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


class HostKey:
    """Verifies the key of one host, known under the host's name with its port or without.

    Args:
        target: the host and its known_hosts files.
    """

    def __init__(self, target: Target) -> None:
        """Read the known_hosts files and the file of revoked keys.

        Raises:
            SshError: a file of revoked keys cannot be read.
        """
        self._target = target
        self._known = [find_known(target.known_hosts, name) for name in target.known_names]
        self._revoked = [entry for known in self._known for entry in known.revoked]
        if target.revoked_keys is not None:
            self._revoked += _read_revoked(target, target.revoked_keys)

    def order_kinds(self, kinds: Iterable[str]) -> tuple[str, ...]:
        """These kinds in order: certificates if an authority is known, then the kinds of known keys, then the others.

        A server has several keys, and only a known one proves its identity.
        """
        kinds = tuple(kinds)
        noted = [key.kind for known in self._known for key in known.keys]
        first = [kind for key in noted for kind in (RSA if key == "ssh-rsa" else (key,)) if kind in kinds]
        plain = tuple(dict.fromkeys((*first, *(kind for kind in kinds if not kind.endswith(SUFFIX)))))
        certified = any(known.authorities for known in self._known) or not plain
        if certified:
            return (*(kind for kind in kinds if kind.endswith(SUFFIX)), *plain)
        return plain

    def verify(self, key: paramiko.PKey) -> None:
        """Accept the host's key, or refuse it.

        Raises:
            SshError: the key is refused, or a new key cannot be added to the known_hosts file.
        """
        target, kind, blob = self._target, key.get_name(), key.asbytes()
        target.policy.check_host_key(key)
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
        """Accept a certificate by an authority that is known for the host.

        Raises:
            BadCertificateError: it is refused.
        """
        if all(entry.blob != certificate.authority for entry in known.authorities):
            shown = fingerprint(certificate.authority)
            raise BadCertificateError(f"no @cert-authority line for this host has the key that signed it, {shown}")
        may_sign = partial(self._target.policy.allows, "CASignatureAlgorithms")
        certificate.check(self._target.principal, time.time(), may_sign)

    def _refuse_revoked(self, kind: str, blob: bytes, certificate: HostCertificate | None) -> None:
        if certificate is not None:
            blobs = {blob, certificate.authority}
        else:
            blobs = {blob}
        for entry in self._revoked:
            if entry.blob in blobs:
                raise HostKeyRevokedError(self._target.host, kind, fingerprint(entry.blob), entry.file, entry.line)


def _read_certificate(key: paramiko.PKey) -> tuple[HostCertificate | None, str | None]:
    """The certificate of the key, or why it cannot be read; neither if the key has none."""
    if key.public_blob is None:
        return None, None
    try:
        return HostCertificate(key.public_blob.key_type, key.public_blob.key_blob), None
    except BadCertificateError as error:
        return None, str(error)


def _read_revoked(target: Target, file: Path) -> Iterator[KnownKey]:
    """The keys of a file of revoked keys, one a line.

    Raises:
        SshError: it cannot be read.
    """
    try:
        data = file.read_bytes()
    except OSError as error:
        reason = error.strerror or str(error)
    else:
        reason = "it is a key revocation list in binary form" if data.startswith(_REVOCATION_LIST) else ""
    if reason:
        raise SshError(
            target.host,
            f"the key of the host {target.host!r} cannot be verified, since its RevokedHostKeys {file} cannot be read "
            f"({reason}): name a file with one public key a line.",
        )
    for number, line in enumerate(data.decode(errors="replace").split("\n"), start=1):
        yield from _parse(file, f"{Marker.REVOKED} * {line.split('#')[0]}", number)


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
