"""Reads what a configuration file gives to which option, and writes one that, read again, gives the same job."""

import json
import os
import re
import shlex
import tomllib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path

from hvdrun.options.configuration.languages import ConfigurationError, Node, parse_toml, parse_yaml
from hvdrun.options.configuration.sections import SECTIONS, read_section
from hvdrun.options.option import Given, Option, parse_path
from hvdrun.options.table import OPTIONS

_MOST_BYTES = 1024 * 1024  # /dev/zero has no end
_OF_FILES = frozenset({"config_file", "write_config"})
_TRUE, _FALSE = frozenset({"true", "yes", "on"}), frozenset({"false", "no", "off"})


def _list_keys(option: Option) -> Iterator[str]:
    """The keys of an option: its flags without the dashes, one letter only where it has no longer one."""
    names = [flag.lstrip("-") for flag in option.flags]
    yield from dict.fromkeys([name for name in names if len(name) > 1] or names)


COMMAND = "command"
KEYS: Mapping[str, Option] = {
    key: option for option in OPTIONS if not option.acts and option.dest not in _OF_FILES for key in _list_keys(option)
}


@dataclass(slots=True)
class Configuration:
    """What a file says.

    given: by dest, as if it had been typed; sources: how errors call each.
    command: the user's, where the command line has none.
    remarks: what the user should know; sentences. unknown: what is wrong with keys that mean nothing.
    """

    given: dict[str, Given] = field(default_factory=dict)
    command: tuple[str, ...] = ()
    sources: dict[str, str] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)
    unknown: list[ConfigurationError] = field(default_factory=list)


def read_configuration(name: str, *, ignores_unknown: bool = False) -> Configuration:
    """Read a file; a name that ends with .toml says TOML, any other YAML.

    Args:
        name: of the file.
        ignores_unknown: keys that mean nothing become a remark, as Horovod's users expect; otherwise they are refused.

    Raises:
        ConfigurationError: it cannot be read, or an option cannot have such a value.
    """
    table = _load(name)
    found = Configuration()
    spelled: dict[str, str] = {}
    for key, node in sorted(table.items(), key=lambda item: item[0] in SECTIONS):  # these add to what options say
        option = KEYS.get(key.replace("_", "-"))
        if key in SECTIONS:
            _take_section(found, key, node, name)
        elif key == COMMAND:
            found.command = _read_command(node, name)
        elif option is None:
            found.unknown.append(_explain_unknown(name, key, [*KEYS, *SECTIONS, COMMAND], node.line))
        elif node.content is not None:
            if option.dest in spelled:
                raise ConfigurationError(name, f"{spelled[option.dest]} and {key} mean the same", node.line)
            spelled[option.dest] = key
            found.given[option.dest] = _read_value(option, node, name, key)
            found.sources[option.dest] = f"{key} in {_place(name, node.line)}"
    if found.unknown:
        if not ignores_unknown:
            raise found.unknown[0]
        found.remarks.append(f"these keys have no effect: {' '.join(map(str, found.unknown))}")
    return found


def _load(name: str) -> Mapping[str, Node]:
    """The table that the file is."""
    try:
        path = parse_path(name)
        with path.open("rb") as file:
            data = file.read(_MOST_BYTES + 1)
        if len(data) > _MOST_BYTES:
            raise ConfigurationError(name, f"it is longer than {_MOST_BYTES} bytes")
        text = data.decode()
    except OSError as error:
        raise ConfigurationError(name, f"it cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ConfigurationError(name, "it is no text in UTF-8") from error
    except ValueError as error:
        raise ConfigurationError(name or "''", "no file can have such a name") from error
    tree = parse_toml(text, name) if path.suffix == ".toml" else parse_yaml(text, name)
    if tree.content is None:
        return {}
    if not isinstance(tree.content, Mapping):
        raise ConfigurationError(name, "keys with values are expected, as in np: 2", tree.line)
    return tree.content


def _take_section(found: Configuration, key: str, node: Node, name: str) -> None:
    """Add what a section of Horovod's file says."""
    if node.content is None:
        return
    section, strangers = read_section(key, node, name)
    for stranger, line in strangers:
        known = [f"{key}.{each}" for each in SECTIONS[key]]
        found.unknown.append(_explain_unknown(name, stranger, known, line))
    found.remarks.extend(section.remarks)
    for dest, given in section.given.items():
        former = found.given.get(dest)
        both = isinstance(former, tuple) and isinstance(given, tuple)
        found.given[dest] = (*former, *given) if both else given  # type: ignore[misc]  # both are tuples
        found.sources.setdefault(dest, f"{key} in {_place(name, node.line)}")


def _explain_unknown(name: str, key: str, known: Collection[str], line: int | None) -> ConfigurationError:
    nearest = get_close_matches(key, known, n=1) or get_close_matches(key.replace("_", "-"), known, n=1)
    advice = f"did you mean {nearest[0]}?" if nearest else "hvdrun --help lists all options."
    return ConfigurationError(name, f"there is no key {key!r}: {advice}", line)


def _read_command(node: Node, name: str) -> tuple[str, ...]:
    """The words of a command: a list, or a text that is split as a shell splits it."""
    wanted = "command takes a list of words or a text, as in command: python train.py"
    match node.content:
        case None:
            return ()
        case str(text):
            try:
                return tuple(shlex.split(text))
            except ValueError as error:
                raise ConfigurationError(name, f"{wanted}: {error}", node.line) from error
        case tuple(items):
            words = tuple(item.content for item in items if isinstance(item.content, str))
            if len(words) == len(items):
                return words
    raise ConfigurationError(name, wanted, node.line)


def _read_value(option: Option, node: Node, name: str, key: str) -> Given:
    """The value as if it had been typed."""
    if not option.takes_value:
        word = node.content.lower() if isinstance(node.content, str) else ""
        if word not in _TRUE | _FALSE:
            raise ConfigurationError(name, f"{key} takes true or false", node.line)
        return word in _TRUE
    if option.dest == "hosts" and isinstance(node.content, tuple):
        return ",".join(str(_read_words(option, item, name, key)) for item in node.content)
    if not option.repeats:
        return _read_words(option, node, name, key)
    content = node.content
    is_list = isinstance(content, tuple)
    if isinstance(content, tuple) and option.words > 1:
        is_list = all(isinstance(item.content, tuple) for item in content)
    items = content if is_list and isinstance(content, tuple) else (node,)
    return tuple(_read_words(option, item, name, key) for item in items)


def _read_words(option: Option, node: Node, name: str, key: str) -> str | tuple[str, ...]:
    """The words that would follow the flag once."""
    items = (node,) if option.words == 1 else node.content if isinstance(node.content, tuple) else ()
    words = tuple(item.content for item in items if isinstance(item.content, str))
    if len(words) != option.words or len(items) != option.words:
        raise ConfigurationError(name, f"{key} takes {option.wanted}", node.line)
    return words[0] if option.words == 1 else words


def _place(name: str, line: int | None) -> str:
    return name if line is None else f"{name}, line {line}"


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
