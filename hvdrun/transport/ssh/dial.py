"""Connects to a host, directly, through jump hosts or through a command, and logs in.

sshd drops connections at random, without a message, while too many logins are in progress (MaxStartups, 10 by default).
hvdrun tries these again until the limit, after a pause that grows and has a random part.
"""

import asyncio
import functools
import logging
import random
import time
from dataclasses import dataclass
from typing import Any

import paramiko
from paramiko.kex_curve25519 import KexCurve25519
from paramiko.packet import Packetizer
from paramiko.ssh_exception import IncompatiblePeer

from hvdrun.errors import LaunchError
from hvdrun.processes.background import in_thread
from hvdrun.transport.ssh.certificates import SUFFIX
from hvdrun.transport.ssh.host_keys import HostKey
from hvdrun.transport.ssh.login import Login
from hvdrun.transport.ssh.policy import SshPolicy
from hvdrun.transport.ssh.proxy_command import ProxyCommand
from hvdrun.transport.ssh.ssh_errors import (
    ConnectionDroppedError,
    JumpFailedError,
    NoCommonAlgorithmError,
    NotSshError,
    TimedOutError,
)
from hvdrun.transport.ssh.target import Target
from hvdrun.transport.ssh.tcp import DroppedError, connect

_FIRST_PAUSE_SECONDS = 0.2
_LONGEST_PAUSE_SECONDS = 3.0
_KEEPALIVE_SECONDS = 10  # with the limit for acknowledgements, a dead peer is noticed within half a minute
# The option, and paramiko's words where the server has nothing of it.
_NO_COMMON = {
    "Ciphers": "no acceptable ciphers",
    "HostKeyAlgorithms": "no acceptable host key",
    "KexAlgorithms": "no acceptable kex",
    "MACs": "no acceptable macs",
}
_ALMOST = 0.9  # of a limit: paramiko checks its clock now and then, and does not report that a limit was the reason


@dataclass(frozen=True, slots=True)
class Connection:
    """A host that we are logged in to, with the jump host or command that the connection uses."""

    client: "_Client"
    via: "Connection | None" = None
    proxy: ProxyCommand | None = None

    @property
    def needs_ssh_agent(self) -> bool:
        """The ssh agent alone has the key for this host, or for a jump host."""
        return self.client.needs_ssh_agent or (self.via is not None and self.via.needs_ssh_agent)

    def close(self) -> None:
        """Close it, and what it uses. Blocks for up to a few seconds."""
        self.client.close()
        self.client.sock.close()
        if self.proxy is not None:
            self.proxy.close()
        if self.via is not None:
            self.via.close()


async def dial(target: Target, limit_seconds: float) -> Connection:
    """Connect and log in.

    Raises:
        LaunchError: one of the classes in `ssh_errors`.
    """
    loop = asyncio.get_running_loop()
    started = loop.time()
    deadline = started + limit_seconds
    via = None
    if target.via is not None:
        via = await _dial_jump(target, target.via, limit_seconds)

    try:
        attempts = 0
        dropped: DroppedError | None = None
        pause = _FIRST_PAUSE_SECONDS
        while True:
            attempts += 1
            try:
                return await _try(target, via, deadline, limit_seconds)
            except (DroppedError, TimedOutError) as error:
                if isinstance(error, DroppedError):
                    dropped = error
                elif dropped is None:
                    raise
                wait = pause * random.uniform(0.5, 1.0)  # noqa: S311 - spreads attempts; no secret
                if loop.time() + wait >= deadline:
                    raise ConnectionDroppedError(
                        *target.where,
                        attempts=attempts,
                        seconds=loop.time() - started,
                        reason=str(dropped),
                    ) from error
            await asyncio.sleep(wait)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
    except BaseException:
        if via is not None:
            await in_thread(via.close)
        raise


async def _dial_jump(target: Target, jump: Target, limit_seconds: float) -> Connection:
    try:
        return await dial(jump, limit_seconds)
    except JumpFailedError as error:
        raise JumpFailedError(target.host, error.jump, error.reason) from error
    except LaunchError as error:
        raise JumpFailedError(target.host, f"the jump host {jump.host!r}", str(error)) from error


async def _try(target: Target, via: Connection | None, deadline: float, limit_seconds: float) -> Connection:
    """One attempt.

    Raises:
        DroppedError: the server ended the connection; another attempt may succeed.
    """
    proxy: ProxyCommand | None = None
    connected: Any
    if via is not None:
        connected = await _connect_through(target, via, deadline)
    elif target.proxy_command is not None:
        proxy = ProxyCommand(target.host, target.proxy_command)
        connected = proxy.socket
    else:
        connected = await connect(target, deadline, limit_seconds)

    try:
        work = functools.partial(_shake_hands, connected, target, deadline, limit_seconds)
        client = await in_thread(work, abort=connected.close)
    except BaseException as error:
        connected.close()
        if proxy is None:
            raise
        said = await in_thread(proxy.close)
        if isinstance(error, DroppedError | TimedOutError) and proxy.has_failed:
            raise JumpFailedError(target.host, "its ProxyCommand", said) from error
        raise
    return Connection(client, via, proxy)


