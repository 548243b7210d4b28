"""Reads lists of hosts: of -H, of hostfiles and of discovery scripts."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from ipaddress import AddressValueError, IPv6Address
from pathlib import Path

from hvdrun.errors import HostFileError, HostSyntaxError, UsageError
from hvdrun.startup.paths import read_file
from rendezvous.core.model import Host

MAX_SLOTS_PER_HOST = 65_536  # a mistyped number must not fill the memory with slots

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", re.ASCII)  # no leading dash: a name must not look like an option
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*", re.ASCII)  # it may reach a shell, through %r in a ProxyCommand
_FORM = "a host is written name or name:slots, as in server1:4"
_WORD = re.compile(r"(?P<key>[a-z_-]+)=(?P<value>.*)", re.ASCII)
_MAX_SLOTS_KEYS = frozenset({"max_slots", "max-slots"})


@dataclass(frozen=True, slots=True)
class HostList:
    """A list of hosts: each host once, in order, and by host the user to log in as, if the list has one."""

    hosts: tuple[Host, ...]
    users: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class _Entry:
    """One mention of a host."""

    name: str
    slots: int
    user: str | None = None


def is_host_name(text: str) -> bool:
    """A host may have this name, which is no IPv6 address."""
    return _NAME.fullmatch(text) is not None


def count_slots(slots: int) -> str:
    """The number of slots, with the word."""
    return f"{slots} slot{'' if slots == 1 else 's'}"


def parse_hosts(text: str) -> HostList:
    """Read `server1:4,me@server2:4`.

    A bare name offers one slot; a host named twice adds up at its first place, as with mpirun.

    Raises:
        HostSyntaxError: a piece between commas is malformed, or gives a host a second user.
    """
    pieces = [piece.strip() for piece in text.split(",")]
    users: dict[str, str] = {}
    entries = [_note_user(_parse_host(piece), users, piece) for piece in pieces]
    return HostList(_add_up(entries), users)


def parse_hostfile(text: str, name: str) -> HostList:
    """Read a hostfile: one `server1`, `server1:4` or `me@server1 slots=4` a line; `#` begins a comment.

    `max_slots=`, mpirun's bound of oversubscription, has no effect.

    Args:
        text: the file's contents.
        name: what errors call the file.

    Raises:
        HostFileError: a line is malformed, or gives a host a second user, or the file names no host.
    """
    users: dict[str, str] = {}
    entries = []
    for number, line in enumerate(text.removeprefix("\ufeff").split("\n"), start=1):
        content = line.partition("#")[0].strip()
        if not content:
            continue
        try:
            entries.append(_note_user(_parse_line(content), users, content))
        except HostSyntaxError as error:
            raise HostFileError(name, number, f"{error.piece!r}: {error.reason}") from error
    if not entries:
        raise HostFileError(name, None, "it names no host; write one a line, as in server1 slots=4")
    return HostList(_add_up(entries), users)


def parse_discovered(text: str, slots_per_host: int) -> HostList:
    """Read what a discovery script prints: one `server1`, `server1:4` or `me@server1:4` a line; `#` begins a comment.

    A bare name offers `slots_per_host` slots. A host with 0 slots is left out. A host on two lines keeps its first
    place and has the slots of its last line, as with Horovod.

    Raises:
        HostSyntaxError: a line is malformed, or gives a host a second user.
    """
    users: dict[str, str] = {}
    lines = (line.partition("#")[0].strip() for line in text.removeprefix("\ufeff").split("\n"))
    entries = [_note_user(_parse_host(line, slots_per_host, least=0), users, line) for line in lines if line]
    slots = {entry.name: entry.slots for entry in entries}
    return HostList(tuple(Host(name, count) for name, count in slots.items() if count), users)


def _note_user(entry: _Entry, users: dict[str, str], piece: str) -> _Entry:
    """Keep the user of a host, which all lines must name alike."""
    name = entry.name
    if entry.user is not None and users.setdefault(name, entry.user) != entry.user:
        raise HostSyntaxError(piece, f"the user of {name} is given twice, as {users[name]} and as {entry.user}")
    return entry


def _parse_line(content: str) -> _Entry:
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

    entry = _parse_host(place)
    if slots is None:
        return entry
    if ":" in place.rpartition("]")[2]:
        raise HostSyntaxError(content, "the slots are given twice; write server1:4 or server1 slots=4")
    return replace(entry, slots=slots)


def _parse_host(piece: str, default: int = 1, *, least: int = 1) -> _Entry:
    """Read `name`, `name:slots`, `[address]` or `[address]:slots`, each also with `user@` before it.

    Args:
        piece: the text.
        default: the slots of a host without a number.
        least: the smallest number of slots.
    """
    if not piece:
        raise HostSyntaxError(piece, f"it is empty; {_FORM}, with single commas between hosts")

    user, at, place = piece.rpartition("@")
    if at and _USER.fullmatch(user) is None:
        reason = (
            "before the @ stands a user's name, as in me@server1:4; an unusual one can be the User in ~/.ssh/config"
        )
        raise HostSyntaxError(piece, reason)

    if place.startswith("["):
        name, slots = _parse_bracketed(place, piece)
    else:
        name, slots = _parse_place(place, piece)
    count = default
    if slots is not None:
        count = _parse_slots(slots, piece, least)
    return _Entry(name, count, user if at else None)


def _parse_place(place: str, piece: str) -> tuple[str, str | None]:
    """Split a host without its user into its name and its slots, where they are given."""
    if place.count(":") > 1:
        hint = f"an IPv6 address stands in brackets, as in [{place}]:4" if _is_ipv6(place) else _FORM
        raise HostSyntaxError(piece, hint)
    name, colon, slots = place.partition(":")
    if _NAME.fullmatch(name) is None:
        raise HostSyntaxError(piece, _FORM)
    return name, slots if colon else None


def _parse_bracketed(place: str, piece: str) -> tuple[str, str | None]:
    """Split `[2001:db8::1]` or `[2001:db8::1]:4`; the host's name is the address in its shortest spelling."""
    address, bracket, rest = place[1:].partition("]")
    if not bracket or not _is_ipv6(address):
        raise HostSyntaxError(piece, "brackets hold an IPv6 address, as in [2001:db8::1]:4")
    if rest and not rest.startswith(":"):
        raise HostSyntaxError(piece, "after the brackets comes only :slots, as in [2001:db8::1]:4")
    return str(IPv6Address(address)), rest[1:] if rest else None


