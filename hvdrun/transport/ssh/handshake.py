"""From a connected socket to a session that is logged in, on a host that has proved who it is.

Everything here blocks, and is meant for a thread of its own; closing the socket from elsewhere ends it.
"""

import logging
import time
from typing import Any

import paramiko
from paramiko.ssh_exception import IncompatiblePeer

from hvdrun.transport.ssh.failures import NotSshError, SshError, TimedOutError
from hvdrun.transport.ssh.known_hosts import KnownHost, add_known, find_known, fingerprint
from hvdrun.transport.ssh.login import Login
from hvdrun.transport.ssh.login_failures import HostKeyChangedError, HostKeyRevokedError, HostKeyUnknownError
from hvdrun.transport.ssh.target import Target

_KEEPALIVE_SECONDS = 10  # with dial's limit for what is not acknowledged, a dead peer is noticed within half a minute
_ALMOST = 0.9  # of a limit: paramiko looks at its clock now and then, and does not say that a limit was the reason
_RSA = ("rsa-sha2-512", "rsa-sha2-256")  # how a key of kind ssh-rsa may sign


class DroppedError(Exception):
    """The server ended the connection before the login, as sshd does beyond its MaxStartups: worth another try."""


def shake_hands(connected: Any, target: Target, deadline: float, limit_seconds: float) -> paramiko.Transport:  # noqa: ANN401 - a socket, or paramiko's likeness of one
    """Verify the host, and log in.

    deadline: on the monotonic clock. limit_seconds: the limit that it comes from, for a sentence about it.

    Raises:
        DroppedError: the server ended the connection before the login.
        SshError: it cannot be; one of the classes in `failures`.
    """
    silence_paramiko()
    try:
        client = paramiko.Transport(connected)
    except (paramiko.SSHException, OSError, EOFError) as error:
        raise DroppedError(str(error)) from error
    try:
        known = find_known(target.known_hosts, target.known_as)
        _prefer_known_kinds(client, known)
        _negotiate(client, target, deadline, limit_seconds)
        _verify(client, target, known)
        client.auth_timeout = max(deadline - time.monotonic(), 1.0)
        Login(client, target).run()
    except BaseException:
        client.close()
        raise
    client.set_keepalive(_KEEPALIVE_SECONDS)
    return client


def silence_paramiko() -> None:
    """Keep paramiko's own words, tracebacks among them, from standard error: whatever matters is raised."""
    logger = logging.getLogger("paramiko")
    if not logger.handlers:
        logger.addHandler(logging.NullHandler())


def _prefer_known_kinds(client: paramiko.Transport, known: KnownHost) -> None:
    """Ask for a key of a known kind first: a server has several, and one that nobody noted proves nothing."""
    options = client.get_security_options()
    kinds = [kind for key in known.keys for kind in (_RSA if key.kind == "ssh-rsa" else (key.kind,))]
    first = [kind for kind in dict.fromkeys(kinds) if kind in options.key_types]
    options.key_types = (*first, *(kind for kind in options.key_types if kind not in first))


def _negotiate(client: paramiko.Transport, target: Target, deadline: float, limit_seconds: float) -> None:
    started = time.monotonic()
    remaining = max(deadline - started, 0.1)
    client.banner_timeout = remaining
    client.handshake_timeout = remaining
    failure: Exception | None = None
    try:
        client.start_client(timeout=remaining)
    except (paramiko.SSHException, OSError, EOFError) as error:
        failure = error
    if failure is None and client.is_active() and client.initial_kex_done:
        return
    if time.monotonic() - started >= remaining * _ALMOST:
        stage = "it was connected to, but is silent" if not client.remote_version else "agreeing on keys"
        raise TimedOutError(target.host, target.address, target.port, limit_seconds, stage) from failure
    if isinstance(failure, IncompatiblePeer) or "ndecipherable" in str(failure):
        raise NotSshError(target.host, target.address, target.port, str(failure).rstrip(".")) from failure
    raise DroppedError(_describe_drop(client)) from failure


def _describe_drop(client: paramiko.Transport) -> str:
    return "it closed the connection at once" if not client.remote_version else "it closed the connection midway"


def _verify(client: paramiko.Transport, target: Target, known: KnownHost) -> None:
    """Make sure that this is the host that it was before."""
    key = client.get_remote_server_key()
    kind, blob = key.get_name(), key.asbytes()
    shown = fingerprint(blob)
    for entry in known.revoked:
        if entry.blob == blob:
            raise HostKeyRevokedError(target.host, kind, shown, entry.file, entry.line)
    if any(entry.blob == blob for entry in known.keys):
        return
    if known.keys:
        same_kind = [entry for entry in known.keys if entry.kind == kind] or known.keys
        entry = same_kind[0]
        raise HostKeyChangedError(target.host, target.known_as, kind, shown, file=entry.file, line=entry.line)
    if not target.accept_new:
        raise HostKeyUnknownError(target.host, target.known_as, kind, shown)
    if target.known_hosts:
        _remember(target, kind, blob)


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
