"""What is inside a plain value of a program."""

from collections.abc import Iterable, Iterator
from typing import Any

from worker_runtime.elastic.handlers import Stateful

_SCALARS = frozenset({bool, bytes, complex, float, int, str, type(None)})


def list_parts(value: Any, *, opens_objects: bool = False) -> Iterator[tuple[Any, Any]]:
    """The value, and what lists, tuples and dicts in it contain at any depth.

    Args:
        value: the value of the program.
        opens_objects: whether to open objects, too. One that has a state_dict, or is pickled in its own way, is not
            opened.

    Yields:
        The container or object, and its part. The first part is the value, in itself.
    """
    known = set()
    waiting = [(value, value)]
    while waiting:
        parent, part = waiting.pop()
        if id(part) in known:
            continue
        known.add(id(part))
        yield parent, part
        items = list(_open_container(part))
        if opens_objects:
            items += _open_object(part)
        waiting += [(part, each) for each in items if type(each) not in _SCALARS]


def _open_container(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list | tuple) else ()


def _open_object(value: Any) -> Iterable[Any]:
    if isinstance(value, Stateful | type) or _has_own_pickling(type(value)):
        return ()
    return getattr(value, "__dict__", {}).values()


def _has_own_pickling(kind: type) -> bool:
    return getattr(kind, "__getstate__", None) is not getattr(object, "__getstate__", None)