async def _connect_through(target: Target, via: Connection, deadline: float) -> paramiko.Channel:
    """A channel to the host through a jump host that we are logged in to."""
    jump = f"the jump host {target.via.host!r}" if target.via is not None else "the jump host"
    remaining = max(deadline - asyncio.get_running_loop().time(), 0.1)
    work = functools.partial(
        via.client.open_channel, "direct-tcpip", (target.address, target.port), ("127.0.0.1", 0), timeout=remaining
    )
    try:
        return await in_thread(work)
    except paramiko.ChannelException as error:
        reason = f"it cannot connect to {target.address} port {target.port} ({error.text.lower()})"
        raise JumpFailedError(target.host, jump, reason) from error
    except (paramiko.SSHException, OSError, EOFError) as error:
        reason = f"the connection to it ended, or it did not answer in time ({error})"
        raise JumpFailedError(target.host, jump, reason) from error


class _Packetizer(Packetizer):
    """paramiko's, without a thread that limits the handshake: `_negotiate` limits it."""

    def start_handshake(self, timeout: float) -> None:
        """See paramiko."""


class _Client(paramiko.Transport):
    """paramiko's connection, with what the ssh configuration allows, in its order.

    Args:
        connected: the socket, or what acts as one.
        policy: what the ssh configuration allows.

    host_key_kinds: the kinds of host keys to ask for, the best first. paramiko alone asks for certificates last.
    needs_ssh_agent: the ssh agent alone has the key that was accepted.
    """

    needs_ssh_agent = False

    def __init__(self, connected: Any, policy: SshPolicy) -> None:
        """See paramiko.

        Raises:
            SshPolicyError: nothing is left for one purpose.
        """
        super().__init__(connected, packetizer_class=_Packetizer)
        self._rsa = policy.order_rsa()
        # Servers may offer it by its newer name alone.
        self._kex_info = {**vars(paramiko.Transport)["_kex_info"], "curve25519-sha256": KexCurve25519}
        options = self.get_security_options()
        options.kex = policy.choose("KexAlgorithms", ("curve25519-sha256", *options.kex))
        options.ciphers = policy.choose("Ciphers", options.ciphers)
        options.digests = policy.choose("MACs", options.digests)
        certificates = [f"{kind}{SUFFIX}" for kind in options.key_types]
        self.host_key_kinds = policy.choose("HostKeyAlgorithms", (*certificates, *options.key_types))

    @property
    def preferred_keys(self) -> tuple[str, ...]:
        """See paramiko."""
        return self.host_key_kinds

    @property
    def preferred_pubkeys(self) -> tuple[str, ...]:
        """See paramiko, which reads this for RSA keys alone."""
        return self._rsa

    def list_allowed(self, option: str) -> tuple[str, ...]:
        """What was asked for by this option of ssh_config."""
        options = self.get_security_options()
        lists = {"Ciphers": options.ciphers, "KexAlgorithms": options.kex, "MACs": options.digests}
        return tuple(lists.get(option, self.host_key_kinds))


def _shake_hands(connected: Any, target: Target, deadline: float, limit_seconds: float) -> _Client:
    """Verify the host, and log in. Blocks; closing the socket in another thread ends it.

    deadline: on the monotonic clock. limit_seconds: the whole limit, for a message.

    Raises:
        DroppedError: the server ended the connection before the login.
        SshError: one of the classes in `ssh_errors`.
    """
    logger = logging.getLogger("paramiko")
    # Else logging writes tracebacks to standard error; hvdrun raises what matters.
    if not logger.handlers:
        logger.addHandler(logging.NullHandler())

    try:
        client = _Client(connected, target.policy)
    except (paramiko.SSHException, OSError, EOFError) as error:
        raise DroppedError(str(error)) from error
    try:
        host_key = HostKey(target)
        client.host_key_kinds = host_key.order_kinds(client.host_key_kinds)
        _negotiate(client, target, deadline, limit_seconds)
        host_key.verify(client.get_remote_server_key())
        client.auth_timeout = max(deadline - time.monotonic(), 1.0)
        client.needs_ssh_agent = Login(client, target).run()
    except BaseException:
        client.close()
        raise

    client.completion_event = None  # of start_client, which has returned
    client.set_keepalive(_KEEPALIVE_SECONDS)
    return client


def _negotiate(client: _Client, target: Target, deadline: float, limit_seconds: float) -> None:
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

    for option, words in _NO_COMMON.items():
        if isinstance(failure, IncompatiblePeer) and words in str(failure):
            raise NoCommonAlgorithmError(target.host, option, client.list_allowed(option)) from failure
    if isinstance(failure, IncompatiblePeer) or "ndecipherable" in str(failure):
        raise NotSshError(*target.where, str(failure).rstrip(".")) from failure
    when = "during the handshake" if client.remote_version else "immediately"
    raise DroppedError(f"it closed the connection {when}") from failure
