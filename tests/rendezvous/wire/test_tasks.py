"""What cannot be sent is named by the way that leads to it."""

import functools
import threading
from collections.abc import Callable

import pytest

from rendezvous.wire.tasks import find_unsendable

LOCK = threading.Lock()
LIST = [1, 2, LOCK]


class Box:
    """Holds something."""

    def __init__(self) -> None:
        self.inner = LOCK

    def look(self) -> None:
        """A method."""


def use_global() -> object:
    return LIST


def make_closure() -> Callable[[], object]:
    lock = LOCK
    return lambda: lock


def make_nested() -> Callable[[], object]:
    def outer() -> object:
        return use_global()

    return outer


def with_default(value: object = LOCK, *, word: object = 1) -> object:
    return value, word


def is_sendable(value: object, seen: frozenset[int] = frozenset()) -> bool:
    """Nothing that leads to the lock is."""
    from rendezvous.wire.tasks import list_parts  # noqa: PLC0415 - only this function needs it

    if value is LOCK:
        return False
    rest = seen | {id(value)}
    return all(is_sendable(part, rest) for _, part in list_parts(value) if id(part) not in seen)


@pytest.mark.parametrize(
    ("value", "way"),
    [
        (LOCK, "it is"),
        (LIST, "its item 2 is"),
        ({"a": 1, "b": (LOCK,)}, "its item 'b', item 0 is"),
        (make_closure(), "its variable `lock` is"),
        (use_global, "its global variable `LIST`, item 2 is"),
        (make_nested(), "its global variable `use_global`, global variable `LIST`, item 2 is"),
        (with_default, "its default 0 is"),
        (Box(), "its attribute `inner` is"),
        (Box().look, "its object, attribute `inner` is"),
        (functools.partial(print, 1, sep=LOCK), "its argument 'sep' is"),
    ],
)
def test_the_path_to_an_unsendable_part_is_named(value: object, way: str) -> None:
    assert (
        find_unsendable("this", value, is_sendable) == f"this cannot be sent to another process: {way} a _thread.lock"
    )


def test_a_value_that_contains_itself_is_named() -> None:
    ring: list[object] = []
    ring.append(ring)
    assert "is a list" in find_unsendable("this", ring, lambda _: False)
