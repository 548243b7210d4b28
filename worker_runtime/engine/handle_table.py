"""Asynchronous operations as numbers: what the framework packages hand to programs, as Horovod does.

A table belongs to one generation: `shutdown()` and `init()` begin a new one, whose numbers start at 1 again.
"""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

from worker_runtime.coordination.operation import Handle


class HandleTable:
    """The operations that were submitted asynchronously and not synchronised yet; for any thread.

    A handle that is never synchronised keeps its tensors alive as long as the table.

    Args:
        wait: for an operation.
    """

    def __init__(self, wait: Callable[[Handle[Any]], Any]) -> None:
        self._wait = wait
        self._entries: dict[int, tuple[Handle[Any], Callable[[Any], Any] | None]] = {}
        self._numbers = itertools.count(1)

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[int]:
        return iter(tuple(self._entries))

    def add(self, handle: Handle[Any], convert: Callable[[Any], Any] | None = None) -> int:
        """Give a submitted operation its number.

        Args:
            handle: of the operation.
            convert: makes of the operation's result what `synchronize` returns; None where that is the same.
        """
        number = next(self._numbers)
        self._entries[number] = handle, convert
        return number

    def poll(self, number: int) -> bool:
        """Whether `synchronize` would return, or raise, at once.

        Raises:
            ValueError: there is no such handle, or it was synchronised before.
        """
        handle, _ = self._find(number)
        return handle.is_done()

    def synchronize(self, number: int) -> Any:  # noqa: ANN401 - what the operation gives
        """Wait for an operation and return its result; the number is gone afterwards, however it ends.

        A wait that was interrupted (KeyboardInterrupt) may be repeated.

        Raises:
            ValueError: there is no such handle, or it was synchronised before.
            HorovodInternalError: the operation did not complete.
        """
        handle, convert = self._find(number)
        try:
            result = self._wait(handle)
        except Exception:
            self._entries.pop(number, None)
            raise
        self._entries.pop(number, None)
        return result if convert is None else convert(result)

    def _find(self, number: int) -> tuple[Handle[Any], Callable[[Any], Any] | None]:
        entry = self._entries.get(number) if isinstance(number, int) else None
        if entry is None:
            raise ValueError(f"Handle {number!r} was not created or has been cleared.")
        return entry
