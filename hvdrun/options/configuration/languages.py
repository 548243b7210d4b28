"""Reads YAML and TOML into `Node`: texts as they would be typed, lists and tables, each with its line.

YAML's scalars stay the text that stands in the file. `Option.read` reads them as it reads words of the command line,
so what YAML 1.1 makes of `on`, `1:30` or `007` does not matter. That, and a line for each node, is what PyYAML's
`compose` gives. Horovod reads its files with PyYAML too; ruamel.yaml keeps comments, which nobody needs here.
"""

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hvdrun.errors import UsageError


@dataclass(frozen=True, slots=True)
class Node:
    """A text, a list, a table, or None for what is left empty.

    line: where it begins, counted from 1; None where the language's reader does not say.
    """

    content: "str | tuple[Node, ...] | Mapping[str, Node] | None"
    line: int | None = None


class ConfigurationError(UsageError):
    """A configuration file cannot be read or written, or says what cannot be; `fault` is a sentence, or a part of one.

    Cause: The file of `--config-file` cannot be read, or has a key or a value that no option takes.
    Remedy: Mend the line that the sentence names.

    name: of the file. line: where in it, counted from 1; None where that is not known.
    """

    def __init__(self, name: str, fault: str, line: int | None = None) -> None:
        where = name if line is None else f"{name}, line {line}"
        super().__init__(f"{where}: {fault.rstrip('.')}{'' if fault.endswith('?') else '.'}")
        self.line = line


_DEEPEST = 8  # YAML's aliases can make a list that holds itself
_TOO_DEEP = "lists and tables are nested too deeply"


def parse_toml(text: str, name: str) -> Node:
    """Read TOML.

    Raises:
        ConfigurationError: it is none.
    """
    try:
        return _convert_toml(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError(name, f"this is no TOML: {error}") from error
    except RecursionError as error:
        raise ConfigurationError(name, _TOO_DEEP) from error


def parse_yaml(text: str, name: str) -> Node:
    """Read YAML; an empty file is None.

    Raises:
        ConfigurationError: it is none, or PyYAML is missing.
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
        line = error.problem_mark.line + 1 if error.problem_mark else None
        raise ConfigurationError(name, f"this is no YAML: {error.problem or error}", line) from error
    except yaml.YAMLError as error:
        raise ConfigurationError(name, f"this is no YAML: {' '.join(str(error).split())}") from error
    except RecursionError as error:
        raise ConfigurationError(name, _TOO_DEEP) from error
    return Node(None) if root is None else _convert_yaml(root, name, _DEEPEST)


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


def _convert_yaml(node: Any, name: str, depth: int) -> Node:  # noqa: ANN401 - its types say nothing of nodes
    line = node.start_mark.line + 1
    if not depth:
        raise ConfigurationError(name, _TOO_DEEP, line)
    if node.id == "scalar":
        _check_text(node.value, name, line)
        return Node(None if node.tag == "tag:yaml.org,2002:null" else node.value, line)
    if node.id == "sequence":
        return Node(tuple(_convert_yaml(item, name, depth - 1) for item in node.value), line)
    table: dict[str, Node] = {}
    for key, item in node.value:
        place = key.start_mark.line + 1
        if key.id != "scalar":
            raise ConfigurationError(name, "a key must be a word", place)
        if key.value in table:
            raise ConfigurationError(name, f"the key {key.value!r} stands there twice", place)
        converted = _convert_yaml(item, name, depth - 1)
        table[key.value] = Node(converted.content, place)
    return Node(table, line)


def _check_text(text: str, name: str, line: int) -> None:
    """Refuse half a character, which YAML's escapes can say and no command line."""
    try:
        os.fsencode(text)
    except UnicodeEncodeError as error:
        raise ConfigurationError(name, f"{text!r} cannot stand on a command line", line) from error
