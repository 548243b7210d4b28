"""What a file says, whatever its language: texts as they would be typed, lists and tables, each with its line."""

from collections.abc import Mapping
from dataclasses import dataclass

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

    name: of the file. line: where in it, counted from 1; None where that is not known.
    """

    def __init__(self, name: str, fault: str, line: int | None = None) -> None:
        where = name if line is None else f"{name}, line {line}"
        super().__init__(f"{where}: {fault.rstrip('.')}{'' if fault.endswith('?') else '.'}")
        self.line = line
