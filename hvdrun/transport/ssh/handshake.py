"""From a connected socket to a session that is logged in, on a host that has proved who it is.

Everything here blocks, and is meant for a thread of its own; closing the socket from elsewhere ends it.
"""

import logging
import time
from typing import Any

import paramiko
from paramiko.ssh_exception import IncompatiblePeer

from hvdrun.transport.ssh.failures import NotSshError, TimedOutError
from hvdrun.transport.ssh.host_key import HostKey
from hvdrun.transport.ssh.login import Login
from hvdrun.transport.ssh.target import Target

_KEEPALIVE_SECONDS = 10  # with dial's limit for what is not acknowledged, a dead peer is noticed within half a minute
_ALMOST = 0.9  # of a limit: paramiko looks at its clock now and then, and does not say that a limit was the reason


class DroppedError(Exception):
    """The server ended the connection before the login, as sshd does beyond its MaxStartups: worth another try."""


class Client(paramiko.Transport):
    """paramiko's, which by itself asks for certificates only after all plain keys.

    host_key_kinds: the kinds of host keys to ask for, the best first.
    """

    def __init__(self, connected: Any) -> None:  # noqa: ANN401 - a socket, or paramiko's likeness of one
        super().__init__(connected)
        self.host_key_kinds: tuple[str, ...] = tuple(self.get_security_options().key_types)

    @property
    def preferred_keys(self) -> tuple[str, ...]:
        """See paramiko."""
        return self.host_key_kinds


def shake_hands(connected: Any, target: Target, deadline: float, limit_seconds: float) -> paramiko.Transport:  # noqa: ANN401 - a socket, or paramiko's likeness of one
    """Verify the host, and log in.

    deadline: on the monotonic clock. limit_seconds: the limit that it comes from, for a sentence about it.

    Raises:
        DroppedError: the server ended the connection before the login.
        SshError: it cannot be; one of the classes in `failures`.
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
    """Keep paramiko's own words, tracebacks among them, from standard error: whatever matters is raised."""
    logger = logging.getLogger("paramiko")
    if not logger.handlers:
        logger.addHandler(logging.NullHandler())


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
