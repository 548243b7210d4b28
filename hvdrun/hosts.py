"""Reads lists of hosts, as -H and hostfiles give them, into values. Nothing else in the launcher parses a host."""

import re
from collections.abc import Iterable
from ipaddress import AddressValueError, IPv6Address

from hvdrun.errors import HostFileError, HostSyntaxError
from rendezvous.core.model import Host

MAX_SLOTS_PER_HOST = 65_536  # a mistyped number must not fill the memory with slots

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", re.ASCII)  # no leading dash: a name must not look like an option
_FORM = "a host is written name or name:slots, as in server1:4"
_WORD = re.compile(r"(?P<key>[a-z_-]+)=(?P<value>.*)", re.ASCII)
_MAX_SLOTS_KEYS = frozenset({"max_slots", "max-slots"})


def parse_hosts(text: str) -> tuple[Host, ...]:
    """Read `server1:4,server2:4`.

    A bare name offers one slot; a host named twice adds up at its first place, as with mpirun.

    Raises:
        HostSyntaxError: a piece between commas is malformed.
    """
    return _add_up(_parse_host(piece.strip()) for piece in text.split(","))


def parse_hostfile(text: str, name: str) -> tuple[Host, ...]:
    """Read a hostfile: one `server1`, `server1:4` or `server1 slots=4` a line; `#` begins a comment.

    `max_slots=`, which mpirun knows as the bound of oversubscription, is accepted without effect: hvdrun never starts
    more workers on a host than it has slots.

    Args:
        text: the file's contents.
        name: what errors call the file.

    Raises:
        HostFileError: a line is malformed, or the file names no host.
    """
    hosts = []
    for number, line in enumerate(text.removeprefix("\ufeff").split("\n"), start=1):
        content = line.partition("#")[0].strip()
        if not content:
            continue
        try:
            hosts.append(_parse_line(content))
        except HostSyntaxError as error:
            raise HostFileError(name, number, f"{error.piece!r}: {error.reason}") from error
    if not hosts:
        raise HostFileError(name, None, "it names no host; write one a line, as in server1 slots=4")
    return _add_up(hosts)


def _parse_line(content: str) -> Host:
    """Read one line of a hostfile, without its comment."""
    place, *words = re.sub(r"\s*=\s*", "=", content).split()
    slots = None
    for word in words:
        match = _WORD.fullmatch(word)
        if match is not None and match["key"] == "slots" and slots is None:
            slots = _parse_slots(match["value"], word)
        elif match is not None and match["key"] in _MAX_SLOTS_KEYS:
            _parse_slots(match["value"], word)
        else:
            raise HostSyntaxError(word, "after a host only slots=n is understood, once, as in server1 slots=4")
    host = _parse_host(place)
    if slots is None:
        return host
    if ":" in place.rpartition("]")[2]:
        raise HostSyntaxError(content, "the slots are given twice; write server1:4 or server1 slots=4")
    return Host(host.name, slots)


def _parse_host(piece: str) -> Host:
    """Read `name`, `name:slots`, `[address]` or `[address]:slots`."""
    if not piece:
        raise HostSyntaxError(piece, f"it is empty; {_FORM}, with single commas between hosts")
    if "@" in piece:
        raise HostSyntaxError(piece, "a user's name is not served yet; set User for this host in ~/.ssh/config")
    if piece.startswith("["):
        return _parse_bracketed(piece)
    if piece.count(":") > 1:
        hint = f"an IPv6 address stands in brackets, as in [{piece}]:4" if _is_ipv6(piece) else _FORM
        raise HostSyntaxError(piece, hint)
    name, colon, slots = piece.partition(":")
    if _NAME.fullmatch(name) is None:
        raise HostSyntaxError(piece, _FORM)
    return Host(name, _parse_slots(slots, piece) if colon else 1)


def _parse_bracketed(piece: str) -> Host:
    """Read `[2001:db8::1]` or `[2001:db8::1]:4`; the host's name is the address in its shortest spelling."""
    address, bracket, rest = piece[1:].partition("]")
    if not bracket or not _is_ipv6(address):
        raise HostSyntaxError(piece, "brackets hold an IPv6 address, as in [2001:db8::1]:4")
    if rest and not rest.startswith(":"):
        raise HostSyntaxError(piece, "after the brackets comes only :slots, as in [2001:db8::1]:4")
    return Host(str(IPv6Address(address)), _parse_slots(rest[1:], piece) if rest else 1)


def _is_ipv6(text: str) -> bool:
    try:
        IPv6Address(text)
    except AddressValueError:
        return False
    return True


def _parse_slots(text: str, piece: str) -> int:
    if not (text.isascii() and text.isdecimal()):
        raise HostSyntaxError(piece, f"{text!r} is not a number of slots; {_FORM}")
    # Digits are counted first: int() refuses, with a sentence of its own, what has thousands of them.
    if len(text.lstrip("0")) > len(str(MAX_SLOTS_PER_HOST)) or not 1 <= int(text) <= MAX_SLOTS_PER_HOST:
        raise HostSyntaxError(piece, f"a host offers 1 to {MAX_SLOTS_PER_HOST} slots, not {text}")
    return int(text)


def _add_up(hosts: Iterable[Host]) -> tuple[Host, ...]:
    """Give every host once, at its first place, with all its slots."""
    slots: dict[str, int] = {}
    for host in hosts:
        slots[host.name] = slots.get(host.name, 0) + host.slots
    return tuple(Host(name, count) for name, count in slots.items())
