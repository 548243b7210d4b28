"""A mapping that never changes, and whose changed copy is cheap: what lets a frozen state hold thousands of workers.

Copying a dict for each of n joins would cost n * n in all. Here the keys are numbered once and shared by all copies,
and the values are the leaves of a tree of which a change copies one path.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any, Generic, Self, TypeAlias, TypeVar

K = TypeVar("K")
V = TypeVar("V")

WIDTH = 32  # children of a node
_Node: TypeAlias = tuple[Any, ...]  # of nodes, or of values at the bottom


@dataclass(frozen=True, slots=True)
class Table(Generic[K, V]):
    """A value for each of a fixed set of keys, in their order. Make one with `Table.of`."""

    _positions: Mapping[K, int]
    _root: _Node
    _span: int  # how many values stand beneath each child of the root

    @classmethod
    def of(cls, items: Iterable[tuple[K, V]]) -> Self:
        """The table of these keys and values; each key comes once."""
        values = dict(items)
        node: _Node = tuple(values.values())
        span = 1
        while len(node) > WIDTH:
            node = tuple(node[start : start + WIDTH] for start in range(0, len(node), WIDTH))
            span *= WIDTH
        return cls({key: position for position, key in enumerate(values)}, node, span)

    def __getitem__(self, key: K) -> V:
        position, node, span = self._positions[key], self._root, self._span
        while span > 1:
            child, position = divmod(position, span)
            node, span = node[child], span // WIDTH
        value: V = node[position]
        return value

    def get(self, key: K) -> V | None:
        """The key's value; None for a key that is not in the table."""
        return self[key] if key in self._positions else None

    def replace(self, key: K, value: V) -> Self:
        """The table with another value for this key.

        Raises:
            KeyError: the table has no such key.
        """
        return type(self)(self._positions, _replace(self._root, self._positions[key], value, self._span), self._span)

    def values(self) -> Iterator[V]:
        """All values, in the order of their keys."""
        level: Iterable[Any] = self._root
        span = self._span
        while span > 1:
            level, span = chain.from_iterable(level), span // WIDTH
        return iter(level)

    def items(self) -> Iterator[tuple[K, V]]:
        """All keys with their values, in their order."""
        return zip(self._positions, self.values(), strict=True)

    def __iter__(self) -> Iterator[K]:
        return iter(self._positions)

    def __len__(self) -> int:
        return len(self._positions)

    def __contains__(self, key: object) -> bool:
        return key in self._positions


def _replace(node: _Node, position: int, value: object, span: int) -> _Node:
    """The node with another leaf at this position; nothing but the path to it is copied."""
    child, rest = divmod(position, span)
    changed = value if span == 1 else _replace(node[child], rest, value, span // WIDTH)
    return (*node[:child], changed, *node[child + 1 :])
