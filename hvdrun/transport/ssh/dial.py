"""Connects to a host, directly, through jump hosts or through a command, and logs in.

sshd drops connections at random, without a message, while too many logins are in progress (MaxStartups, 10 by default).
hvdrun tries these again until the limit, after a pause that grows and has a random part.
"""

import asyncio
import errno
import functools
import logging
import random
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

import paramiko
from paramiko.packet import Packetizer
from paramiko.ssh_exception import IncompatiblePeer

from hvdrun.errors import LaunchError
from hvdrun.processes.background import in_thread
from hvdrun.transport.ssh.failures import (
    ConnectionDroppedError,
    ConnectionRefusedError,  # noqa: A004 - see there
    JumpFailedError,
    NotSshError,
    TimedOutError,
    UnknownHostError,
    UnreachableError,
)
from hvdrun.transport.ssh.host_keys import HostKey, list_names
from hvdrun.transport.ssh.login import Login
from hvdrun.transport.ssh.proxy_command import ProxyCommand
from hvdrun.transport.ssh.target import Target

_FIRST_PAUSE_SECONDS = 0.2
_LONGEST_PAUSE_SECONDS = 3.0
_UNACKNOWLEDGED_SECONDS = 20  # a peer that acknowledges nothing for so long is lost
_LIKENESS = 0.75
_KEEPALIVE_SECONDS = 10  # with the limit for acknowledgements, a dead peer is noticed within half a minute
_ALMOST = 0.9  # of a limit: paramiko checks its clock now and then, and does not report that a limit was the reason

Address = tuple[socket.AddressFamily, tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class Connection:
    """A host that we are logged in to, with the jump host or command that the connection uses."""

    client: paramiko.Transport
    via: "Connection | None" = None
    proxy: ProxyCommand | None = None

    def close(self) -> None:
        """Close it, and what it uses. Blocks for up to a few seconds."""
        self.client.close()
        self.client.sock.close()
        if self.proxy is not None:
            self.proxy.close()
        if self.via is not None:
            self.via.close()


class DroppedError(Exception):
    """The server ended the connection before the login, as sshd does beyond its MaxStartups; try again."""


async def dial(target: Target, limit_seconds: float) -> Connection:
    """Connect and log in.

    Raises:
        LaunchError: one of the classes in `failures`.
    """
    loop = asyncio.get_running_loop()
    started = loop.time()
    deadline = started + limit_seconds
    via = await _dial_jump(target, target.via, limit_seconds) if target.via is not None else None
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
        connected = await _connect(target, deadline, limit_seconds)
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


async def _connect(target: Target, deadline: float, limit_seconds: float) -> socket.socket:
    """A TCP connection to the first of the host's addresses that answers."""
    loop = asyncio.get_running_loop()
    addresses = await _look_up(target, limit_seconds)
    failures: list[OSError] = []
    for left, (family, address) in zip(range(len(addresses), 0, -1), addresses, strict=True):
        share = max(deadline - loop.time(), 0.0) / left  # so that a silent address leaves time for the next
        connected = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        try:
            async with asyncio.timeout(share):
                await loop.sock_connect(connected, address)
        except OSError as error:  # TimeoutError is one
            failures.append(error)
            connected.close()
        except BaseException:
            connected.close()
            raise
        else:
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            milliseconds = _UNACKNOWLEDGED_SECONDS * 1000
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)
            return connected
    raise _explain(target, failures, limit_seconds)


async def _look_up(target: Target, limit_seconds: float) -> Sequence[Address]:
    work = functools.partial(
        socket.getaddrinfo, target.address, target.port, target.family, socket.SOCK_STREAM, socket.IPPROTO_TCP
    )
    try:
        async with asyncio.timeout(limit_seconds):
            found = await in_thread(work)
    except TimeoutError as error:
        raise TimedOutError(*target.where, limit_seconds, "looking up its address") from error
    except (socket.gaierror, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or "not a host name"
        raise UnknownHostError(target.host, target.address, str(reason).lower(), _suggest(target)) from error
    return [(info[0], info[4]) for info in found]


def _suggest(target: Target) -> str | None:
    """The most similar name of the known_hosts files; None if none is similar."""
    known = list_names(target.known_hosts) - {target.host}
    close = get_close_matches(target.host, sorted(known), n=1, cutoff=_LIKENESS)
    return close[0] if close else None


def _explain(target: Target, failures: Sequence[OSError], limit_seconds: float) -> Exception:
    """The most telling failure of all addresses."""
    for failure in failures:
        if isinstance(failure, ConnectionResetError | ConnectionAbortedError):
            return DroppedError("it reset the connection")
    if any(failure.errno == errno.ECONNREFUSED for failure in failures):
        return ConnectionRefusedError(*target.where)
    if any(isinstance(failure, TimeoutError) for failure in failures):
        return TimedOutError(*target.where, limit_seconds, "connecting")
    reason = failures[-1].strerror if failures else None
    return UnreachableError(*target.where, (reason or "it has no address").lower())


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


def _shake_hands(connected: Any, target: Target, deadline: float, limit_seconds: float) -> paramiko.Transport:  # noqa: ANN401 - a socket, or a channel of paramiko
    """Verify the host, and log in. Blocks; closing the socket in another thread ends it.

    deadline: on the monotonic clock. limit_seconds: the whole limit, for a message.

    Raises:
        DroppedError: the server ended the connection before the login.
        SshError: one of the classes in `failures`.
    """
    logger = logging.getLogger("paramiko")
    if not logger.handlers:  # else logging writes tracebacks to standard error; hvdrun raises what matters
        logger.addHandler(logging.NullHandler())
    try:
        client = _Client(connected)
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
    client.completion_event = None  # of start_client, which has returned
    client.set_keepalive(_KEEPALIVE_SECONDS)
    return client


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
    when = "during the handshake" if client.remote_version else "immediately"
    raise DroppedError(f"it closed the connection {when}") from failure
