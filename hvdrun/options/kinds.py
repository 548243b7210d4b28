"""The kinds of values that follow flags. A parser raises ValueError for a text that it cannot read."""

import re
import shlex
import sys
from dataclasses import replace
from enum import StrEnum
from functools import partial
from ipaddress import IPv6Address, ip_network
from pathlib import Path

from hvdrun.errors import IdentityFileError
from hvdrun.options.option import Kind
from hvdrun.spec.command import find_directory
from hvdrun.spec.hosts import MAX_SLOTS_PER_HOST
from hvdrun.startup.paths import exists, is_folder, open_regular
from rendezvous.core.model import Endpoint


class Shell(StrEnum):
    """A shell for which hvdrun has a completion script."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


class LogLevel(StrEnum):
    """A level of the log; the words of Horovod are taken too."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"

    @classmethod
    def _missing_(cls, value: object) -> "LogLevel | None":
        word = str(value).lower()
        return next((each for each in cls if each.value == _HOROVOD_LEVELS.get(word, word)), None)


_HOROVOD_LEVELS = {"trace": "debug", "fatal": "error"}
MAX_WORKERS = 100_000  # a mistyped number must not fill the memory with slots, or take minutes to refuse
MAX_DURATION_SECONDS = 366 * 24 * 3600.0  # timers of the operating system overflow far beyond
MAX_PORT = 65_535
COOLDOWN_BOUNDS_SECONDS = (1.0, 3600.0)

_DURATION = re.compile(r"(?P<number>\d{1,9}(?:\.\d{0,9})?|\.\d{1,9})(?P<unit>ms|s|m|h)?", re.ASCII)
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, None: 1.0}
_PLACE = re.compile(r"(?:\[(?P<ipv6>[^\]]+)\]|(?P<name>[A-Za-z0-9_.-]+))(?::(?P<port>[0-9]{1,5}))?", re.ASCII)
_INTERFACE = re.compile(r"[^\s/,]{1,15}")  # the names that Linux allows for network interfaces


def parse_integer(text: str, *, least: int = 1, most: int = MAX_WORKERS) -> int:
    """Read a whole number within these bounds.

    Raises:
        ValueError: the text is no such number.
    """
    if not (text.isascii() and text.isdecimal() and least <= int(text) <= most):
        raise ValueError(text)
    return int(text)


parse_whole_number = partial(parse_integer, least=0)
parse_slots = partial(parse_integer, most=MAX_SLOTS_PER_HOST)
parse_port = partial(parse_integer, most=MAX_PORT)


def parse_endpoint(text: str) -> Endpoint:
    """Read `server1:29400` or `[2001:db8::1]:29400`.

    Raises:
        ValueError: the text has another form.
    """
    endpoint = parse_bind(text)
    if not endpoint.port:
        raise ValueError(text)
    return endpoint


def parse_bind(text: str) -> Endpoint:
    """Read an address and a port to listen at; no port and port 0 mean a free port.

    Raises:
        ValueError: the text has another form.
    """
    match = _PLACE.fullmatch(text)
    if match is None:
        raise ValueError(text)
    port = 0
    if int(match["port"] or 0) != 0:
        port = parse_port(match["port"])
    address = match["name"]
    # A port alone, which is no address.
    if address is not None and address.isdecimal():
        raise ValueError(text)
    if address is None:
        return Endpoint(str(IPv6Address(match["ipv6"])), port)
    address.encode("idna")  # raises a UnicodeError, as a look-up would: a label is empty, or too long
    return Endpoint(address, port)


def parse_duration(text: str, *, least: float = 0.0, most: float = MAX_DURATION_SECONDS) -> float:
    """Read `30`, `30s`, `2m`, `1.5h` or `500ms` as seconds.

    Raises:
        ValueError: the text is no duration, or the duration is not within these bounds.
    """
    match = _DURATION.fullmatch(text)
    if match is None:
        raise ValueError(text)
    seconds = float(match["number"]) * _SECONDS[match["unit"]]
    if not least <= seconds <= most:
        raise ValueError(text)
    return seconds


parse_limit = partial(parse_duration, least=sys.float_info.min)  # longer than 0
parse_cooldown = partial(parse_duration, least=COOLDOWN_BOUNDS_SECONDS[0], most=COOLDOWN_BOUNDS_SECONDS[1])


