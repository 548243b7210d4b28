"""Reads YAML and TOML into `Node`: texts as on the command line, lists and tables, each with its line; writes both.

A scalar of YAML stays the text of the file, and `Option.read` reads it like a word of the command line. So it does not
matter that YAML 1.1 converts `on`, `1:30` and `007`. PyYAML's `compose` returns these texts, and a line for each node.
"""

import itertools
import json
import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from hvdrun.errors import UsageError
from hvdrun.options.option import RawValues


@dataclass(frozen=True, slots=True)
class Node:
    """A text, a list, a table, or None for a key without a value.

    line: where it begins, counted from 1; None in TOML, whose reader does not report it.
    """

    content: "str | tuple[Node, ...] | Mapping[str, Node] | None"
    line: int | None = None

    def locate(self, name: str) -> str:
        """How errors call its place in the file of this name."""
        if self.line is None:
            return name
        return f"{name}, line {self.line}"


class ConfigurationError(UsageError):
    """A configuration file cannot be read or written, or has a key or a value that no option takes.

    Message: FILE: FAULT
    Message: FILE, line LINE: FAULT
    Cause: The file of `--config-file` cannot be read, or has a key or a value that no option takes.
    Remedy: Correct the line that the sentence names.

    Args:
        name: the name of the file.
        fault: a sentence, or a part of one.
        line: where in the file, counted from 1, if it is known.
    """

    def __init__(self, name: str, fault: str, line: int | None = None) -> None:
        super().__init__(f"{Node(None, line).locate(name)}: {fault.rstrip('.')}{'' if fault.endswith('?') else '.'}")
        self.line = line


_DEEPEST = 8  # YAML's aliases can make a list that holds itself
_MOST_VALUES = 100_000  # aliases of aliases multiply: a few lines can have billions
_TOO_DEEP = "lists and tables are nested too deeply"


def parse_toml(text: str, name: str) -> Node:
    """Read TOML.

    Raises:
        ConfigurationError: the text is no TOML.
    """
    try:
        return _convert_toml(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError(name, f"this is no TOML: {error}") from error
    except RecursionError as error:
        raise ConfigurationError(name, _TOO_DEEP) from error


def parse_yaml(text: str, name: str) -> Node:
    """Read YAML; the content of an empty file is None.

    Raises:
        ConfigurationError: the text is no YAML, or PyYAML is missing.
    """
    try:
        import yaml  # noqa: PLC0415 - only for a job that has such a file
    except ImportError as error:
        raise ConfigurationError(
            name, "PyYAML is needed to read it: install pyyaml, or write the file in TOML, as job.toml"
        ) from error

    try:
        root: Any = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        line = None
        if error.problem_mark:
            line = error.problem_mark.line + 1
        raise ConfigurationError(name, f"this is no YAML: {error.problem or error}", line) from error
    except yaml.YAMLError as error:
        raise ConfigurationError(name, f"this is no YAML: {' '.join(str(error).split())}") from error
    except RecursionError as error:
        raise ConfigurationError(name, _TOO_DEEP) from error

    if root is None:
        return Node(None)
    return _convert_yaml(root, name, _DEEPEST, itertools.count())


def _convert_toml(value: object) -> Node:
    match value:
        case dict():
            return Node({str(key): _convert_toml(item) for key, item in value.items()})
        case list():
            return Node(tuple(map(_convert_toml, value)))
        case bool():
            return Node("true" if value else "false")
        case _:
            return Node(str(value))


def _convert_yaml(node: Any, name: str, depth: int, counter: Iterator[int]) -> Node:
    line = node.start_mark.line + 1
    if not depth:
        raise ConfigurationError(name, _TOO_DEEP, line)
    if next(counter) >= _MOST_VALUES:
        raise ConfigurationError(name, f"aliases (*name) give it more than {_MOST_VALUES} values", line)

    if node.id == "scalar":
        _check_text(node.value, name, line)
        if node.tag == "tag:yaml.org,2002:null":
            return Node(None, line)
        return Node(node.value, line)
    if node.id == "sequence":
        return Node(tuple(_convert_yaml(item, name, depth - 1, counter) for item in node.value), line)

    table: dict[str, Node] = {}
    for key, item in node.value:
        key_line = key.start_mark.line + 1
        if key.id != "scalar":
            raise ConfigurationError(name, "a key must be a word", key_line)
        if key.value in table:
            raise ConfigurationError(name, f"the key {key.value!r} is given twice", key_line)
        converted = _convert_yaml(item, name, depth - 1, counter)
        table[key.value] = Node(converted.content, key_line)
    return Node(table, line)


def _check_text(text: str, name: str, line: int) -> None:
    """Refuse half a surrogate pair, which YAML can escape and a command line cannot hold."""
    try:
        os.fsencode(text)
    except UnicodeEncodeError as error:
        raise ConfigurationError(name, f"{text!r} cannot stand on a command line", line) from error


_UNQUOTED = re.compile(r"[A-Za-z0-9/][A-Za-z0-9_./=-]*|\d+", re.ASCII)
_NULL = "null"


def render_toml(table: Mapping[str, RawValues], name: str) -> str:
    """Write TOML.

    Raises:
        ConfigurationError: a value has bytes that are no text in UTF-8, which TOML cannot hold.
    """
    text = "".join(f"{key} = {_render(value, plain=False)}\n" for key, value in table.items())
    try:
        tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError(name, "TOML cannot hold bytes that are no text in UTF-8: write YAML") from error
    return text


def render_yaml(table: Mapping[str, RawValues]) -> str:
    """Write YAML."""
    return "".join(f"{key}: {_render(value, plain=True)}\n" for key, value in table.items())


def _render(value: RawValues, *, plain: bool) -> str:
    """The value in both languages; `plain` leaves out quotes that YAML does not need."""
    match value:
        case bool():
            return "true" if value else "false"
        case tuple():
            return f"[{', '.join(_render(item, plain=plain) for item in value)}]"
        case _ if value.isdecimal() and value.isascii() and str(int(value)) == value:
            return value
        case _ if plain and _UNQUOTED.fullmatch(value) and value.lower() != _NULL:
            return value
        case _:
            return "".join(c if c.isprintable() else _escape(c) for c in json.dumps(value, ensure_ascii=False))


def _escape(character: str) -> str:
    code = ord(character)
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"  # noqa: PLR2004 - the last of four digits
