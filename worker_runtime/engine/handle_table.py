"""The handles of asynchronous operations as programs see them: integers, as in Horovod.

After `shutdown()` and `init()` a new table starts, with handles from 1 again.
"""

import itertools
import operator
from collections.abc import Callable, Iterator
from typing import Any

from worker_runtime.coordination.operation import Handle


class HandleTable:
    """The asynchronous operations that are not synchronized yet. Any thread may use it.

    A handle that is never synchronized keeps its tensors alive as long as the table lives.

    Args:
        wait: waits for an operation, and returns its result.
        poll: whether `wait` returns or raises without waiting.
    """

    def __init__(self, wait: Callable[[Handle[Any]], Any], poll: Callable[[Handle[Any]], bool]) -> None:
        self._wait = wait
        self._poll = poll
        self._entries: dict[int, tuple[Handle[Any], Callable[[Any], Any] | None]] = {}
        self._numbers = itertools.count(1)

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[int]:
        return iter(tuple(self._entries))

    def add(self, handle: Handle[Any], convert: Callable[[Any], Any] | None = None) -> int:
        """Add a submitted operation, and return its number.

        Args:
            handle: the operation's handle.
            convert: turns the operation's result into the return value of `synchronize`; None where it is the same.
        """
        number = next(self._numbers)
        self._entries[number] = handle, convert
        return number

    def poll(self, number: int) -> bool:
        """Whether `synchronize` returns or raises without waiting.

        Raises:
            ValueError: the handle does not exist, or is already synchronized.
        """
        handle, _ = self._find(number)
        return self._poll(handle)

    def synchronize(self, number: int) -> Any:
        """Wait for an operation, return its result, and remove the handle, also after an error.

        After an interrupted wait (KeyboardInterrupt) the handle remains, unless its result was being computed.

        Raises:
            ValueError: the handle does not exist, or is already synchronized.
            HorovodInternalError: the operation failed.
        """
        handle, convert = self._find(number)
        number = operator.index(number)
        try:
            result = self._wait(handle)
        except BaseException as error:
            if isinstance(error, Exception) or handle.has_succeeded:
                self._entries.pop(number, None)
            raise
        self._entries.pop(number, None)
        if convert is not None:
            return convert(result)
        return result

    def _find(self, number: int) -> tuple[Handle[Any], Callable[[Any], Any] | None]:
        try:
            return self._entries[operator.index(number)]
        except (KeyError, TypeError):  # TypeError: not an integer
            raise ValueError(f"Handle {number!r} was not created or has been cleared.") from None