def parse_path(text: str) -> Path:
    """Read the name of a file or a folder; a leading `~`, which a shell leaves in `--flag=~/x`, is the home folder.

    Raises:
        ValueError: the text is empty, no path can have such a name, or it is `-`, which names a stream elsewhere.
    """
    if text in {"", "-"} or "\0" in text:
        raise ValueError(text)
    try:
        return Path(text).expanduser()
    except RuntimeError as error:  # no such user, or one without a home folder
        raise ValueError(text) from error


def parse_path_there(text: str) -> str:
    """Read the name of a file or a folder of another host, or a word in its place, as `parse_path` does.

    Raises:
        ValueError: the text is empty, or no path can have such a name.
    """
    return str(parse_path(text))


def parse_local_path(text: str) -> Path:
    """Read the name of a file or a folder of this machine as an absolute path.

    Raises:
        ValueError: no path can have such a name.
        UsageError: the working directory was removed.
    """
    return find_directory() / parse_path(text)


def parse_folder(text: str) -> Path:
    """Read the name of a folder as an absolute path; this machine may lack the folder.

    Raises:
        ValueError: no path can have such a name, or it is that of a file.
        UsageError: the working directory was removed.
    """
    path = parse_local_path(text)
    if exists(path) and not is_folder(path):
        raise ValueError(text)
    return path


def parse_private_key(text: str) -> Path:
    """Read the name of a file that this user can read, as an absolute path.

    Raises:
        ValueError: no path can have such a name.
        UsageError: the file cannot be read.
    """
    path = parse_local_path(text)
    try:
        with open_regular(path):
            return path
    except OSError as error:
        raise IdentityFileError(path, error.strerror or str(error)) from error


def parse_absolute_path(text: str) -> str:
    """Read an absolute path, which means the same in every directory and on every host.

    Raises:
        ValueError: the path is relative.
    """
    if not text.startswith("/") or "\0" in text:
        raise ValueError(text)
    return text


def parse_shell_command(text: str) -> str:
    """Read a command for a shell.

    Raises:
        ValueError: the text is empty.
    """
    if not text.strip() or "\0" in text:
        raise ValueError(text)
    return text


def parse_words(text: str) -> tuple[str, ...]:
    """Split a program and its arguments as a shell does, without expanding anything.

    Raises:
        ValueError: the text is empty, or a quotation does not end.
    """
    words = tuple(shlex.split(parse_shell_command(text)))
    if not words:
        raise ValueError(text)
    return words


def parse_local_program(text: str) -> tuple[str, ...]:
    """Split a program and its arguments; a path of the program counts from the working directory of hvdrun.

    Raises:
        ValueError: the text is empty, or a quotation does not end.
        UsageError: the working directory was removed.
    """
    program, *arguments = parse_words(text)
    if "/" in program:
        program = str(find_directory() / program)
    return (program, *arguments)


def parse_interfaces(text: str) -> tuple[str, ...]:
    """Read `eth0,ib*,10.0.0.0/8`: names of network interfaces, patterns of them, and subnets.

    Raises:
        ValueError: a piece between commas has none of these forms.
    """
    pieces = tuple(piece.strip() for piece in text.split(","))
    for piece in pieces:
        if "/" in piece or ":" in piece:
            ip_network(piece, strict=False)
        elif not _INTERFACE.fullmatch(piece):
            raise ValueError(text)
    return pieces


COUNT = Kind(parse_integer, "N", f"a number of workers from 1 to {MAX_WORKERS}", "2")
SLOTS = Kind(parse_slots, "N", f"a number of slots from 1 to {MAX_SLOTS_PER_HOST}", "4")
_LONGEST = f"{MAX_DURATION_SECONDS / 3600:g}h, in ms, s, m or h"
TIME = Kind(parse_limit, "TIME", f"a time longer than 0 and up to {_LONGEST}", "30s")
TIME_OR_ZERO = replace(TIME, parse=parse_duration, wanted=f"a time from 0 to {_LONGEST}", example="5s")
FILE_NAME, FOLDER_NAME = "FILE", "DIR"
FILE = Kind(parse_path, FILE_NAME, "the name of a file", "job.yaml")
FOLDER = Kind(parse_local_path, FOLDER_NAME, "the name of a folder", "/shared/run1")