def _is_ipv6(text: str) -> bool:
    try:
        zone = IPv6Address(text).scope_id
    except AddressValueError:
        return False
    return zone is None or _NAME.fullmatch(zone) is not None


def _parse_slots(text: str, piece: str, least: int = 1) -> int:
    if not (text.isascii() and text.isdecimal()):
        raise HostSyntaxError(piece, f"{text!r} is not a number of slots; {_FORM}")
    # Digits are counted first: int() has another error for thousands of them.
    if len(text.lstrip("0")) > len(str(MAX_SLOTS_PER_HOST)) or not least <= int(text) <= MAX_SLOTS_PER_HOST:
        raise HostSyntaxError(piece, f"a host offers {least} to {MAX_SLOTS_PER_HOST} slots, not {text}")
    return int(text)


def _add_up(entries: Iterable[_Entry]) -> tuple[Host, ...]:
    """Give every host once, at its first place, with all its slots."""
    slots: dict[str, int] = {}
    for entry in entries:
        slots[entry.name] = slots.get(entry.name, 0) + entry.slots
    return tuple(Host(name, count) for name, count in slots.items())


LOCALHOST = "localhost"
MAX_HOSTFILE_BYTES = 16 * 1024 * 1024  # a hostfile of a hundred thousand hosts is a few megabytes; /dev/zero has no end


def discover_hosts(*, listed: str | None, hostfile: Path | None, size: int) -> HostList:
    """The hosts that a job of `size` workers may use.

    Args:
        listed: the value of -H.
        hostfile: the value of --hostfile.
        size: the slots of localhost, which the job uses without these options.

    Raises:
        UsageError: both are given.
        HostSyntaxError: the list is malformed.
        HostFileError: the hostfile is unreadable or malformed.
    """
    if listed is not None and hostfile is not None:
        raise UsageError("-H and --hostfile both say which hosts to use: give only one of them.")
    if listed is not None:
        return parse_hosts(listed)
    if hostfile is not None:
        return read_hostfile(hostfile)
    return HostList((Host(LOCALHOST, size),), {})


def read_hostfile(path: Path) -> HostList:
    """Read a hostfile, which may be a pipe, as in `--hostfile <(command)`.

    Raises:
        HostFileError: the file is unreadable, too long, not text, or malformed.
    """
    try:
        data = read_file(path, MAX_HOSTFILE_BYTES)
    except OSError as error:
        raise HostFileError(str(path), None, error.strerror or str(error)) from error
    except ValueError as error:  # a NUL in the path
        raise HostFileError(str(path), None, str(error)) from error
    if len(data) > MAX_HOSTFILE_BYTES:
        raise HostFileError(str(path), None, f"it is longer than {MAX_HOSTFILE_BYTES} bytes")
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise HostFileError(str(path), line, f"byte {data[error.start]:#04x} is not UTF-8 text") from error
    return parse_hostfile(text, str(path))
