"""A TCP connection to a host, from the address that the ssh configuration names."""

import asyncio
import errno
import ipaddress
import socket
from collections.abc import Sequence
from contextlib import suppress
from difflib import get_close_matches
from typing import Any

from hvdrun.processes.background import in_thread
from hvdrun.transport.ssh.host_keys import list_names
from hvdrun.transport.ssh.ssh_errors import (
    ConnectionRefusedError,  # noqa: A004 - the builtin one is an OSError
    SshPolicyError,
    TimedOutError,
    UnknownHostError,
    UnreachableError,
)
from hvdrun.transport.ssh.target import Target

_UNACKNOWLEDGED_SECONDS = 20  # a peer that acknowledges nothing for so long is lost
_LIKENESS = 0.75
_IPV6 = 6

Address = tuple[socket.AddressFamily, tuple[Any, ...]]


class DroppedError(Exception):
    """The server ended the connection before the login, as sshd does beyond its MaxStartups; try again."""


async def connect(target: Target, deadline: float, limit_seconds: float) -> socket.socket:
    """A TCP connection to the first of the host's addresses that answers."""
    loop = asyncio.get_running_loop()
    addresses, sources = await _look_up(target, limit_seconds)
    failures: list[OSError] = []
    refusal: SshPolicyError | None = None
    for left, (family, address) in zip(range(len(addresses), 0, -1), addresses, strict=True):
        share = max(deadline - loop.time(), 0.0) / left  # so that a silent address leaves time for the next
        connected = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        try:
            _bind(connected, target, sources)
            async with asyncio.timeout(share):
                await loop.sock_connect(connected, address)
        except SshPolicyError as error:
            refusal = error
            connected.close()
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

    if refusal is not None and not failures:
        raise refusal
    raise _explain(target, failures, limit_seconds)


def _find_sources(target: Target) -> Sequence[Address]:
    """The addresses of this machine that the configuration names; none if it names none. Blocks for a look-up."""
    if target.bind_address is not None:
        with suppress(socket.gaierror, UnicodeError):  # `_bind` reports that there is none
            return _resolve(target.bind_address, 0, target.family, socket.AI_PASSIVE)
    elif target.bind_interface is not None:
        import psutil  # noqa: PLC0415 - few need it

        found = [
            each
            for entry in psutil.net_if_addrs().get(target.bind_interface, ())
            if entry.family in (socket.AF_INET, socket.AF_INET6)
            for each in _resolve(entry.address, 0, entry.family)
        ]
        # As ssh does.
        return sorted(found, key=lambda each: _is_local(each[1][0]))
    return ()


def _is_local(address: str) -> bool:
    parsed = ipaddress.ip_address(address.partition("%")[0])
    return parsed.is_loopback or (parsed.version == _IPV6 and parsed.is_link_local)


def _bind(connecting: socket.socket, target: Target, sources: Sequence[Address]) -> None:
    """Bind a socket to the first of the sources that has its family, if the configuration names any.

    Raises:
        SshPolicyError: this machine does not have it.
    """
    option, given = "BindAddress", target.bind_address
    if given is None:
        option, given = "BindInterface", target.bind_interface
    if given is None:
        return
    for family, address in sources:
        if family == connecting.family:
            with suppress(OSError):  # the next source is tried; at last it is reported
                connecting.bind(address)
                return
    reason = f"names {option} {given}, from which no connection to {target.address} can start"
    raise SshPolicyError(target.host, reason, "correct it")


async def _look_up(target: Target, limit_seconds: float) -> tuple[Sequence[Address], Sequence[Address]]:
    """The addresses of the host, and of this machine, from which to connect."""

    def look_up() -> tuple[Sequence[Address], Sequence[Address]]:
        return _resolve(target.address, target.port, target.family), _find_sources(target)

    try:
        async with asyncio.timeout(limit_seconds):
            return await in_thread(look_up)
    except TimeoutError as error:
        raise TimedOutError(*target.where, limit_seconds, "looking up its address") from error
    except (socket.gaierror, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or "not a host name"
        raise UnknownHostError(target.host, target.address, str(reason).lower(), _suggest(target)) from error


def _resolve(address: str, port: int, family: socket.AddressFamily, flags: int = 0) -> Sequence[Address]:
    found = socket.getaddrinfo(address, port, family, socket.SOCK_STREAM, socket.IPPROTO_TCP, flags)
    return [(info[0], info[4]) for info in found]


def _suggest(target: Target) -> str | None:
    """The most similar name of the known_hosts files; None if none is similar."""
    known = list_names(target.known_hosts) - {target.host}
    close = get_close_matches(target.host, sorted(known), n=1, cutoff=_LIKENESS)
    if close:
        return close[0]
    return None


def _explain(target: Target, failures: Sequence[OSError], limit_seconds: float) -> Exception:
    """The most telling failure of all addresses."""
    for failure in failures:
        if isinstance(failure, ConnectionResetError | ConnectionAbortedError):
            return DroppedError("it reset the connection")
    if any(failure.errno == errno.ECONNREFUSED for failure in failures):
        return ConnectionRefusedError(*target.where)
    if any(isinstance(failure, TimeoutError) for failure in failures):
        return TimedOutError(*target.where, limit_seconds, "connecting")
    reason = None
    if failures:
        reason = failures[-1].strerror
    return UnreachableError(*target.where, (reason or "it has no address").lower())
