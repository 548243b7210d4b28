"""What is inside a plain value of a program."""

from collections.abc import Iterator
from typing import Any

from worker_runtime.elastic.handlers import Stateful

_WORDS = frozenset({bool, bytes, float, int, str, type(None)})


def list_parts(value: Any) -> Iterator[tuple[Any, Any]]:
    """The value, and what it contains at any depth, each with the container or object in which it is.

    What has a state_dict, or is pickled in its own way, is not opened.
    """
    known = set()
    waiting = [(value, value)]
    while waiting:
        parent, part = waiting.pop()
        if id(part) not in known:
            known.add(id(part))
            yield parent, part
            waiting += [(part, each) for each in _open(part) if type(each) not in _WORDS]


def _open(value: Any) -> list[Any]:
    if isinstance(value, Stateful | type) or _has_own_pickling(type(value)):
        return []
    items = [*getattr(value, "__dict__", {}).values()]
    if isinstance(value, dict):
        items += value.values()
    elif isinstance(value, list | tuple):
        items += value
    return items


def _has_own_pickling(kind: type) -> bool:
    return getattr(kind, "__getstate__", None) is not getattr(object, "__getstate__", None)
