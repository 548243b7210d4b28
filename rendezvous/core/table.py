"""A persistent mapping: a changed copy is cheap, so that a frozen state can hold thousands of workers.

A copy of a dict for each of n joins would take time n * n. Here all copies share the keys and their positions. The
values are the leaves of a tree, and a change copies one path. (A hash trie from a library loses the order of the keys.)
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
    """A value for each of a fixed set of keys, in their order. Create one with `Table.of`."""

    _positions: Mapping[K, int]
    _root: _Node
    _span: int  # how many values each child of the root holds

    @classmethod
    def of(cls, items: Iterable[tuple[K, V]]) -> Self:
        """The table of these keys and values."""
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
        """The key's value; None if the table has no such key."""
        if key in self._positions:
            return self[key]
        return None

    def replace(self, key: K, value: V) -> Self:
        """A copy with another value for this key.

        Raises:
            KeyError: the table has no such key.
        """
        return type(self)(self._positions, _replace(self._root, self._positions[key], value, self._span), self._span)

    def has_keys_of(self, other: Self) -> bool:
        """Whether both have the same keys, in the same order."""
        return self._positions is other._positions or list(self._positions) == list(other._positions)

    def list_changes(self, former: Self) -> list[tuple[K, V]]:
        """The entries whose value is another object than in a former version, which has the same keys, in their order.

        Copies share what has not changed, so few nodes are visited.
        """
        changed = list(_compare(self._root, former._root, self._span, 0))
        if not changed:
            return []
        keys = list(self._positions)
        return [(keys[position], value) for position, value in changed]

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
    """A copy of the node with another leaf at this position."""
    child, rest = divmod(position, span)
    changed = value
    if span != 1:
        changed = _replace(node[child], rest, value, span // WIDTH)
    return (*node[:child], changed, *node[child + 1 :])


def _compare(node: _Node, former: _Node, span: int, first: int) -> Iterator[tuple[int, Any]]:
    """The positions and values of leaves that are other objects; first: the position of the node's first leaf."""
    if node is former:
        return
    for place, (each, other) in enumerate(zip(node, former, strict=True)):
        if span > 1:
            yield from _compare(each, other, span // WIDTH, first + place * span)
        elif each is not other:
            yield first + place, each
