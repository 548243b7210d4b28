"""Writes a configuration file that, read again, gives the same job."""

import json
import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path

from hvdrun.options.configuration.reading import COMMAND, KEYS
from hvdrun.options.configuration.tree import ConfigurationError
from hvdrun.options.option import Given
from hvdrun.options.table import OPTIONS

_PLAIN = re.compile(r"[A-Za-z0-9/][A-Za-z0-9_./=-]*|\d+", re.ASCII)
_NOTHING = frozenset({"null"})
_PRIVATE = 0o600  # values of -x may be secrets
_UNTOLD = frozenset({"dry_run"})  # how to look at a job, not what it is


def write_configuration(path: Path, given: Mapping[str, Given], command: tuple[str, ...] = ()) -> None:
    """Write what was given, by dest, and the user's command, as TOML where the name ends so, otherwise as YAML.

    Raises:
        ConfigurationError: the file cannot be written, or its language cannot say it.
    """
    is_toml = path.suffix == ".toml"
    text = "".join(_compose(given, command, is_toml=is_toml))
    if is_toml:
        try:
            tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:  # it has no way to say bytes that are no text
            raise ConfigurationError(str(path), "TOML cannot say what is no text in UTF-8: write YAML") from error
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, _PRIVATE)
        with os.fdopen(descriptor, "wb") as file:
            file.write(text.encode())
    except OSError as error:
        raise ConfigurationError(str(path), f"it cannot be written: {error.strerror or error}") from error


def _compose(given: Mapping[str, Given], command: tuple[str, ...], *, is_toml: bool) -> Iterator[str]:
    names: dict[str, str] = {}
    for key, option in KEYS.items():
        names.setdefault(option.dest, key)
    sign = " =" if is_toml else ":"
    for option in OPTIONS:
        value = given.get(option.dest)
        if option.dest in names and option.dest not in _UNTOLD and value not in (None, ()):
            yield f"{names[option.dest]}{sign} {_render(value, is_toml=is_toml)}\n"
    if command:
        yield f"{COMMAND}{sign} {_render(command, is_toml=is_toml)}\n"


def _render(value: Given | None, *, is_toml: bool) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case tuple():
            return f"[{', '.join(_render(item, is_toml=is_toml) for item in value)}]"
        case str() if value.isdecimal() and value.isascii() and str(int(value)) == value:
            return value
        case str() if not is_toml and _PLAIN.fullmatch(value) and value.lower() not in _NOTHING:
            return value
        case _:
            return _quote(str(value))


def _quote(text: str) -> str:
    """Between double quotes, as both languages read it."""
    return "".join(c if c.isprintable() else _escape(c) for c in json.dumps(text, ensure_ascii=False))


def _escape(character: str) -> str:
    code = ord(character)
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"  # noqa: PLR2004 - the last of four digits
