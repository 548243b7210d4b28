"""The ssh handshake over a connected socket: agree on keys, verify the host's key, log in.

All functions block, and are for a thread. Closing the socket in another thread ends them.
"""

import logging
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import paramiko
from paramiko.packet import Packetizer
from paramiko.ssh_exception import IncompatiblePeer

from hvdrun.transport.ssh.failures import (
    HostKeyChangedError,
    HostKeyRevokedError,
    HostKeyUnknownError,
    NotSshError,
    SshError,
    TimedOutError,
)
from hvdrun.transport.ssh.host_keys import (
    SUFFIX,
    BadCertificateError,
    HostCertificate,
    KnownHost,
    KnownKey,
    add_known,
    find_known,
    fingerprint,
    read_revoked,
)
from hvdrun.transport.ssh.login import Login
from hvdrun.transport.ssh.target import Target

_KEEPALIVE_SECONDS = 10  # with the limit for acknowledgements in dial.py, a dead peer is noticed within half a minute
_ALMOST = 0.9  # of a limit: paramiko checks its clock now and then, and does not report that a limit was the reason


class DroppedError(Exception):
    """The server ended the connection before the login, as sshd does beyond its MaxStartups; try again."""


class _Packetizer(Packetizer):
    """paramiko's, without a thread that limits the handshake: `_negotiate` limits it."""

    def start_handshake(self, timeout: float) -> None:
        """See paramiko."""


class Client(paramiko.Transport):
    """paramiko's connection, with another order of host keys: paramiko asks for certificates after all plain keys.

    host_key_kinds: the kinds of host keys to ask for, the best first.
    """

    def __init__(self, connected: Any) -> None:  # noqa: ANN401 - a socket, or a channel of paramiko
        super().__init__(connected, packetizer_class=_Packetizer)
        self.host_key_kinds: tuple[str, ...] = tuple(self.get_security_options().key_types)

    @property
    def preferred_keys(self) -> tuple[str, ...]:
        """See paramiko."""
        return self.host_key_kinds


def shake_hands(connected: Any, target: Target, deadline: float, limit_seconds: float) -> paramiko.Transport:  # noqa: ANN401 - a socket, or a channel of paramiko
    """Verify the host, and log in.

    deadline: on the monotonic clock. limit_seconds: the whole limit, for a message.

    Raises:
        DroppedError: the server ended the connection before the login.
        SshError: one of the classes in `failures`.
    """
    silence_paramiko()
    try:
        client = Client(connected)
    except (paramiko.SSHException, OSError, EOFError) as error:
        raise DroppedError(str(error)) from error
    try:
        host_key = HostKey(target)
        client.host_key_kinds = host_key.order_kinds(client.host_key_kinds)
        _negotiate(client, target, deadline, limit_seconds)
        host_key.verify(client.get_remote_server_key())
        client.auth_timeout = max(deadline - time.monotonic(), 1.0)
        Login(client, target).run()
    except BaseException:
        client.close()
        raise
    client.set_keepalive(_KEEPALIVE_SECONDS)
    return client


def silence_paramiko() -> None:
    """Keep paramiko's log, which has tracebacks, from standard error: hvdrun raises what matters."""
    logger = logging.getLogger("paramiko")
    if not logger.handlers:
        logger.addHandler(logging.NullHandler())


def _negotiate(client: paramiko.Transport, target: Target, deadline: float, limit_seconds: float) -> None:
    started = time.monotonic()
    remaining = max(deadline - started, 0.1)
    client.banner_timeout = remaining
    failure: Exception | None = None
    try:
        client.start_client(timeout=remaining)
    except (paramiko.SSHException, OSError, EOFError) as error:
        failure = error
    if failure is None and client.is_active() and client.initial_kex_done:
        return
    if time.monotonic() - started >= remaining * _ALMOST:
        stage = "it accepted the connection, but is silent" if not client.remote_version else "agreeing on keys"
        raise TimedOutError(*target.where, limit_seconds, stage) from failure
    if isinstance(failure, IncompatiblePeer) or "ndecipherable" in str(failure):
        raise NotSshError(*target.where, str(failure).rstrip(".")) from failure
    raise DroppedError(_describe_drop(client)) from failure


def _describe_drop(client: paramiko.Transport) -> str:
    return (
        "it closed the connection immediately"
        if not client.remote_version
        else "it closed the connection during the handshake"
    )


_RSA = ("rsa-sha2-512", "rsa-sha2-256")  # how a key of kind ssh-rsa may sign


class HostKey:
    """Verifies the key of one host, known under the host's name with its port or without."""

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
        """The kinds to ask for: certificates if an authority is known, then the kinds of known keys, then the others.

        A server has several keys, and only a known one proves its identity.
        """
        kinds = tuple(kinds)
        noted = [key.kind for known in self._known for key in known.keys]
        first = [kind for key in noted for kind in (_RSA if key == "ssh-rsa" else (key,)) if kind in kinds]
        plain = tuple(dict.fromkeys((*first, *kinds)))
        certified = any(known.authorities for known in self._known)
        return (*(f"{kind}{SUFFIX}" for kind in kinds), *plain) if certified else plain

    def verify(self, key: paramiko.PKey) -> None:
        """Accept the host's key, or refuse it.

        Raises:
            SshError: the key is refused, or a new key cannot be added to the known_hosts file.
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
        """Accept a certificate by an authority that is known for the host.

        Raises:
            BadCertificateError: it is refused.
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
    """The certificate of the key, or why it cannot be read; neither if the key has none."""
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
