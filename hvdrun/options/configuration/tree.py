"""What a file says, whatever its language: texts as they would be typed, lists and tables, each with its line."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Node:
    """A text, a list, a table, or None for what is left empty.

    line: where it begins, counted from 1; None where the language's reader does not say.
    """

    content: "str | tuple[Node, ...] | Mapping[str, Node] | None"
    line: int | None = None
